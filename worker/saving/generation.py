"""One generation of snapshots: a file in memory whose seal is there only while all of it is."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

MAGIC = b"hostmesh"
VERSION = 1
# Magic, version, where the header lies, how long it is, its checksum.
SEAL = struct.Struct("=8sIQQI")
# The seal is at the beginning, the data after it; the header follows the data.
DATA_AT = 4096
MODE = 0o600


class Generation:
    """Written with system calls and not through a mapping: where memory is short that is an error, and no signal.

    A process may be killed between any two calls. `begin` breaks the seal before a byte of the data changes, and `seal`
    writes it when all bytes are there; what is read without a seal does not count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def read_header(self) -> dict[str, Any] | None:
        """What the generation holds; None where there is nothing whole."""
        if not self.path.exists():
            return None
        packed = os.pread(self._open(), SEAL.size, 0)
        if len(packed) < SEAL.size:
            return None
        magic, version, at, size, checksum = SEAL.unpack(packed)
        if magic != MAGIC or version != VERSION or not size:
            return None
        text = self.read(at, size)
        if len(text) != size or zlib.crc32(text) != checksum:
            return None
        header: dict[str, Any] = json.loads(text)
        return header

    def read(self, at: int, size: int) -> bytearray:
        """Fewer bytes where the file ends sooner."""
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size and (count := os.preadv(self._open(), [view[done:]], at + done)):
            done += count
        view.release()
        del data[done:]
        return data

    def begin(self, size: int) -> None:
        """Break the seal, and take memory for data up to that place in the file."""
        self.drop()
        found = os.fstat(self._open())
        if found.st_size > size:
            os.ftruncate(self._open(), size)  # the last header, or more data than there is now
        if found.st_blocks * 512 < size:
            os.posix_fallocate(self._open(), 0, size)

    def write(self, at: int, data: Any) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            count = os.pwrite(self._open(), rest, at)
            rest, at = rest[count:], at + count

    def seal(self, header: dict[str, Any], at: int) -> None:
        """With the header at the end of the data, the generation is whole."""
        text = json.dumps(header).encode()
        self.write(at, text)
        self.write(0, SEAL.pack(MAGIC, VERSION, at, len(text), zlib.crc32(text)))

    def drop(self) -> None:
        """What it held is not to be used any more. Its memory stays, for the next."""
        self.write(0, bytes(SEAL.size))

    def allocated(self) -> int:
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        return self._file
