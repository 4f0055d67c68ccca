"""Look at every process once a second: has it moved? What changed is sent."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from hostmesh.launcher import wire
from hostmesh.launcher.agent.processes.native import NativeStack
from hostmesh.launcher.agent.processes.proc import count_pauses, read_status
from hostmesh.launcher.agent.processes.process import Process
from hostmesh.launcher.agent.processes.registry import Processes
from hostmesh.worker.process.record import Record

LOOK_EVERY = 1.0
# Processor time is measured over the last so many looks.
LOOKS_KEPT = 4
# Of a core: a process that uses less, and is inside jax, waits for others or for its devices.
IDLE = 0.2
# The same: one that uses more, and pauses in between, goes on with its work. One that only looks again and again
# whether it may go on uses less, and one that is lost in a computation does not pause.
WORKING = 0.02
SECOND = 1e9


class Sight:
    """What the looks at one process have shown so far: how many there were, in how many of them it waited, and in how
    many it had done something since the last one."""

    def __init__(self, pid: int) -> None:
        self.looks = self.waits = self.moves = 0
        self.sent: Any = None
        self._pid = pid
        self._pauses = 0
        self._stack = NativeStack(pid)
        self._cpu: Deque[Tuple[float, float, float]] = deque(maxlen=LOOKS_KEPT)

    def add(self, now: float, cpu: float, main_cpu: float) -> None:
        before = self._cpu[-1] if self._cpu else None
        self._cpu.append((now, cpu, main_cpu))
        if before is not None:
            self.looks += 1
            is_idle = cpu - before[1] < IDLE * (now - before[0])
            self.waits += is_idle and self._stack.waits_in_jax()
        pauses = count_pauses(self._pid)
        if before is not None and pauses > self._pauses and cpu - before[1] >= WORKING * (now - before[0]):
            self.moves += 1
        self._pauses = pauses

    def cores(self) -> Tuple[Optional[float], Optional[float]]:
        """How many cores the process, and its main thread alone, have used of late; None where that is not known."""
        if not self._cpu or self._cpu[-1][0] - self._cpu[0][0] < LOOK_EVERY / 2:
            return None, None
        (began, all_before, main_before), (ended, all_after, main_after) = self._cpu[0], self._cpu[-1]
        seconds = ended - began
        return round((all_after - all_before) / seconds, 2), round((main_after - main_before) / seconds, 2)


class Observing:
    def __init__(self, processes: Processes, send: Callable[[Any], None]) -> None:
        self._processes, self._send = processes, send
        self._looked_at = 0.0
        self._sights: Dict[int, Sight] = {}

    def keep_time(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY:
            return
        self._looked_at = now
        for process in self._processes:
            if process.is_alive:
                self._look(process, now)

    def look_last(self, process: Process) -> None:
        """At a process that has ended: its record tells how far it came."""
        if process.pid is not None:
            self._send_changes(process, "")

    def cores(self, process: Process) -> Tuple[Optional[float], Optional[float]]:
        return self._sight(process).cores()

    def _sight(self, process: Process) -> Sight:
        assert process.pid is not None
        if process.process_id not in self._sights:
            self._sights[process.process_id] = Sight(process.pid)
        return self._sights[process.process_id]

    def _look(self, process: Process, now: float) -> None:
        assert process.pid is not None
        status, main = read_status(process.pid), read_status(process.pid, process.pid)
        if status is not None and main is not None:
            self._sight(process).add(now, status.cpu, main.cpu)
            self._send_changes(process, "T" if status.state in "Tt" else "")

    def _send_changes(self, process: Process, state: str) -> None:
        sight, record = self._sight(process), process.record.read()
        # The steps of a process that tells them say more than that it does something.
        moves = sight.moves if record is None or not record.is_kept else 0
        key = (record and (record.changes, record.step), state, moves)
        if key == sight.sent or (sight.sent is None and key == (None, "", 0)):
            return
        sight.sent = key
        fields = _fields(record) if record is not None else {}
        observed = wire.Observed(process.process_id, state, looks=sight.looks, waits=sight.waits, moves=moves, **fields)
        self._send(observed)


def _fields(record: Record) -> Dict[str, Any]:
    return {
        "step": record.step,
        "phase": record.phase,
        "lasted": seconds_since(record.since),
        "changes": record.changes,
        "is_kept": record.is_kept,
        "loading": round(record.loading / SECOND, 4),
        "saving": round(record.saving / SECOND, 4),
        "compiling": round(record.compiling / SECOND, 4),
    }


def seconds_since(nanoseconds: int) -> float:
    """By the clock that all processes of a host share."""
    return round(max(0.0, time.monotonic() - nanoseconds / SECOND), 3)
