"""Look at every process once a second: has it moved? What changed is sent."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from hostmesh.launcher.agent.observing.native import IDLE, NativeStack
from hostmesh.launcher.agent.observing.proc import count_pauses, read_status
from hostmesh.launcher.agent.processes.process import Process
from hostmesh.launcher.agent.processes.registry import Processes
from hostmesh.launcher.protocol import wire
from hostmesh.worker.recording.record import Record

# Processor time is measured over the last so many looks.
LOOKS_KEPT = 4
# Two looks that are closer than so many seconds say nothing of it.
MIN_SECONDS = 0.5
# Of a core: a process that uses more, and pauses in between, goes on with its work. One that only looks again and again
# whether it may go on uses less, and one that is lost in a computation does not pause.
WORKING = 0.02
SECOND = 1e9


class Looks:
    """What the looks at one process have shown so far: how many there were, in how many of them it waited, and in how
    many it had done something since the last one."""

    def __init__(self, pid: int) -> None:
        self.looks = self.waits = self.moves = 0
        self.stack = NativeStack(pid)
        self.sent: Any = None
        self._pid = pid
        self._pauses = 0
        self._cpu: Deque[Tuple[float, float, float]] = deque(maxlen=LOOKS_KEPT)

    def add(self, cpu: float, main_cpu: float) -> None:
        now, pauses = time.monotonic(), count_pauses(self._pid)
        if self._cpu:
            before, cpu_before, _ = self._cpu[-1]
            cores = (cpu - cpu_before) / max(now - before, 1e-9)
            self.looks += 1
            self.waits += cores < IDLE and self.stack.waits_in_jax()
            self.moves += cores >= WORKING and pauses > self._pauses
        self._cpu.append((now, cpu, main_cpu))
        self._pauses = pauses

    def cores(self) -> Tuple[Optional[float], Optional[float]]:
        """How many cores the process, and its main thread alone, have used of late; None where that is not known."""
        if not self._cpu or self._cpu[-1][0] - self._cpu[0][0] < MIN_SECONDS:
            return None, None
        (began, all_before, main_before), (ended, all_after, main_after) = self._cpu[0], self._cpu[-1]
        seconds = ended - began
        return round((all_after - all_before) / seconds, 2), round((main_after - main_before) / seconds, 2)


class Observing:
    def __init__(self, processes: Processes, send: Callable[[Any], None]) -> None:
        self._processes, self._send = processes, send
        self._looks: Dict[int, Looks] = {}

    def look_at_all(self) -> None:
        """To be called once a second."""
        for process in self._processes:
            if process.is_alive:
                self._look(process)

    def look_last(self, process: Process) -> None:
        """At a process that has ended: its record tells how far it came."""
        if process.pid is not None:
            self._send_changes(process, "")

    def forget_all(self) -> None:
        """The processes of the next attempt have the same ids."""
        self._looks.clear()

    def looks_at(self, process: Process) -> Looks:
        assert process.pid is not None
        if process.process_id not in self._looks:
            self._looks[process.process_id] = Looks(process.pid)
        return self._looks[process.process_id]

    def _look(self, process: Process) -> None:
        assert process.pid is not None
        status, main = read_status(process.pid), read_status(process.pid, process.pid)
        if status is not None and main is not None:
            self.looks_at(process).add(status.cpu, main.cpu)
            self._send_changes(process, "T" if status.state in "Tt" else "")

    def _send_changes(self, process: Process, state: str) -> None:
        looks, record = self.looks_at(process), process.record.read()
        # The steps of a process that tells them say more than that it does something.
        moves = looks.moves if record is None or not record.is_kept else 0
        key = (record and (record.changes, record.step), state, moves)
        if key == looks.sent or (looks.sent is None and key == (None, "", 0)):
            return
        looks.sent = key
        fields = _fields(record) if record is not None else {}
        self._send(
            wire.Observed(process.process_id, state, looks=looks.looks, waits=looks.waits, moves=moves, **fields)
        )


def _fields(record: Record) -> Dict[str, Any]:
    return {
        "step": record.step,
        "phase": record.phase,
        "changes": record.changes,
        "is_kept": record.is_kept,
        "loading": round(record.loading / SECOND, 4),
    }
