"""The launcher's own lines in a file of the run folder, each with how far the logs were when it was said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from hostmesh.launcher.output.logs import ProcessLog
from hostmesh.launcher.output.redact import redact_json
from hostmesh.launcher.output.run_folder import Run


class NoteLog:
    """A JSON line each: `{"time": 1.5, "text": "launch: …", "logs": {"process-000.log": 120}}`. Whoever attaches to the
    run later shows a note after what had been printed before it.

    Adding one never raises: a run goes on when its folder is full, which others tell.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._sizes: dict[str, int] = {}  # of the logs, as they were told last

    def add(self, logs: Iterable[ProcessLog], **note: Any) -> None:
        record = {"time": round(time.time(), 3), **note, "logs": self._find_grown(logs)}
        line = json.dumps(redact_json(record, self._run.hidden)) + "\n"
        try:
            with self._run.notes.open("ab") as file:
                file.write(line.encode("utf-8", "surrogateescape"))
        except OSError:
            pass

    def _find_grown(self, logs: Iterable[ProcessLog]) -> dict[str, int]:
        """Only those that have grown since the last note: there may be a thousand processes."""
        folder = self._run.folder / "logs"
        sizes = {str(log.path.relative_to(folder)): log.size for log in logs}
        grown = {name: size for name, size in sizes.items() if size != self._sizes.get(name, 0)}
        self._sizes.update(grown)
        return grown
