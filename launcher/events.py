"""The story of a run, one JSON line an event: to its folder, and to stdout when asked for."""

from __future__ import annotations

import json
import queue
import threading
import time
from typing import Any, TextIO

from launcher.redact import redact_json
from launcher.run import Run


class EventLog:
    def __init__(self, run: Run, stdout: TextIO | None = None) -> None:
        self._hidden = run.hidden
        self._file = run.events.open("a", encoding="utf-8")
        self._printer = Printer(stdout) if stdout is not None else None

    def add(self, event: str, **detail: Any) -> None:
        record = {"time": round(time.time(), 3), "event": event, **detail}
        line = json.dumps(redact_json(record, self._hidden)) + "\n"
        try:
            self._file.write(line)
            self._file.flush()
        except OSError:
            pass  # a full disk is no reason to end a run
        if self._printer is not None:
            self._printer.lines.put(line)

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
