"""What is appended to a file on a shared folder, copied to a stream."""

from __future__ import annotations

from pathlib import Path
from typing import IO

CHUNK = 1 << 16


class Tail:
    def __init__(self, path: Path, to: IO[bytes]) -> None:
        self._path, self._to, self._at = path, to, 0

    def copy(self) -> bool:
        """Whether there was anything. It is opened anew each time: a network file system then looks for itself."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(CHUNK)
        except OSError:
            return False  # not there yet
        self._at += len(data)
        if data:
            self._to.write(data)
            self._to.flush()
        return bool(data)
