"""The story of a run, one JSON line an event: to its folder, and to stdout when asked for."""

from __future__ import annotations

import json
import time
from typing import Any, TextIO

from launcher.redact import redact_json
from launcher.run import Run


class EventLog:
    def __init__(self, run: Run, stdout: TextIO | None = None) -> None:
        self._hidden = run.hidden
        self._file = run.events.open("a", encoding="utf-8")
        self._stdout = stdout

    def add(self, event: str, **detail: Any) -> None:
        record = {"time": round(time.time(), 3), "event": event, **detail}
        line = json.dumps(redact_json(record, self._hidden)) + "\n"
        self._write(self._file, line)
        if self._stdout is not None and not self._write(self._stdout, line):
            self._stdout = None

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def _write(file: TextIO, line: str) -> bool:
        """A full disk or a closed pipe is no reason to end a run."""
        try:
            file.write(line)
            file.flush()
        except (OSError, ValueError):
            return False
        return True
