"""Writes each process's bytes into its file."""

from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from launcher.redact import Redactor


class ProcessLog:
    """One process's output, redacted and otherwise unchanged.

    Writing never raises: the first error is kept, and what comes after it is dropped and counted.
    """

    def __init__(self, path: Path, secrets: Iterable[str]) -> None:
        self.path = path
        self.error: OSError | None = None
        self.dropped = 0
        self.ended = False
        self._redactor = Redactor(secrets)
        self._file = FileIO(path, "ab")
        self.start = self.size = self._file.tell()  # an earlier attempt may have written to the same file

    def write(self, data: bytes) -> None:
        if self.ended or self.error:
            self.dropped += len(data)
        else:
            self._put(self._redactor.feed(data))

    def close(self) -> None:
        if self.ended:
            return
        self._put(self._redactor.flush())
        try:
            self._file.close()
        except OSError as error:  # network file systems report a full disk only here
            self.error = self.error or error
        self.ended = True  # last: whoever sees it knows that size is final

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self.error:
                count = self._file.write(rest)
                self.size += count
                rest = rest[count:]
        except OSError as error:
            self.error = error
        self.dropped += len(rest)
