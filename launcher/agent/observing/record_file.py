"""The file in which a process keeps its record; the agent makes it, and reads it whenever it likes."""

from __future__ import annotations

import os
from typing import Optional

from hostmesh.worker.recording.record import SIZE, Record, parse_record


class RecordFile:
    """It is there before its process starts, and stays when that has ended."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: Optional[int] = None

    def make(self) -> None:
        """Nothing depends on it, so a full disk is no reason not to start."""
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.posix_fallocate(self._file, 0, SIZE)  # a store into a page that the disk has no room for is SIGBUS
        except OSError:
            self._close()

    def read(self) -> Optional[Record]:
        """None until the process has begun it."""
        if self._file is None:
            return None
        try:
            return parse_record(os.pread(self._file, SIZE, 0))
        except (OSError, ValueError):
            return None

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            os.truncate(self.path, 0)
            self._file = None
