"""One process of the run as its agent sees it: how far it has come, its signals, its stacks."""

from __future__ import annotations

import enum
import os
import signal
from typing import Callable, Optional

from hostmesh.launcher.agent.files import remove_file
from hostmesh.launcher.agent.observing.record_file import RecordFile
from hostmesh.launcher.agent.processes.output import Output


class ProcessState(enum.Enum):
    ORDERED = "it has no pid yet: the nursery was asked to fork it"
    STARTING = "it was forked, and its program has not been executed yet, or cannot be"
    RUNNING = "its program runs"
    LEAVING = "it has exited, and the rest of its process group still has time to end"
    ENDED = "its exit was reported, and its output is not all sent"
    DRAINED = "all its output was sent"


class Boot(enum.Enum):
    """How far the start of Python has come in it; other programs stay silent."""

    SILENT = "nobody has said hello"
    CHILD_BEGAN = "a Python that it started has said hello"
    BEGAN = "it said hello itself, and can dump its stacks"


LAST_THREAD = b"Current thread "
ALIVE = frozenset([ProcessState.STARTING, ProcessState.RUNNING, ProcessState.LEAVING])


class Process:
    """`code` is its exit code, known from LEAVING on."""

    def __init__(self, process_id: int, folder: str, is_python: bool = True) -> None:
        self.process_id, self.is_python = process_id, is_python
        self.output = Output(os.path.join(folder, f"output-{process_id}"))
        self.stacks = os.path.join(folder, f"stacks-{process_id}")
        self.record = RecordFile(os.path.join(folder, f"record-{process_id}"))
        self.state = ProcessState.ORDERED
        self.boot = Boot.SILENT
        self.pid: Optional[int] = None
        self.code: Optional[int] = None
        # Reads whether its program could be executed; None where that is known.
        self.hear_exec: Optional[Callable[[], None]] = None
        self.exec_error: Optional[int] = None
        self.dropped_facts = 0
        self.memory_since = 0.0
        self._stacks_size = 0

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    @property
    def can_dump(self) -> bool:
        return self.boot is Boot.BEGAN

    def remove_files(self) -> None:
        self.output.remove()
        for path in (self.stacks, self.record.path):
            remove_file(path)

    def note_started(self, pid: int) -> None:
        """By the nursery; a stop may have ended it before this was heard."""
        self.pid = pid
        if self.state is ProcessState.ORDERED:
            self.state = ProcessState.RUNNING

    def signal(self, number: int) -> None:
        if self.is_alive:
            assert self.pid is not None
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def ask_to_stop(self, number: int) -> None:
        """Ctrl-C reaches the whole group, as under a shell. SIGTERM reaches the process alone: it would end a data
        loader's processes while their owner saves."""
        if number == signal.SIGINT and self.is_python and self.boot is Boot.SILENT:
            number = signal.SIGTERM  # Python that is still starting would only print a traceback
        if self.is_alive and (number != signal.SIGINT or not self.signal_group(number)):
            self.signal(number)

    def signal_group(self, number: int) -> bool:
        """Signal the process group that it leads; False if it leads none, or nobody of the group is left."""
        assert self.pid is not None
        try:
            os.killpg(self.pid, number)
        except OSError:
            return False
        return True

    def stacks_are_whole(self) -> bool:
        """True when the dump has come to the thread that makes it, which is the main one and comes last, ends with a
        line's end and has not grown since the last call: faulthandler writes it in several steps."""
        stacks = self.read_stacks()
        is_whole = LAST_THREAD in stacks and stacks.endswith(b"\n") and len(stacks) == self._stacks_size
        self._stacks_size = len(stacks)
        return is_whole

    def empty_stacks(self) -> None:
        """Before a dump is asked for: the process appends to what is there."""
        self._stacks_size = 0
        try:
            os.truncate(self.stacks, 0)
        except OSError:
            pass

    def read_stacks(self) -> bytes:
        try:
            with open(self.stacks, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""
