"""Look at every process once a second: has it moved? What changed is sent."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

from hostmesh.launcher import wire
from hostmesh.launcher.agent.processes.proc import read_status
from hostmesh.launcher.agent.processes.process import Process
from hostmesh.launcher.agent.processes.registry import Processes
from hostmesh.worker.process.record import Record

LOOK_EVERY = 1.0
# Processor time is measured over the last so many looks.
LOOKS_KEPT = 4
SECOND = 1e9


class Observing:
    def __init__(self, processes: Processes, send: Callable[[Any], None]) -> None:
        self._processes, self._send = processes, send
        self._looked_at = 0.0
        self._sent: Dict[int, Any] = {}
        self._cpu: Dict[int, Deque[Tuple[float, float, float]]] = {}

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
        self._send_changes(process, "")
        self._cpu.pop(process.process_id, None)

    def cores(self, process: Process) -> Tuple[Optional[float], Optional[float]]:
        """How many cores a process, and its main thread alone, have used of late; None where that is not known yet."""
        samples = self._cpu.get(process.process_id)
        if not samples or samples[-1][0] - samples[0][0] < LOOK_EVERY / 2:
            return None, None
        (began, all_before, main_before), (ended, all_after, main_after) = samples[0], samples[-1]
        seconds = ended - began
        return round((all_after - all_before) / seconds, 2), round((main_after - main_before) / seconds, 2)

    def _look(self, process: Process, now: float) -> None:
        assert process.pid is not None
        status, main = read_status(process.pid), read_status(process.pid, process.pid)
        if status is None or main is None:
            return
        samples = self._cpu.setdefault(process.process_id, deque(maxlen=LOOKS_KEPT))
        samples.append((now, status.cpu, main.cpu))
        self._send_changes(process, "T" if status.state in "Tt" else "")

    def _send_changes(self, process: Process, state: str) -> None:
        record = process.record.read()
        if record is None and not state and process.process_id not in self._sent:
            return
        key = (record and (record.changes, record.step), state)
        if self._sent.get(process.process_id) != key:
            self._sent[process.process_id] = key
            self._send(wire.Observed(process.process_id, state, **(_fields(record) if record else {})))


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
