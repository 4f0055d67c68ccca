"""What a run keeps of its processes: their output, what setup printed, their stacks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hostmesh.launcher.output.events import EventLog
from hostmesh.launcher.output.logs import ProcessLog
from hostmesh.launcher.output.notes import NoteLog
from hostmesh.launcher.output.run_folder import Run, try_write
from hostmesh.launcher.output.screen import Screen


class Records:
    """The files of a run folder, its events, and lines for the user. Nothing here ends a run."""

    def __init__(self, run: Run, screen: Screen, events: EventLog, secrets: Mapping[str, str]) -> None:
        self.run, self.screen = run, screen
        self.logs: dict[int, ProcessLog] = {}
        self.has_stacks = self.has_loaders = False
        self._setup_logs: dict[int, ProcessLog] = {}
        self._events, self._secrets = events, tuple(secrets.values())
        self._unwritable: set[Path] = set()
        self._notes = NoteLog(run)

    def tell(self, event: str, **detail: Any) -> int:
        self.has_loaders = self.has_loaders or event == "loading"  # some loader tells which records it uses
        return self._events.add(event, **detail)

    def note(self, text: str) -> None:
        """A line for the user."""
        self.screen.note(text)
        self._notes.add(self.logs.values(), text=text)

    def begin_attempt(self, number: int) -> None:
        """What the one before has printed stays, and is shown to its end."""
        for log in self.logs.values():
            log.close()
        self._tell_dropped(of_setup=False)
        self.logs.clear()
        self.has_stacks = False
        self.run.begin_attempt(number)
        with suppress(OSError):  # what cannot be written is told with the first log
            self.run.logs.mkdir(parents=True, exist_ok=True)

    def open_log(self, process_id: int, host: str) -> None:
        log = self.logs[process_id] = ProcessLog(self.run.log_of(process_id), self._secrets)
        self._note_log_error(log, process_id)
        self.screen.follow(log, f"{process_id} {host}", process_id)

    def add_output(self, process_id: int, data: bytes) -> None:
        log = self.logs[process_id]
        was_fine = log.error is None
        log.write(data)
        self.screen.wake()
        if was_fine:
            self._note_log_error(log, process_id)

    def close_log(self, process_id: int) -> None:
        self.logs[process_id].close()
        self.screen.wake()

    def add_setup_output(self, host: int, data: bytes) -> None:
        if host not in self._setup_logs:
            self._setup_logs[host] = ProcessLog(self.run.setup_log_of(host), self._secrets)
            self._note_log_error(self._setup_logs[host])
        self._setup_logs[host].write(data)

    def keep_stacks(self, process_id: int, stacks: bytes) -> None:
        if self.keep(self.run.stacks_of(process_id), stacks):
            self.has_stacks = True

    def keep(self, path: Path, data: bytes) -> bool:
        """A note for the first file of a folder that cannot be written: a thousand of them would bury the verdict."""
        problem = try_write(path, data)
        if problem is not None and path.parent not in self._unwritable:
            self._unwritable.add(path.parent)
            self.note(problem)
        return problem is None

    def mute_all_but(self, process_id: int) -> None:
        """Shows nothing more of the other processes."""
        for each, log in self.logs.items():
            if each != process_id:
                self.screen.mute(log)
        self._notes.add(self.logs.values(), mute_all_but=process_id)

    def close(self) -> None:
        for log in (*self.logs.values(), *self._setup_logs.values()):
            log.close()
        self._tell_dropped()
        self.screen.wake()

    def _note_log_error(self, log: ProcessLog, process_id: int | None = None) -> None:
        """The first is told at once, all of them at the end."""
        if log.error is None:
            return
        if log.path.parent not in self._unwritable:
            self._unwritable.add(log.path.parent)
            self.note(f"launch: {log.path} cannot be written any more: {log.error.strerror}; the run goes on")
        self.tell("log lost", process_id=process_id, why=str(log.error))

    def _tell_dropped(self, of_setup: bool = True) -> None:
        dropped = {str(process_id): log.dropped for process_id, log in self.logs.items() if log.dropped}
        setups = sum(log.dropped for log in self._setup_logs.values()) if of_setup else 0
        if dropped:
            only = next(iter(dropped))
            who = f"process {only}'s output" if len(dropped) == 1 else f"output of {len(dropped)} processes"
            self.note(f"launch: {sum(dropped.values()):,} bytes of {who} could not be written")
        if setups:
            self.note(f"launch: {setups:,} bytes of what setup said could not be written")
        if dropped or setups:
            self.tell("output dropped", bytes=dropped, setup_bytes=setups)
        if self.logs and not self.run.logs.is_dir():
            self.note(f"launch: {self.run.logs} is gone: somebody deleted it during the run")
