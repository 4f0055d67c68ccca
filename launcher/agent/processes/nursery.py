"""The agent's end of the nursery: start it, order workers from it, hear what became of them."""

from __future__ import annotations

import enum
import json
import os
import socket
from typing import Any, Dict, List, Optional

from hostmesh.launcher.agent.children.spawn import explain_start, read_exec_error, spawn

# A worker writes its own command over the nursery's, for `ps` to show, and cannot write beyond its end. So the
# nursery's is made longer by so many spaces.
ROOM = 2000


class NurseryState(enum.Enum):
    IMPORTING = "it imports jax and the preloaded modules"
    READY = "it forks workers"
    FAILED = "it ended, or could not import something"


class Nursery:
    def __init__(
        self, python: str, start: str, env: Dict[str, str], folder: Optional[str], output: str, preload: List[str]
    ) -> None:
        self.state = NurseryState.IMPORTING
        self.channel, other = socket.socketpair()
        self._buffer = b""
        self._program, self._env = python, env
        try:
            argv = [python, start, "--nursery", str(other.fileno()), " " * ROOM, *preload]
            self.pid, self._exec_report = spawn(argv, env, folder, output, keep=other.fileno())
        finally:
            other.close()

    def order(self, process_id: int, argv: List[str], env: Dict[str, str], output: str) -> None:
        line = json.dumps({"process_id": process_id, "argv": argv, "env": env, "output": output})
        self.channel.sendall(line.encode() + b"\n")

    def hear(self) -> Optional[List[Dict[str, Any]]]:
        """Its messages; None when it has hung up."""
        try:
            data = self.channel.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def fail(self) -> None:
        self.state = NurseryState.FAILED
        self.channel.close()

    def explain_end(self, code: int) -> str:
        """Only once it is dead: whether its program was executed is known then."""
        error = read_exec_error(self._exec_report)
        if error is not None:
            return f"{self._program} cannot be started: {explain_start(error, self._env)}"
        return f"it was killed by signal {-code}" if code < 0 else f"it exited with {code}"


def start_file(folder: str) -> str:
    return os.path.join(folder, "code", "start.py")
