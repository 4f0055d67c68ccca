"""What one program prints: a pipe that it cannot truncate, spooled to a file, read on in bounded chunks."""

from __future__ import annotations

import os

from launcher.agent.linux import enlarge_pipe, forget_beginning
from launcher.wire import TAIL_LENGTH

PIPE_SIZE = 1 << 20
CHUNK = 64 << 10
READS_AT_ONCE = 16
KEEP_SENT = 1 << 20
FORGET_EVERY = 16 << 20


class Output:
    """The program opens `path`, a named pipe, as its stdout and stderr.

    Were it a regular file, `echo w > /dev/stderr` in the program would truncate it. The agent empties the pipe into a
    file of its own, whether the launcher keeps up or not, so a slow link never holds the program up.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkfifo(path, 0o600)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        enlarge_pipe(self._pipe, PIPE_SIZE)
        self._spool = os.open(f"{path}.spool", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._size = self._sent = self._forgotten = 0
        self._last = b""
        self.dropped = 0  # bytes that found no room on this host's disk
        self.has_more = False  # the last collect() stopped at its bound
        self.has_writer = True  # somebody still has the pipe open

    def collect(self) -> None:
        """Empty the pipe into the spool; after a bound the other programs get their turn."""
        self.has_more = False
        for _ in range(READS_AT_ONCE):
            try:
                data = os.read(self._pipe, CHUNK)
            except BlockingIOError:
                self.has_writer = True
                return
            self.has_writer = bool(data)
            if not data:
                return
            self.add(data)
        self.has_more = True

    def add(self, data: bytes) -> None:
        self._last = (self._last + data)[-TAIL_LENGTH:]
        rest = memoryview(data)
        try:
            while rest:
                count = os.write(self._spool, rest)
                self._size += count
                rest = rest[count:]
        except OSError:
            self.dropped += len(rest)

    @property
    def is_sent(self) -> bool:
        return self._sent == self._size

    def read(self, most: int = CHUNK) -> bytes:
        """The next chunk of the spool, empty when the reader has caught up."""
        if self.is_sent:
            return b""
        data = os.pread(self._spool, min(most, CHUNK), self._sent)
        self._sent += len(data)
        if self._sent - self._forgotten > FORGET_EVERY:
            # A chatty program must not fill the host's disk with what the launcher has already.
            self._forgotten = self._sent
            forget_beginning(self._spool, self._sent - KEEP_SENT)
        return data

    def last(self) -> bytes:
        """What a verdict may quote: at most the last `TAIL_LENGTH` bytes."""
        self.collect()
        return self._last

    def collect_last(self) -> None:
        """For output that goes to nobody unless something is wrong."""
        self.collect()
        while self.read():
            pass
