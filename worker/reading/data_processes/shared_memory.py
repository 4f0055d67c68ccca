"""Memory for batches that data processes write into. It has no name, so nothing of it can be left behind."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import weakref
from dataclasses import dataclass

import numpy as np

from hostmesh.worker.assembly.buffers import Buffer
from hostmesh.worker.errors import DataError


@dataclass(frozen=True)
class Segment:
    """A piece of memory: its number, the file descriptor by which another process can map it, and its size."""

    number: int
    file: int
    size: int


class SharedMemory:
    """Gives buffers, and knows which of them exist still."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._segments: dict[int, Segment] = {}

    def allocate(self, size: int) -> Buffer:
        try:
            file = os.memfd_create("hostmesh batch")
            os.truncate(file, max(1, size))
            mapped = mmap.mmap(file, max(1, size))
        except OSError as error:
            raise DataError(f"no {size:,} bytes of shared memory for a batch: {error}") from error
        memory = np.frombuffer(mapped, np.uint8)
        with self._lock:
            segment = Segment(next(self._numbers), file, max(1, size))
            self._segments[segment.number] = segment
        weakref.finalize(memory, self._forget, segment).atexit = False
        return Buffer.of(memory, size, number=segment.number)

    def segment(self, number: int) -> Segment:
        return self._segments[number]

    def numbers(self) -> set[int]:
        """Of the segments that exist; a data process may forget all others."""
        with self._lock:
            return set(self._segments)

    def _forget(self, segment: Segment) -> None:
        """Its last array is gone. This may run in the middle of anything, so it must not wait for a lock."""
        self._segments.pop(segment.number, None)
        os.close(segment.file)
