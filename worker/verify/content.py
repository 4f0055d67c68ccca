"""The arrays or files behind a source, and fingerprints of all of their bytes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.loading.rows import leaves
from hostmesh.worker.process.machine import machine_id

CHUNK = 1 << 20
# Content in memory up to the first limit is compared when a loader is made, any other while it is used. Beyond the
# second limit only every second, third, … chunk is read.
MAX_AT_ONCE = 128 << 20
MAX_READ = 4 << 30
# Filesystems on which one file is the same for all hosts that mount it.
SHARED = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "fuse.glusterfs", "9p"}

Pause = Callable[[], None]


@dataclass(frozen=True)
class Stored:
    """One array or file behind a source; `read(start, stop)` gives some of its rows."""

    name: str
    rows: int
    row_size: int
    read: Callable[[int, int], Any]
    file: str | None = None
    in_memory: bool = False

    @property
    def size(self) -> int:
        return self.rows * self.row_size

    def fingerprint(self, every: int, pause: Pause) -> str:
        """Of every n-th chunk of a megabyte; `pause` is called after each, so that other threads get their turn."""
        crc, rows = 0, max(1, CHUNK // max(1, self.row_size))
        for start in range(0, self.rows, rows * every):
            # crc32 releases the interpreter's lock.
            crc = zlib.crc32(_as_bytes(self.read(start, min(self.rows, start + rows))), crc)
            pause()
        return f"{self.size:,} bytes {crc:08x}"


@dataclass(frozen=True)
class Content:
    """All that is stored behind a source, in an order that is the same on every process."""

    stored: tuple[Stored, ...]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.stored)

    @cached_property
    def is_quick(self) -> bool:
        return self.size <= MAX_AT_ONCE and all(one.in_memory for one in self.stored)

    @cached_property
    def location(self) -> str | None:
        """Equal on processes that read the very same files; None where that is not known."""
        files = [_identify(one.file) if one.file else None for one in self.stored]
        return None if None in files else f"{zlib.crc32(repr(files).encode()):08x} {files[0]}"

    def with_array(self, name: str, array: NDArray[Any]) -> Content:
        return Content((*self.stored, _of_array(name, array)))

    def fingerprints(self, pause: Pause = lambda: None) -> Iterator[tuple[str, str]]:
        every = -(-self.size // MAX_READ) or 1
        return ((one.name, one.fingerprint(every, pause)) for one in self.stored)


def of_arrays(block: Any) -> Content | None:
    """None where there is only text or other objects, which have no bytes that could be compared."""
    arrays = [(path or "records", array) for path, array in leaves(block) if not array.dtype.hasobject]
    return Content(tuple(_of_array(name, array) for name, array in arrays)) if arrays else None


def of_files(paths: Sequence[str]) -> Content | None:
    """None unless all paths are ordinary files."""
    if not paths or not all(os.path.isfile(path) for path in paths):
        return None
    names = (
        [os.path.basename(path) for path in paths] if len(set(map(os.path.basename, paths))) == len(paths) else paths
    )
    sizes = map(os.path.getsize, paths)
    return Content(
        tuple(Stored(name, size, 1, _reader(path), path) for name, size, path in zip(names, sizes, paths, strict=True))
    )


def _of_array(name: str, array: NDArray[Any]) -> Stored:
    row_size = array[:1].nbytes
    return Stored(name, len(array), row_size, lambda start, stop: array[start:stop], None, not _is_mapped(array))


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def _reader(path: str) -> Callable[[int, int], bytes]:
    def read(start: int, stop: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    return read


def _as_bytes(rows: Any) -> Any:
    return rows if isinstance(rows, bytes) else np.ascontiguousarray(rows).reshape(-1).view(np.uint8)


def _identify(path: str) -> list[Any] | None:
    """What tells a file from all others, on whichever host it is asked. None where that is not known."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    version = [found.st_ino, found.st_size, found.st_mtime_ns]
    if shared := _shared_mount(found.st_dev):
        return [shared, *version]
    machine = machine_id()
    return None if machine is None else [machine, found.st_dev, *version]


@cache
def _shared_mount(device: int) -> str | None:
    """`server:/export`, where a filesystem is one that many hosts mount."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == wanted and kind.split()[0] in SHARED:
            return kind.split()[1]
    return None
