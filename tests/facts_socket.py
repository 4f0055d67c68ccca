"""The agent's end of the socket to which a process sends facts, for tests that are the agent."""

from __future__ import annotations

import json
import socket
from typing import Any


class FactsSocket:
    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def facts(self) -> list[tuple[str, dict[str, Any]]]:
        """The name and the detail of each that has arrived since the last call."""
        found = []
        while True:
            try:
                fact = json.loads(self.socket.recv(1 << 17))
            except BlockingIOError:
                return found
            found.append((fact["name"], fact["detail"]))
