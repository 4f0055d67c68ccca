"""The log of a process: its output in a file, without secrets, and how far that has been shown."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol

from hostmesh.launcher.output.lines import LineCutter
from hostmesh.launcher.output.redact import Redactor

CHUNK = 64 * 1024  # bytes of a log that are read before the next log has its turn
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


class ShownLog(Protocol):
    """What a screen needs to know of a log."""

    @property
    def path(self) -> Path: ...
    @property
    def start(self) -> int:
        """Where to begin, in bytes."""

    @property
    def size(self) -> int:
        """Bytes in the file that may be shown."""

    @property
    def reach(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def error(self) -> OSError | None: ...
    def take_spill(self, count: int) -> bytes: ...


class LogPosition(NamedTuple):
    """How much of a log had been written when a note was made."""

    tail: LogTail
    size: int  # in bytes
    ended: bool

    def is_passed(self) -> bool:
        return self.tail.is_over or (not self.ended and self.tail.position >= self.size)


class LogTail:
    """How far one log has been shown, and its next lines."""

    def __init__(self, log: ShownLog, label: str, process_id: int, cutter: LineCutter) -> None:
        self.log = log
        self.label = label
        self.process_id = process_id
        self.cutter = cutter
        self.position = log.start  # bytes that have been shown
        self.limit = sys.maxsize  # bytes that may be shown
        self.is_flushed = False  # the log has ended, and its last half line has been shown

    @property
    def has_more(self) -> bool:
        """Whether there is something to show now: bytes, or the half line at the end of the log."""
        ended = self.log.ended  # read before its reach: an ended log does not grow
        return self.position < min(self.log.reach, self.limit) or self._must_flush(ended)

    @property
    def is_behind(self) -> bool:
        return self.position + CHUNK < min(self.log.reach, self.limit)

    @property
    def is_over(self) -> bool:
        """Whether all has been shown that ever will be."""
        return self.is_flushed or self.position >= self.limit

    def mark(self) -> LogPosition:
        ended = self.log.ended  # read before its reach: an ended log does not grow
        return LogPosition(self, min(self.log.reach, max(self.limit, self.position)), ended)

    def advance(self) -> list[str]:
        """The next lines, from no more than a chunk of the log."""
        ended = self.log.ended  # read before its reach: an ended log does not grow
        size = min(self.log.reach, self.limit)
        if self.position < size:
            return self._read(min(CHUNK, size - self.position))
        if self._must_flush(ended):
            self.is_flushed = True
            return self.cutter.flush()
        return self.cutter.feed(b"") if self.cutter.due is not None else []

    def _must_flush(self, ended: bool) -> bool:
        return ended and not self.is_over

    def _read(self, count: int) -> list[str]:
        if self.log.error is not None and self.position >= self.log.size:
            data = self.log.take_spill(count)  # what the disk does not take
            self.position += len(data)
            return self.cutter.feed(data)
        count = min(count, self.log.size - self.position)
        # Opened for each chunk: one more open file for each process would soon be too many.
        try:
            with open(self.log.path, "rb", buffering=0) as file:
                file.seek(self.position)
                data = file.read(count)
            reason = "it was cut short"
        except OSError as error:
            data, reason = b"", str(error.strerror)
        if data:
            self.position += len(data)
            return self.cutter.feed(data)
        self.position = sys.maxsize  # nothing more is read
        return [*self.cutter.flush(), f"(the rest cannot be shown: {self.log.path}: {reason})"]
