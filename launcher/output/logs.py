"""The log of a process: its output in a file, without secrets."""

import threading
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from hostmesh.launcher.output.redact import Redactor

# Bytes that are kept for the screen when they cannot be written.
MAX_SPILL = 256 << 10


class ProcessLog:
    """One process's output, redacted and otherwise unchanged.

    Neither opening nor writing raises: the first error is kept, and what comes after it is dropped and counted. Some of
    that is kept as the spill, so that a screen can show it: the spill begins where the file ends, at `size`.
    """

    def __init__(self, path: Path, secrets: Iterable[str]) -> None:
        self.path = path
        self.error: OSError | None = None
        self.dropped = 0
        self.ended = False
        self._redactor = Redactor(secrets)
        self._file: FileIO | None = None
        self._spill = bytearray()
        self._spilled = 0  # bytes of the spill that were taken
        self._lock = threading.Lock()
        self.start = self.size = 0
        try:
            self._file = FileIO(path, "ab")
            self.start = self.size = self._file.tell()  # an earlier attempt may have written to the same file
        except OSError as error:
            self.error = error

    @property
    def reach(self) -> int:
        """How far there is something to show."""
        with self._lock:
            return self.size + self._spilled + len(self._spill)

    def write(self, data: bytes) -> None:
        if self.ended:
            self.dropped += len(data)
        else:
            self._put(self._redactor.feed(data))

    def close(self) -> None:
        if self.ended:
            return
        self._put(self._redactor.flush())
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # network file systems report a full disk only here
            self.error = self.error or error
        self.ended = True  # last: whoever sees it knows that size is final

    def take_spill(self, count: int) -> bytes:
        """The next bytes that could not be written; they are kept no longer."""
        with self._lock:
            data = bytes(self._spill[:count])
            del self._spill[:count]
            self._spilled += len(data)
        return data

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self.error and self._file is not None:
                count = self._file.write(rest)
                self.size += count
                rest = rest[count:]
        except OSError as error:
            self.error = error
        self.dropped += len(rest)
        if rest:
            with self._lock:
                self._spill += rest[: max(0, MAX_SPILL - len(self._spill))]
