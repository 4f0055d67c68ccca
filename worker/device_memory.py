"""Host arrays into device memory, by the shortest way jax has."""

from __future__ import annotations

import ctypes
import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

try:
    from jax._src.interpreters.pxla import batched_device_put
except ImportError:  # another jax
    batched_device_put = None  # type: ignore[assignment]

# A CPU device takes memory that begins at such an address as its own; any other it copies, slower than NumPy does.
ALIGNMENT = 64
# What refers to a piece of memory that no array lies in: the list of pieces, the variable and the call itself.
UNUSED = 3
# From malloc.h; 32 MiB is the most the first may be.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT, MOST_KEPT = 32 << 20, 128 << 20


@cache
def keep_freed_memory() -> None:
    """Tell the C library not to hand memory back to the system that the next batch will ask for again.

    The temporary arrays of a `map` cost 70 page faults a batch otherwise, for 256 small images: a third of the time.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


class Memory:
    """Copies that nobody else can change, in memory that a CPU device uses as it is.

    A device may read an array long after it was given to it, or share its memory for good: a `map` that writes every
    batch into the same buffer would change batches that are under way. Memory is used again once no array lies in
    it: fresh memory costs more than the copy, because the system has to clear it first.
    """

    def __init__(self, most: int) -> None:
        """Keeps at most so many pieces of each size."""
        self._most = most
        self._pieces: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def own(self, array: NDArray[Any]) -> NDArray[Any]:
        memory = self._find(array.nbytes)
        copied = np.ndarray(array.shape, array.dtype, memory, -_address(memory) % ALIGNMENT)
        np.copyto(copied, array)
        return copied

    def _find(self, size: int) -> NDArray[np.uint8]:
        pieces = self._pieces[size]
        for memory in pieces:
            if sys.getrefcount(memory) == UNUSED:
                return memory
        memory = np.empty(size + ALIGNMENT, np.uint8)
        if len(pieces) < self._most:
            pieces.append(memory)
        return memory


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def assemble(aval: Any, sharding: Sharding, pieces: Sequence[NDArray[Any]], devices: Sequence[Any]) -> jax.Array:
    """One global array of what this process's devices hold of it.

    The public functions do the same: some 20 µs slower an array or, piece by piece, 400.
    """
    if batched_device_put is None:
        placed = [jax.device_put(piece, device) for piece, device in zip(pieces, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(aval.shape, sharding, placed)
    array: jax.Array = batched_device_put(aval, sharding, list(pieces), list(devices))
    return array
