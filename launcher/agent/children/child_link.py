"""The agent's end of a socket to a child of its own: messages go in and out, and nothing blocks."""

from __future__ import annotations

import socket

from hostmesh.launcher.protocol import wire


class ChildLink:
    """`theirs` is the child's end, to be closed here once there is a child."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.decoder = wire.Decoder()
        self._outbox = bytearray()

    @property
    def waiting(self) -> int:
        """Bytes that the child has not taken."""
        return len(self._outbox)

    def give(self, message: object) -> None:
        self._outbox += wire.encode(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox[: 1 << 18])]
        except OSError:
            pass  # the socket is full; or the child is dead, which whoever reads will notice
