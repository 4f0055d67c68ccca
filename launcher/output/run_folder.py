"""One use of `launch`: its id, and every file of its folder, named once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.output.redact import redact_json

# No letters that read like digits, and no vowels that could spell something.
ALPHABET = "23456789bcdfghjkmnpqrstvwxz"
# The id of a run whose folder was made when it was submitted to a scheduler; for the launcher that begins it there.
SUBMITTED = "HOSTMESH_SUBMITTED_RUN"


class Run:
    def __init__(self, folder: Path, hidden: tuple[str, ...] = ()) -> None:
        """`hidden` are secret values: nothing is written here with one of them in it."""
        self.folder = folder
        self.id = folder.name
        self.hidden = hidden
        self.plan = folder / "plan.json"
        self.events = folder / "events.jsonl"
        self.result = folder / "result.json"
        self.summary = folder / "summary.json"
        self.notes = folder / "notes.jsonl"  # what the launcher itself had to say
        self.own_log = folder / "launch.log"  # the same, and its mistakes, of a launcher without a terminal
        self.lock = folder / "lock"  # held by the supervisor
        self.control = folder / "control"  # in it the socket on which the supervisor answers
        self.engine = folder / "engine.json"  # who owns the hosts, where that is a scheduler
        self.logs = folder / "logs"
        self.stacks = folder / "stacks"

    @classmethod
    def create(cls, runs: Path, hidden: tuple[str, ...] = (), submitted: str | None = None) -> Run:
        """Of a job that was queued again the submitted run has begun already: what begins then is another one."""
        run = cls(runs / (submitted or new_run_id()), hidden)
        if run.plan.exists():
            run = cls(runs / new_run_id(), hidden)
        try:
            run.logs.mkdir(parents=True, exist_ok=submitted is not None)
            run.events.touch()
        except OSError as error:
            raise UsageError(
                f"--runs: found {runs}, where no folder can be made ({error.strerror}); wanted one I may write to"
            ) from None
        return run

    def begin_attempt(self, number: int) -> None:
        """Logs and stacks of each attempt after the first are in folders of their own."""
        self.logs = self.folder / "logs" / f"attempt-{number}"
        self.stacks = self.folder / "stacks" / f"attempt-{number}"

    def log_of(self, process_id: int) -> Path:
        return self.logs / f"process-{process_id:03d}.log"

    def setup_log_of(self, host: int) -> Path:
        return self.folder / "logs" / f"setup-{host:03d}.log"

    def stacks_of(self, process_id: int) -> Path:
        return self.stacks / f"process-{process_id:03d}.txt"

    def write_json(self, path: Path, value: Any) -> str | None:
        """Returns what went wrong, as a note to show: a run goes on when its folder is full."""
        return try_write(path, self.encode_json(value))

    def encode_json(self, value: Any) -> bytes:
        text = json.dumps(redact_json(value, self.hidden), indent=2) + "\n"
        return text.encode("utf-8", "surrogateescape")


def new_run_id() -> str:
    """`1116-k7m2xq`: the day for people, the rest so that no two runs on a host share an id."""
    return time.strftime("%m%d-") + "".join(ALPHABET[byte % len(ALPHABET)] for byte in os.urandom(6))


def try_write(path: Path, data: bytes) -> str | None:
    try:
        write_atomically(path, data)
    except OSError as error:
        return f"launch: {path} cannot be written: {error.strerror}; the run goes on"
    return None


def write_atomically(path: Path, data: bytes) -> None:
    """A reader finds the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)  # a half-written file would only take room
        raise
