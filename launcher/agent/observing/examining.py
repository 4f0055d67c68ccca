"""Find out where every process is, while it goes on: its stacks, its processor time, what it waits for."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional

from hostmesh.launcher.agent.observing.connections import Connections
from hostmesh.launcher.agent.observing.looks import Observing
from hostmesh.launcher.agent.observing.proc import describe_wait, find_disk_wait, list_programs, read_status
from hostmesh.launcher.agent.processes.process import Process
from hostmesh.launcher.agent.processes.registry import Phase, Processes
from hostmesh.launcher.protocol import wire
from hostmesh.worker.identity import DUMP_SIGNAL

# A process that runs dumps its stacks within milliseconds; one that is stopped never does.
STACKS_TIMEOUT = 1.0
MAX_STACKS = 256 << 10


class Examining:
    def __init__(self, processes: Processes, observing: Observing, send: Callable[[Any], None]) -> None:
        self._processes, self._observing, self._send = processes, observing, send
        self._waiting: List[Process] = []  # for their stacks
        self._libraries: Dict[int, Optional[str]] = {}
        self._connections = Connections()
        self._until = 0.0

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def begin(self) -> None:
        if self.is_busy or self._processes.phase is not Phase.RUNNING:
            return
        self._connections = Connections()
        for process in self._processes:
            if process.is_alive:
                # Before the signal, which wakes the thread: it may not be back in its wait when its stacks are here.
                self._libraries[process.process_id] = self._observing.looks_at(process).stack.find_library()
                if process.can_dump:
                    process.empty_stacks()
                    process.signal(DUMP_SIGNAL)
                self._waiting.append(process)
        self._until = time.monotonic() + STACKS_TIMEOUT

    def go_on(self) -> None:
        if self._processes.phase is not Phase.RUNNING:
            self._waiting.clear()
        is_late = time.monotonic() > self._until
        for process in list(self._waiting):
            if is_late or not process.can_dump or not process.is_alive or process.stacks_are_whole():
                self._waiting.remove(process)
                if process.is_alive:
                    self._send(
                        wire.Examined(process.process_id, self._find(process), process.read_stacks()[:MAX_STACKS])
                    )

    def _find(self, process: Process) -> Dict[str, Any]:
        """Left out is what could not be found."""
        pid = process.pid
        assert pid is not None
        status, disk, looks = read_status(pid), find_disk_wait(pid), self._observing.looks_at(process)
        cores, main_cores = looks.cores()
        found: Dict[str, Any] = {
            "state": "D" if disk is not None else status.state if status is not None else "",
            "cores": cores,
            "main_cores": main_cores,
            "programs": list_programs(pid),
            "wait": describe_wait(pid, disk or pid),
            "library": self._libraries.pop(process.process_id, None) or looks.stack.find_library(),
            "connections": self._connections.list(pid),
        }
        record = process.record.read()
        if record is not None and record.read_since:
            reading = {"step": record.read_step, "row": record.read_row, "source": record.source}
            found["reading"] = {**reading, "place": record.read_place}
        return found
