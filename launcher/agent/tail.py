"""Follow the file one process writes its output to, in bounded pieces."""

from __future__ import annotations

import os

from launcher.agent.linux import forget_beginning

CHUNK = 64 << 10
KEEP_SENT = 1 << 20
FORGET_EVERY = 16 << 20


class Tail:
    def __init__(self, path: str) -> None:
        self.path = path
        self.offset = 0
        self._forgotten = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def read(self) -> bytes:
        """The next piece, empty when the reader has caught up."""
        data = os.pread(self._fd, CHUNK, self.offset)
        self.offset += len(data)
        if self.offset - self._forgotten > FORGET_EVERY:
            # A chatty process must not fill the host's disk with what the launcher has already.
            self._forgotten = self.offset
            forget_beginning(self._fd, self.offset - KEEP_SENT)
        return data

    def last(self, length: int) -> bytes:
        size = os.fstat(self._fd).st_size
        return os.pread(self._fd, length, max(0, size - length))

    def close(self) -> None:
        os.close(self._fd)
