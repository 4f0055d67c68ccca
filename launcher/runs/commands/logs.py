"""`launch logs`: what processes of a run have printed, and with -f what they go on to print."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.runs.owner import is_held
from hostmesh.launcher.runs.reading import list_logs, read_names

LOOK_EVERY = 0.1
CHUNK = 1 << 20


class LogReader:
    """The bytes of one log as they come, whole lines only until nobody writes it any more."""

    def __init__(self, attempt: int, process_id: int, path: Path, tail: int | None) -> None:
        self.attempt, self.process_id, self._path = attempt, process_id, path
        self._position = 0 if tail is None else find_tail(path, tail)

    def read(self, is_over: bool) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read(CHUNK)
        except OSError:
            return b""
        if not is_over and len(data) < CHUNK:
            data = data[: data.rfind(b"\n") + 1]
        self._position += len(data)
        return data


def print_logs(
    folder: Path, follow: bool, process: int | None, host: str | None, tail: int | None, as_json: bool
) -> int:
    names = read_names(folder)
    wanted = choose_processes(names, process, host, folder.name)
    write = choose_writer(names, len(wanted) == 1, as_json)
    readers: dict[Path, LogReader] = {}
    try:
        while True:
            is_over = not (follow and is_held(folder))
            for attempt, process_id, path in list_logs(folder, wanted):
                if path not in readers:
                    # What begins while it is followed is shown whole.
                    readers[path] = LogReader(attempt, process_id, path, tail)
                while data := readers[path].read(is_over):
                    write(process_id, data)
            tail = None
            if is_over:
                return 0
            time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # as of `| head`
        return 0


def choose_processes(names: dict[int, str], process: int | None, host: str | None, run: str) -> Collection[int]:
    if process is not None and process not in names:
        raise UsageError(f"--process: found {process}, wanted one of the {len(names)} processes of run {run}")
    if host is not None and host not in names.values():
        known = ", ".join(sorted(set(names.values()))[:10])
        raise UsageError(f"--host: found {host}, wanted a host of run {run}, such as {known}")
    return {number for number, name in names.items() if process in (None, number) and (host is None or name == host)}


def choose_writer(names: dict[int, str], is_alone: bool, as_json: bool) -> Callable[[int, bytes], None]:
    """Of a single process the bytes as they are; of several each line with the process and its host before it."""
    out = sys.stdout.buffer

    def write_bytes(process_id: int, data: bytes) -> None:
        out.write(data)
        out.flush()

    def write_lines(process_id: int, data: bytes) -> None:
        label = f"[{process_id} {names[process_id]}] ".encode()
        out.write(b"".join(label + line + b"\n" for line in split_lines(data)))
        out.flush()

    def write_json(process_id: int, data: bytes) -> None:
        head = {"process_id": process_id, "host": names[process_id]}
        for line in split_lines(data):
            out.write(json.dumps({**head, "line": line.decode(errors="replace")}).encode() + b"\n")
        out.flush()

    return write_json if as_json else write_bytes if is_alone else write_lines


def split_lines(data: bytes) -> Iterator[bytes]:
    lines = data.split(b"\n")
    yield from lines[:-1]
    if lines[-1]:
        yield lines[-1]


def find_tail(path: Path, count: int) -> int:
    """Where the last so many lines of a file begin."""
    try:
        with path.open("rb") as file:
            position = file.seek(0, os.SEEK_END)
            lines = 0
            while position > 0:
                start = max(0, position - CHUNK)
                file.seek(start)
                data = file.read(position - start)
                if position == file.tell() and lines == 0 and data.endswith(b"\n"):
                    lines = -1  # the end of the last line begins no other
                for at in range(len(data) - 1, -1, -1):
                    if data[at] == 10:
                        lines += 1
                        if lines == count:
                            return start + at + 1
                position = start
    except OSError:
        pass
    return 0
