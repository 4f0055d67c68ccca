"""What one program prints: it writes to a pipe, the agent reads in bounded chunks and spools what must wait."""

from __future__ import annotations

import os

from hostmesh.launcher.agent.files import remove_file
from hostmesh.launcher.agent.linux import enlarge_pipe, forget_beginning
from hostmesh.launcher.protocol.wire import TAIL_LENGTH

PIPE_SIZE = 1 << 20
CHUNK = 256 << 10
READS_AT_ONCE = 16
KEEP_SENT = 1 << 20
FORGET_EVERY = 16 << 20


class Output:
    """The program opens `path`, a named pipe, as its stdout and stderr.

    Were it a regular file, `echo w > /dev/stderr` in the program would truncate it. What the launcher does not take at
    once the agent moves from the pipe to a file of its own, so a slow link never holds the program up.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        enlarge_pipe(self._pipe, PIPE_SIZE)
        self._spool = os.open(f"{path}.spool", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._size = self._sent = self._forgotten = 0  # of the spool
        self._last = b""
        self.dropped = 0  # bytes that found no room on this host's disk
        self.has_more = False  # the pipe may hold more than was taken from it
        self.has_writer = True  # somebody still has the pipe open

    def read(self, most: int = CHUNK) -> bytes:
        """The next chunk, empty when the reader has caught up."""
        if self._sent < self._size:
            return self._read_spool(most)
        data = self._read_pipe(most)
        self._keep_last(data)
        return data

    def collect(self) -> None:
        """Move what the pipe holds to the spool, up to a bound, so that other programs get their turn."""
        for _ in range(READS_AT_ONCE):
            if not (data := self._read_pipe(CHUNK)):
                return
            self.add(data)

    def skim(self) -> None:
        """Read and drop: of this output only what `last` returns may matter."""
        for _ in range(READS_AT_ONCE):
            if not self.read():
                return

    def add(self, data: bytes) -> None:
        self._keep_last(data)
        rest = memoryview(data)
        try:
            while rest:
                count = os.write(self._spool, rest)
                self._size += count
                rest = rest[count:]
        except OSError:
            self.dropped += len(rest)

    def last(self) -> bytes:
        """The last bytes that were printed, at most `TAIL_LENGTH`; the launcher quotes them when the process failed."""
        self.collect()
        return self._last

    @property
    def is_sent(self) -> bool:
        """`read` has returned all that was taken from the pipe."""
        return self._sent == self._size

    def close(self) -> None:
        """Read no more from the pipe, whoever still writes to it."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1
        self.has_more = self.has_writer = False

    def remove(self) -> None:
        """All of it was sent, and nobody writes to it any more."""
        self.close()
        os.close(self._spool)
        for path in (self.path, f"{self.path}.spool"):
            remove_file(path)

    def _read_pipe(self, most: int) -> bytes:
        if self._pipe < 0:
            return b""
        try:
            data = os.read(self._pipe, min(most, CHUNK))
            self.has_writer = bool(data)
        except BlockingIOError:
            data = b""
            self.has_writer = True
        self.has_more = bool(data)
        return data

    def _read_spool(self, most: int) -> bytes:
        data = os.pread(self._spool, min(most, CHUNK), self._sent)
        self._sent += len(data)
        if self._sent - self._forgotten > FORGET_EVERY:
            # A program that prints much must not fill the host's disk with what the launcher has already.
            self._forgotten = self._sent
            forget_beginning(self._spool, self._sent - KEEP_SENT)
        return data

    def _keep_last(self, data: bytes) -> None:
        self._last = data[-TAIL_LENGTH:] if len(data) >= TAIL_LENGTH else (self._last + data)[-TAIL_LENGTH:]
