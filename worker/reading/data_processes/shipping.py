"""A source and the user's functions, packed for data processes: arrays are shared, mapped files are opened again."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, MissingPackageError
from hostmesh.worker.reading.data_processes.shared_memory import create_file
from hostmesh.worker.specs.packages import load

ALIGNMENT = 64


class Packed:
    """What is pickled, and a file without a name that holds the arrays, once for all data processes."""

    def __init__(self, data: bytes, arrays: Sequence[memoryview]) -> None:
        self.data = data
        self.sizes = [len(array) for array in arrays]
        self.file = create_file("hostmesh source")
        with os.fdopen(os.dup(self.file), "wb") as file:
            for array in arrays:
                file.write(array)
                file.write(bytes(-len(array) % ALIGNMENT))

    def close(self) -> None:
        os.close(self.file)


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
    arrays: list[memoryview] = []
    if sum(sizes):
        # Private: who writes into such an array changes a copy of his own.
        shared, start = memoryview(mmap.mmap(file, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)), 0
        for size in sizes:
            arrays.append(shared[start : start + size])
            start += size + -size % ALIGNMENT
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
