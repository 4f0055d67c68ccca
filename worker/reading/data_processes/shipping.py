"""A source and the user's functions, packed for data processes: arrays are shared, mapped files are opened again."""

from __future__ import annotations

import hashlib
import io
import itertools
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, MissingPackageError
from hostmesh.worker.reading.data_processes.memory_file import create_file
from hostmesh.worker.specs.packages import load

ALIGNMENT = 64
# Bytes of arrays that are compared at once.
CHUNK = 1 << 24


@dataclass(frozen=True)
class Packed:
    """What is pickled, and the arrays that are sent beside it."""

    data: bytes
    arrays: Sequence[memoryview]

    @property
    def sizes(self) -> list[int]:
        return [len(array) for array in self.arrays]

    def write(self) -> int:
        """A file without a name that holds the arrays, once for all data processes."""
        written = create_file("hostmesh source")
        with os.fdopen(os.dup(written), "wb") as file:
            for array in self.arrays:
                file.write(array)
                file.write(bytes(-len(array) % ALIGNMENT))
        return written


class Shipped:
    """What data processes have got."""

    def __init__(self, source: str, packed: Packed) -> None:
        try:
            self.file = packed.write()
        except OSError as error:
            size = sum(packed.sizes)
            raise DataError(f"no {size:,} bytes of shared memory for the arrays of {source}: {error}") from error
        self._digest, self._sizes = digest(packed), packed.sizes

    def is_still(self, packed: Packed) -> bool:
        """A user may have changed an array, or something in a `map`, since."""
        if (digest(packed), packed.sizes) != (self._digest, self._sizes):
            return False
        if not sum(self._sizes):
            return True
        shared = np.frombuffer(mmap.mmap(self.file, 0, access=mmap.ACCESS_READ), np.uint8)
        return all(
            np.array_equal(np.frombuffer(array, np.uint8, len(part), at), part)
            for array, start in zip(packed.arrays, find_starts(self._sizes), strict=True)
            for at in range(0, len(array), CHUNK)
            for part in [shared[start + at : start + min(at + CHUNK, len(array))]]
        )

    def close(self) -> None:
        file, self.file = self.file, -1
        if file != -1:
            os.close(file)


def digest(packed: Packed) -> bytes:
    return hashlib.blake2b(packed.data).digest()


def find_starts(sizes: Sequence[int]) -> list[int]:
    """Where each array begins in the file."""
    return list(itertools.accumulate((size + -size % ALIGNMENT for size in sizes), initial=0))[:-1]


def pack(thing: Any, what: str) -> Packed:
    buffers: list[pickle.PickleBuffer] = []
    packed = io.BytesIO()
    try:
        make_pickler(packed, buffers.append).dump(thing)
    except MissingPackageError:
        raise
    except Exception as error:
        raise DataError(
            f"{what} cannot be given to data processes: {type(error).__name__}: {error};"
            " wanted one that can be pickled (open files and connections when they are first used), or workers=N"
        ) from error
    return Packed(packed.getvalue(), [buffer.raw() for buffer in buffers])


def unpack(data: bytes, file: int, sizes: Sequence[int]) -> Any:
    if sum(sizes):
        # Private: who writes into such an array changes a copy of his own.
        shared = memoryview(mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        arrays = [shared[start : start + size] for start, size in zip(find_starts(sizes), sizes, strict=True)]
    else:
        arrays = [memoryview(b"") for _ in sizes]
    os.close(file)
    return pickle.loads(data, buffers=arrays)


def make_pickler(file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], Any]) -> Any:
    """Functions of the main program are packed by value. An array of a mapped file is not copied but mapped again."""
    cloudpickle = load("cloudpickle", "cloudpickle", "processes", "processes=N")

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, np.ndarray) and (mapped := find_mapped_file(obj)) is not None:
                return map_again, (str(mapped.filename), obj.dtype, find_offset(obj, mapped), obj.shape)
            return super().reducer_override(obj)

    return Pickler(file, protocol=5, buffer_callback=keep)


def find_mapped_file(array: NDArray[Any]) -> np.memmap[Any, Any] | None:
    """The mapped file that a contiguous array lies in, where it lies in one."""
    if not array.flags.c_contiguous or array.dtype.hasobject:
        return None
    base: Any = array
    found = None
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            found = base  # the outermost is the whole file
        base = base.base
    return found


def find_offset(array: NDArray[Any], mapped: np.memmap[Any, Any]) -> int:
    first: int = mapped.__array_interface__["data"][0]
    own: int = array.__array_interface__["data"][0]
    return int(mapped.offset) + own - first


def map_again(path: str, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
    return np.asarray(np.memmap(path, dtype, "r", offset, shape))
