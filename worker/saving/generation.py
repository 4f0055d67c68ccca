"""One generation of snapshots: a file in memory whose seal is there only while all of it is."""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"hostmesh"
VERSION = 1
# Magic, version, where the header lies, how long it is, its checksum.
SEAL = struct.Struct("=8sIQQI")
# The seal is at the beginning, the data after it; the header follows the data.
DATA_AT = 4096
MODE = 0o600
# Once for all pages: one by one, at the first write to each, they would take three times as long. Linux only.
SHARED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class Generation:
    """The data is written through a mapping, which is three times as fast as system calls. Its memory is taken before:
    where there is too little that is an error, and not a signal in the middle of a copy.

    A process may be killed at any moment. `begin` breaks the seal before a byte of the data changes, and `seal` writes
    it when all bytes are there; what is read without a seal does not count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._mapped: NDArray[np.uint8] | None = None

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
        """A copy, of fewer bytes where the file ends sooner."""
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
        if self._mapped is None or len(self._mapped) != size:
            self._mapped = None
            if os.fstat(self._open()).st_size > size:
                os.ftruncate(self._open(), size)
            os.posix_fallocate(self._open(), 0, size)
            self._mapped = np.frombuffer(mmap.mmap(self._open(), size, flags=SHARED), np.uint8)

    def write(self, at: int, data: NDArray[np.uint8]) -> None:
        """Without the interpreter's lock, so that other threads go on."""
        assert self._mapped is not None, "begin comes first"
        self._mapped[at : at + len(data)] = data

    def seal(self, header: dict[str, Any], at: int) -> None:
        """With the header at the end of the data, the generation is whole."""
        text = json.dumps(header).encode()
        self._write_all(at, text)
        self._write_all(0, SEAL.pack(MAGIC, VERSION, at, len(text), zlib.crc32(text)))

    def drop(self) -> None:
        """What it held is not to be used any more. Its memory stays, for the next."""
        self._write_all(0, bytes(SEAL.size))

    def allocated(self) -> int:
        return self.path.stat().st_blocks * 512 if self.path.exists() else 0

    def close(self) -> None:
        self._mapped = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
        return self._file

    def _write_all(self, at: int, data: bytes) -> None:
        while data:
            count = os.pwrite(self._open(), data, at)
            data, at = data[count:], at + count
