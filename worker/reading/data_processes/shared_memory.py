"""Memory for batches that data processes write into. It has no name, so nothing of it can be left behind."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hostmesh.worker.assembly.buffers import Buffer
from hostmesh.worker.errors import DataError
from hostmesh.worker.reading.data_processes.memory_file import create_file

PAGE = mmap.ALLOCATIONGRANULARITY
# Of addresses: memory is taken once something is written there.
SMALLEST_EXTENT = 1 << 26


@dataclass(frozen=True)
class Extent:
    """A part of the file that is mapped as a whole."""

    start: int
    size: int
    mapped: mmap.mmap


class SharedMemory:
    """Gives buffers, each a range of one file, which data processes know by its start.

    The file is mapped in extents that double, and each costs a descriptor in every process that maps it. So there are
    few, however many arrays a batch has and however many batches are kept.
    """

    def __init__(self) -> None:
        self.file = create_file("hostmesh batches")
        weakref.finalize(self, os.close, self.file).atexit = False
        self._lock = threading.Lock()
        self._extents: list[Extent] = []
        self._end = 0  # of what was given out ever
        self._free: defaultdict[int, list[tuple[Extent, int]]] = defaultdict(list)  # ranges to give again, by size

    @property
    def extents(self) -> list[tuple[int, int]]:
        """The start and size of each."""
        return [(extent.start, extent.size) for extent in self._extents]

    def allocate(self, size: int) -> Buffer:
        needed = max(PAGE, size + -size % PAGE)
        try:
            with self._lock:
                extent, start = self._find(needed)
        except OSError as error:
            raise DataError(f"no {size:,} bytes of shared memory for a batch: {error}") from error
        memory = np.frombuffer(extent.mapped, np.uint8, needed, start - extent.start)
        weakref.finalize(memory, release, extent, start, needed, self._free[needed].append).atexit = False
        return Buffer.of(memory, size, number=start)

    def _find(self, size: int) -> tuple[Extent, int]:
        with suppress(IndexError):
            return self._free[size].pop()
        if not self._extents or self._end + size > self._extents[-1].start + self._extents[-1].size:
            self._grow(size)
        start = self._end
        self._end += size
        return self._extents[-1], start

    def _grow(self, size: int) -> None:
        start = sum(extent.size for extent in self._extents)
        size = max(size, start, SMALLEST_EXTENT)
        os.truncate(self.file, start + size)
        self._extents.append(Extent(start, size, mmap.mmap(self.file, size, offset=start)))
        self._end = start


def release(extent: Extent, start: int, size: int, keep: Callable[[tuple[Extent, int]], None]) -> None:
    """The last array of a range is gone. This may run in the middle of anything, so it must not wait for a lock."""
    with suppress(OSError):  # where memory is locked it stays until the range is given again
        extent.mapped.madvise(mmap.MADV_REMOVE, start - extent.start, size)
    keep((extent, start))
