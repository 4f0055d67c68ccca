"""Host arrays into device memory, by the shortest way jax has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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

# A CPU device takes memory that begins at such an address as its own; any other it copies, slower than NumPy does.
ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Piece:
    """Memory, and how NumPy is told of the aligned part of it."""

    memory: NDArray[np.uint8]
    interface: dict[str, Any]

    @classmethod
    def make(cls, size: int) -> Piece:
        memory = np.empty(size + ALIGNMENT, np.uint8)
        address: int = memory.__array_interface__["data"][0]
        start = address + -address % ALIGNMENT
        return cls(memory, {"version": 3, "typestr": "|u1", "shape": (size,), "data": (start, False)})


class Shelf:
    """Pieces of one size: those that may be used, and those in use. No other thread can split a change of either."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[Piece] = []
        self._in_use: set[Piece] = set()

    def take(self, size: int) -> Piece:
        try:
            piece = self._free.pop()
        except IndexError:
            piece = Piece.make(size)
        self._in_use.add(piece)
        return piece

    def put_back(self, piece: Piece) -> None:
        """In whichever thread let go of the last array, perhaps amid another call of this class: nothing may wait."""
        self._in_use.discard(piece)
        if len(self._free) + len(self._in_use) < self._most:
            self._free.append(piece)


class Lease:
    """The one use of a piece: the innermost base of every array that lies in it, so it ends when the last of them does.

    Who reads the memory (a view, a device that shares it, whatever was exported from there) keeps an array alive, and
    that array keeps this. Counting references instead would tell less: how many there are is the interpreter's affair.
    """

    __slots__ = ("__array_interface__", "_piece", "_shelf")

    def __init__(self, piece: Piece, shelf: Shelf) -> None:
        self.__array_interface__ = piece.interface
        self._piece, self._shelf = piece, shelf

    def __del__(self) -> None:
        self._shelf.put_back(self._piece)


class Memory:
    """Copies that nobody else can change, in memory that a CPU device uses as it is.

    A device may read an array long after it was given to it, or share its memory for good: a `map` that writes every
    batch into the same buffer would change batches that are under way. Memory is used again once no array lies in
    it: fresh memory costs more than the copy, because the system has to clear it first.
    """

    def __init__(self, most: int) -> None:
        """Keeps at most so many pieces of each size, those in use among them."""
        self._shelves: defaultdict[int, Shelf] = defaultdict(lambda: Shelf(most))

    def own(self, array: NDArray[Any]) -> NDArray[Any]:
        shelf = self._shelves[array.nbytes]
        leased = np.asarray(Lease(shelf.take(array.nbytes), shelf))
        copied = np.ndarray(array.shape, array.dtype, leased)
        np.copyto(copied, array)
        return copied


def assemble(aval: Any, sharding: Sharding, pieces: Sequence[NDArray[Any]], devices: Sequence[Any]) -> jax.Array:
    """One global array of what this process's devices hold of it.

    The public functions do the same: some 20 µs slower an array or, piece by piece, 400.
    """
    if batched_device_put is None:
        placed = [jax.device_put(piece, device) for piece, device in zip(pieces, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(aval.shape, sharding, placed)
    array: jax.Array = batched_device_put(aval, sharding, list(pieces), list(devices))
    return array
