"""The arrays or files behind a source, and fingerprints of all of their bytes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.loading.rows import leaves
from hostmesh.worker.process.machine import machine_id

# Bytes that are read at a time: so many that a file has a few dozen such pieces, up to the second number.
MIN_PIECE, PIECE = 1 << 16, 1 << 20
PIECES = 64
# Fingerprints that are kept of one array or file, and of all of them.
SECTIONS, MAX_SECTIONS = 64, 1 << 12
# Content in memory up to the first limit is compared when a loader is made, any other while it is used. Beyond the
# second limit only every second, third, … chunk is read.
MAX_AT_ONCE = 128 << 20
MAX_READ = 4 << 30
# Filesystems on which one file is the same for all hosts that mount it.
SHARED = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "fuse.glusterfs", "9p"}

Pause: TypeAlias = Callable[[], None]
# For each array or file the fingerprints of its sections.
Sections: TypeAlias = list[list[str]]


def no_pause() -> None:
    """Reads at full speed."""


@dataclass(frozen=True)
class Stored:
    """One array or file behind a source; `read(start, stop)` gives some of its rows, which in a file are bytes.

    Record n begins at the byte `records[0]` + n × `records[1]`, where that is known. `stamp()` is another one when what
    is stored may have changed; there is none where only reading tells. Of a file in a store `read` gives the store's
    word of its version instead of bytes, and `behind` has the bytes.
    """

    name: str
    rows: int
    row_size: int
    read: Callable[[int, int], Any]
    file: str | None = None
    in_memory: bool = False
    records: tuple[int, int] | None = None
    stamp: Callable[[], list[Any] | None] = lambda: None
    behind: Stored | None = None

    @property
    def size(self) -> int:
        return self.rows * self.row_size

    def sections(self, count: int, every: int, pause: Pause = no_pause) -> list[str]:
        """Fingerprints of so many neighbouring sections at most, made of every n-th piece.

        `pause` is called after each piece, so that other threads get their turn.
        """
        rows, pieces = self._split(every)
        crcs = [0] * min(count, pieces)
        for number in range(pieces):
            start = number * rows * every
            section = number * len(crcs) // pieces
            crcs[section] = fingerprint_bytes(self.read(start, min(self.rows, start + rows)), crcs[section])
            pause()
        return [f"{crc:08x}" for crc in crcs]

    def section_bounds(self, number: int, of: int, every: int) -> tuple[int, int]:
        """The first byte of a section, and that after its last."""
        rows, pieces = self._split(every)
        start, stop = -(-number * pieces // of), -(-(number + 1) * pieces // of)
        return start * rows * every * self.row_size, min(self.size, stop * rows * every * self.row_size)

    def count_pieces(self, every: int) -> int:
        return self._split(every)[1]

    def _split(self, every: int) -> tuple[int, int]:
        """Rows of a piece, and how many pieces are read."""
        wanted = min(PIECE, max(MIN_PIECE, self.size // PIECES))
        rows = max(1, wanted // max(1, self.row_size))
        return rows, -(-self.rows // (rows * every))


@dataclass(frozen=True)
class Content:
    """All that is stored behind a source, in an order that is the same on every process."""

    stored: tuple[Stored, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """A data process has none: its owner compares what is stored."""
        return _no_content, ()

    @cached_property
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

    @cached_property
    def every(self) -> int:
        """Of very much every second, third, … piece is read."""
        return -(-self.size // MAX_READ) or 1

    def read_all(self, pause: Pause = no_pause) -> Sections:
        """Of each array or file the fingerprints of its sections, which together are of all bytes."""
        return [one.sections(self.max_sections, self.every, pause) for one in self.stored]

    @property
    def max_sections(self) -> int:
        """Of one array or file."""
        return max(1, min(SECTIONS, MAX_SECTIONS // max(1, len(self.stored))))

    def name_fingerprints(self, sections: Sections) -> list[tuple[str, str]]:
        """A name and one fingerprint for each array or file."""
        found = zip(self.stored, sections, strict=True)
        return [
            (one.name, f"{one.size:,} bytes {'' if one.behind is None else 'of version '}{combine(crcs)}")
            for one, crcs in found
        ]

    def fingerprints(self) -> list[tuple[str, str]]:
        return self.name_fingerprints(self.read_all())


def _no_content() -> None:
    return None


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
        tuple(
            Stored(name, size, 1, _reader(path), path, stamp=lambda path=path: stamp_files([path]))  # type: ignore[misc]
            for name, size, path in zip(names, sizes, paths, strict=True)
        )
    )


def stamp_files(paths: Sequence[str]) -> list[Any] | None:
    """Another one when a file was written or replaced; None where one cannot be asked."""
    try:
        found = [os.stat(path) for path in paths]
    except OSError:
        return None
    return [number for one in found for number in (one.st_ino, one.st_size, one.st_mtime_ns)]


def _of_array(name: str, array: NDArray[Any]) -> Stored:
    row_size = array[:1].nbytes
    records = (0, row_size) if row_size else None
    found = Stored(name, len(array), row_size, lambda start, stop: array[start:stop], records=records)
    mapped = _find_map(array)
    if mapped is None:
        return replace(found, in_memory=True)
    file = mapped.filename
    return found if file is None else replace(found, stamp=lambda: stamp_files([str(file)]))


def _find_map(array: Any) -> np.memmap[Any, Any] | None:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return array
        array = array.base
    return None


def _reader(path: str) -> Callable[[int, int], bytes]:
    def read(start: int, stop: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)

    return read


def fingerprint_bytes(rows: Any, crc: int = 0) -> int:
    return zlib.crc32(_as_bytes(rows), crc)  # which releases the interpreter's lock


def combine(fingerprints: Sequence[str]) -> str:
    """Of one alone it is that one."""
    return fingerprints[0] if len(fingerprints) == 1 else f"{zlib.crc32(' '.join(fingerprints).encode()):08x}"


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
