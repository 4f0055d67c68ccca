"""What the files of a run folder say, whoever writes them meanwhile."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

LOG = re.compile(r"(?:attempt-(\d+)/)?process-(\d+)\.log")
MAX_HALF_LINE = 64 << 10


class Lines:
    """The whole JSON lines that a file gains."""

    def __init__(self, path: Path, at_end: bool = False) -> None:
        self._path = path
        self._position = find_last_line(path) if at_end else 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return [value for line in whole.splitlines() if isinstance(value := parse(line), dict)]


def attempt_and_process(name: str) -> tuple[int, int]:
    """Of `process-003.log` or `attempt-2/process-003.log`."""
    match = LOG.fullmatch(name)
    return (int(match[1] or 1), int(match[2])) if match else (0, 0)


def list_logs(folder: Path, wanted: Collection[int] | None) -> list[tuple[int, int, Path]]:
    """Attempt, process and path of the logs of a run, in that order."""
    names = [os.path.relpath(path, folder / "logs") for path in (folder / "logs").rglob("process-*.log")]
    found = [(*attempt_and_process(name), folder / "logs" / name) for name in names if LOG.fullmatch(name)]
    return sorted(each for each in found if wanted is None or each[1] in wanted)


def find_last_line(path: Path) -> int:
    """Where the last line of a file begins that is not whole yet; its size if all are."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - MAX_HALF_LINE)
            file.seek(start)
            return start + file.read(size - start).rfind(b"\n") + 1
    except OSError:
        return 0


def parse(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # what a full disk has cut


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is none that can be read."""
    try:
        value = parse(path.read_bytes())
    except OSError:
        return {}
    return value if isinstance(value, dict) else {}


def read_names(folder: Path) -> dict[int, str]:
    """The names of the hosts as they were planned, by process."""
    processes = read_json(folder / "plan.json").get("processes") or []
    return {each["process_id"]: each["host"] for each in processes}
