"""A step that several workers read: its pieces, and what became of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.buffers import Buffer
from hostmesh.worker.assembly.structure import Structure
from hostmesh.worker.loading.reader import StepPlan
from hostmesh.worker.reading.row_reader import Chunk, Spent

Allocated = list[tuple[NDArray[Any], Buffer]]


@dataclass(frozen=True)
class Piece:
    """Some rows of a step, and the arrays of the batch into which they are to be written, from row `first` on."""

    chunk: Chunk
    first: int
    arrays: Allocated
    mask: NDArray[np.bool_] | None
    step: PendingStep

    @property
    def outs(self) -> list[NDArray[Any]]:
        last = self.first + len(self.chunk.ids)
        return [array[self.first : last] for array, _ in self.arrays]


class PendingStep:
    """Done when all of its pieces are, or when the first of them has failed.

    Pieces refer to their step, which keeps none of them: a circle would hold the memory of a batch until Python looks
    for garbage.
    """

    def __init__(self, plan: StepPlan, structure: Structure, allocated: Sequence[Allocated]) -> None:
        self.used, self.length, self.structure = plan.used, plan.length, structure
        self.arrays = [[array for array, _ in arrays] for arrays in allocated]
        self._lock = threading.Lock()
        self._left = 0
        self._reading = self._mapping = 0.0
        self._error: BaseException | None = None
        self._is_done = threading.Event()

    def cut(self, plan: StepPlan, allocated: Sequence[Allocated], per_row_set: int) -> list[Piece]:
        """So many pieces of the rows of each row set."""
        masks: Sequence[NDArray[np.bool_] | None] = plan.masks or [None] * len(plan.chunks)
        row_sets = zip(plan.chunks, allocated, masks, strict=True)
        pieces = [piece for row_set in row_sets for piece in self._cut(*row_set, per_row_set)]
        self._left = len(pieces)
        return pieces

    def note_done(self, spent: Spent) -> None:
        with self._lock:
            self._left -= 1
            self._reading += spent.reading
            self._mapping += spent.mapping
            is_done = self._left == 0
        if is_done:
            self._is_done.set()

    def note_failed(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._is_done.set()

    def wait(self) -> Spent:
        """Raises what the first piece that failed has raised: another one may never end."""
        self._is_done.wait()
        if self._error is not None:
            raise self._take_error()
        return Spent(self._reading, self._mapping)

    def _take_error(self) -> BaseException:
        """Not kept: its traceback will hold the frames of the caller, and a piece that never ends holds this step."""
        error, self._error = self._error, None
        assert error is not None
        return error

    def _cut(self, chunk: Chunk, arrays: Allocated, mask: NDArray[np.bool_] | None, pieces: int) -> list[Piece]:
        rows = len(chunk.ids)
        ends = [rows * number // pieces for number in range(pieces + 1)] if rows > pieces else list(range(rows + 1))
        return [
            Piece(chunk.part(first, last), first, arrays, None if mask is None else mask[first:last], self)
            for first, last in zip(ends[:-1], ends[1:], strict=True)
        ]
