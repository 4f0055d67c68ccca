"""All processes of this host by their ids: who is asked to stop, who has left, who has ended."""

from __future__ import annotations

import enum
import errno
import signal
import time
from typing import Any, Callable, Dict, Iterator, Optional

from hostmesh.launcher.agent.observing.memory import MemoryWatch
from hostmesh.launcher.agent.processes.facts import Facts
from hostmesh.launcher.agent.processes.process import Process, ProcessState
from hostmesh.launcher.protocol import wire
from hostmesh.worker.identity import EXIT_PREEMPTED


class Phase(enum.Enum):
    RUNNING = "processes are started and left to run"
    COLLECTING_STACKS = "a stop was ordered, and processes that can are dumping their stacks"
    KILLING = "processes were killed, and their ends and last output are awaited"
    DONE = "nothing is left to send"


class Processes:
    """`stop_signal` is the signal that asked the processes to stop, if one did."""

    def __init__(self, folder: str, send: Callable[[Any], None]) -> None:
        self._folder, self._send = folder, send
        self._by_id: Dict[int, Process] = {}
        self.facts = Facts(folder, self._by_id, send)
        self.memory = MemoryWatch()
        self.phase = Phase.RUNNING
        self.stop_signal: Optional[int] = None
        self.before_exit: Callable[[Process], None] = lambda process: None  # called before an end is reported
        self._clock_ahead: Optional[float] = None

    def __iter__(self) -> Iterator[Process]:
        return iter(self._by_id.values())

    def __getitem__(self, process_id: int) -> Process:
        return self._by_id[process_id]

    def add(self, process_id: int, is_python: bool = True) -> Process:
        process = self._by_id[process_id] = Process(process_id, self._folder, is_python)
        process.memory_since = self.memory.begin()
        return process

    def clear(self) -> None:
        """All of them have ended and all that they printed is sent: another attempt begins with none."""
        self.facts.hear()
        for process in self:
            process.remove_files()
        self._by_id.clear()
        self.stop_signal, self.phase = None, Phase.RUNNING

    def look_at_memory(self) -> None:
        self.memory.look([process.pid for process in self if process.is_alive and process.pid is not None])

    def note_launcher_time(self, launcher_time: float) -> None:
        """A message that was sent at this time by the launcher's clock bounds how far the host's clock is ahead."""
        ahead = time.time() - launcher_time
        self._clock_ahead = ahead if self._clock_ahead is None else min(self._clock_ahead, ahead)

    def ask_to_stop(self, number: int) -> None:
        for process in self:
            process.ask_to_stop(number)

    def note_reaped(self, pid: int, code: int) -> None:
        for process in self:
            if process.pid == pid and process.state in (ProcessState.STARTING, ProcessState.RUNNING):
                if process.hear_exec is not None:
                    process.hear_exec()
                self._note_left(process, code)

    def _note_left(self, process: Process, code: int) -> None:
        """A shell dies of SIGTERM and leaves the program that it runs behind: that is asked then, and has its time."""
        was_abandoned = self.stop_signal == signal.SIGTERM == -code and process.signal_group(signal.SIGTERM)
        if was_abandoned and self.phase is Phase.RUNNING:
            process.state, process.code = ProcessState.LEAVING, code
        else:
            self.note_ended(process, code)

    def end_leaving(self) -> None:
        """Report those whose whole process group has ended, or has no time left because of a stop."""
        for process in self:
            if process.state is ProcessState.LEAVING and (
                self.phase is not Phase.RUNNING or not process.signal_group(0)
            ):
                assert process.code is not None
                self.note_ended(process, process.code)

    def end_ordered(self, code: int) -> None:
        """Those that the nursery was asked for, and will not start any more."""
        for process in self:
            if process.state is ProcessState.ORDERED:
                self.note_ended(process, code)

    def note_ended(self, process: Process, code: int) -> None:
        self.facts.hear()
        self.facts.deliveries.pass_on(process.process_id)
        process.state = ProcessState.ENDED
        process.code = 126 if process.exec_error == errno.EACCES else code
        self.before_exit(process)
        tail = process.output.last()
        # What ended well needs no reason, and what this agent kills has one.
        is_in_doubt = process.code not in (0, EXIT_PREEMPTED) and self.phase is Phase.RUNNING
        was_killed = process.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        memory = self.memory.tell(process.pid, process.memory_since, was_killed) if is_in_doubt else {}
        self._send(wire.Exited(process.process_id, process.code, time.time(), self._clock_ahead, tail, memory))
