"""Copies of host arrays in buffers that are used again, and global arrays made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

try:
    from jax._src.interpreters.pxla import batched_device_put
except ImportError:  # another jax
    batched_device_put = None  # type: ignore[assignment]

# A CPU device uses memory that begins at such an address without a copy. It copies any other, slower than NumPy does.
ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory, and the array interface by which NumPy sees its aligned part.

    `number` is where it begins in the file by which it is shared with data processes, where it is.
    """

    memory: Any
    interface: dict[str, Any]
    number: int | None = None

    @classmethod
    def of(cls, memory: NDArray[np.uint8], size: int, owner: Any = None, number: int | None = None) -> Buffer:
        address: int = memory.__array_interface__["data"][0]
        start = address + -address % ALIGNMENT
        interface = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (start, False)}
        return cls(memory if owner is None else owner, interface, number)


def allocate_private(size: int) -> Buffer:
    return Buffer.of(np.empty(size + ALIGNMENT, np.uint8), size)


class FreeList:
    """The buffers of one size, free and in use. Every change is one operation that no other thread can interrupt."""

    def __init__(self, max_buffers: int, allocate: Callable[[int], Buffer]) -> None:
        self._max_buffers, self._allocate = max_buffers, allocate
        self._free: list[Buffer] = []
        self._in_use: set[Buffer] = set()

    def acquire(self, size: int) -> Buffer:
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = self._allocate(size)
        self._in_use.add(buffer)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Runs in the thread that dropped the last array, perhaps in the middle of `acquire`: it must not wait."""
        self._in_use.discard(buffer)
        if len(self._free) + len(self._in_use) < self._max_buffers:
            self._free.append(buffer)


class Lease:
    """One use of a buffer. It is the innermost base of every array in that buffer, and ends when the last of them does.

    Whoever reads the memory (a view, a device that shares it, an array exported from there) keeps an array alive, and
    that array keeps the lease alive. Reference counts would not do: their values depend on the interpreter.
    """

    __slots__ = ("__array_interface__", "_buffer", "_free_list")

    def __init__(self, buffer: Buffer, free_list: FreeList) -> None:
        self.__array_interface__ = buffer.interface
        self._buffer, self._free_list = buffer, free_list

    def __del__(self) -> None:
        self._free_list.release(self._buffer)


class BufferPool:
    """Makes copies that nobody else can change, in memory that a CPU device uses as it is.

    A device may read an array long after it was given to it, or share its memory for good: without a copy, a `map` that
    writes every batch into the same buffer would change earlier batches. A buffer is used again once no array lies in
    it: fresh memory costs more than the copy, because the system has to clear it first.
    """

    def __init__(self, max_buffers: int, allocate: Callable[[int], Buffer] = allocate_private) -> None:
        """Keeps at most so many buffers of each size, including those in use."""
        self._free_lists: defaultdict[int, FreeList] = defaultdict(lambda: FreeList(max_buffers, allocate))

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        copied, _ = self.empty(array.shape, array.dtype, array.nbytes)
        np.copyto(copied, array)
        return copied

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> tuple[NDArray[Any], Buffer]:
        """An array of that many bytes whose values are still to be written, and the buffer that it lies in."""
        free_list = self._free_lists[size]
        buffer = free_list.acquire(size)
        leased = np.asarray(Lease(buffer, free_list))
        return np.ndarray(shape, dtype, leased), buffer


def assemble(aval: Any, sharding: Sharding, shards: Sequence[NDArray[Any]], devices: Sequence[Any]) -> jax.Array:
    """One global array, from the shards of this process's devices.

    jax's public functions do the same: some 20 µs slower an array or, shard by shard, 400.
    """
    if batched_device_put is None:
        on_devices = [jax.device_put(shard, device) for shard, device in zip(shards, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(aval.shape, sharding, on_devices)
    array: jax.Array = batched_device_put(aval, sharding, list(shards), list(devices))
    return array
