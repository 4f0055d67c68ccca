"""The socket to which processes send facts about themselves."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Callable, Dict

from hostmesh.launcher.agent.processes.deliveries import DELIVERED, Deliveries
from hostmesh.launcher.agent.processes.process import Boot, Process
from hostmesh.launcher.protocol import wire
from hostmesh.worker.identity import QUESTIONS

# More than the socket holds: whoever sends without end cannot keep the agent from its other duties.
FACTS_AT_ONCE = 1000
# Facts that count only if the process itself sends them: a child that it forked may crash, or compute, without
# consequences for the run.
OF_ITSELF = ("crash", "ran_separately", "loading", DELIVERED, "row parts", "rows", "rows again")
# A program that walks through a deeper one would run out of stack.
MAX_FACT_DEPTH = 32


def ask(folder: str, process_id: int, question: Dict[str, Any]) -> None:
    """A process that does not listen, or is busy, is not waited for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        try:
            channel.sendto(json.dumps(question).encode(), os.path.join(folder, f"{QUESTIONS}-{process_id}"))
        except OSError:
            pass


def facts_path(folder: str) -> str:
    return os.path.join(folder, "facts")


class Facts:
    """Each datagram is the JSON of one fact. Facts wait in the socket until `hear` is called."""

    def __init__(self, folder: str, processes: Dict[int, Process], send: Callable[[Any], None]) -> None:
        self._processes, self._send = processes, send
        self.any_saves = False  # a process has said that it saves when it is asked to stop
        self.deliveries = Deliveries(folder, send)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(facts_path(folder))
        self.socket.setblocking(False)

    def hear(self) -> None:
        for _ in range(FACTS_AT_ONCE):
            try:
                data = self.socket.recv(1 << 17)
            except (BlockingIOError, InterruptedError):
                return
            try:
                self._note(**json.loads(data))
            except (ValueError, KeyError, TypeError, RecursionError):
                continue  # any process of the run may write here, in any way it likes

    def _note(self, name: str, process_id: int, pid: int, detail: Dict[str, Any], dropped: int = 0) -> None:
        """`dropped` is how many facts the process has given up sending so far."""
        process = self._processes[process_id]
        is_its_own = process.pid in (pid, None)
        if is_its_own:
            process.dropped_facts = max(process.dropped_facts, int(dropped))
        if name == "hello":
            process.boot = Boot.BEGAN if is_its_own else Boot.CHILD_BEGAN
        elif name == "leaving":
            pass  # it is sent only for the sake of `dropped`
        elif is_its_own or name not in OF_ITSELF:
            self.any_saves = self.any_saves or name == "saves_when_stopped"
            if is_deeper(detail, MAX_FACT_DEPTH):
                detail = {"problem": f"what it said was nested more than {MAX_FACT_DEPTH} deep"}
            if name == DELIVERED:
                self.deliveries.add(process_id, dict(detail))
            else:
                self._send(wire.Fact(str(name), process_id, dict(detail)))


def is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(is_deeper(each, depth - 1) for each in inner)
