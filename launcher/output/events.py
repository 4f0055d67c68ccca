"""The events of a run, one JSON line each: written to its folder, and to stdout when asked for."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from io import FileIO
from typing import Any, TextIO

from hostmesh.launcher.output.redact import redact_json
from hostmesh.launcher.output.run_folder import Run


class EventLog:
    """Adding an event never raises: the first error is passed to `note`, and later events are tried all the same."""

    def __init__(self, run: Run, stdout: TextIO | None = None, note: Callable[[str], None] = lambda _: None) -> None:
        self._hidden = run.hidden
        self._path = run.events
        self._note = note
        self._file: FileIO | None = None
        self._failed = False
        self._is_cut = False  # the file ends with half a line, as a full disk leaves it
        try:
            self._file = FileIO(run.events, "ab")
        except OSError as error:
            self._note_error(error)
        self._printer = Printer(stdout) if stdout is not None else None

    def add(self, event: str, **detail: Any) -> int:
        """Returns the bytes it takes."""
        record = {"time": round(time.time(), 3), "event": event, **detail}
        line = json.dumps(redact_json(record, self._hidden)) + "\n"
        data = line.encode("utf-8", "surrogateescape")
        self._write(data)
        if self._printer is not None:
            self._printer.lines.put(line)
        return len(data)

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return
        rest = memoryview(b"\n" + line if self._is_cut else line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
                self._is_cut = bool(rest)
        except OSError as error:  # a full disk is no reason to end a run
            self._note_error(error)

    def _note_error(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            self._note(f"launch: {self._path} cannot be written: {error.strerror}; the run goes on")

    def close(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # network file systems report a full disk only here
            self._note_error(error)
        self._file = None

    def finish(self, timeout: float) -> bool:
        """False while a reader of stdout has not taken everything."""
        return self._printer is None or self._printer.finish(timeout)


class Printer:
    """Writes lines from a thread of its own: a reader that stops reading holds nobody up."""

    def __init__(self, out: TextIO) -> None:
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._out = out
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def finish(self, timeout: float) -> bool:
        self.lines.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (line := self.lines.get()) is not None:
                self._out.write(line)
                self._out.flush()
        except (OSError, ValueError):
            pass  # nobody reads any more
