"""Reads steps with several workers, each of which fills pieces of batches."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hostmesh.worker.assembly.layout import Layout, add_mask
from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.reader import SourceReader, StepRows
from hostmesh.worker.reading.pieces import PendingStep, Piece
from hostmesh.worker.reading.row_reader import RowReader, Spent

# Pieces of a step for each worker: the more, the less a worker waits for the slowest one.
PIECES_EACH = 2


class Workers(Protocol):
    count: int

    def give(self, piece: Piece) -> None: ...

    def close(self) -> None: ...


class ParallelReader:
    """Reads steps in order. While one is waited for, the workers are at the steps after it already.

    A step whose structure the layout does not know yet is read by this thread alone: by it the layout will know.
    """

    def __init__(self, serial: SourceReader, layout: Layout, workers: Workers, ahead: int, total: int | None) -> None:
        """`ahead` is how many steps after the one that is waited for may be begun; `total` is the end of all steps."""
        self._serial, self._layout, self._workers = serial, layout, workers
        self._ahead, self._total = ahead, total
        self._per_row_set = max(1, PIECES_EACH * workers.count // len(serial.row_sets))
        self._pending: dict[int, PendingStep] = {}

    def read(self, step: int) -> StepRows:
        end = step + 1 + self._ahead
        for later in range(step, end if self._total is None else min(end, self._total)):
            if later not in self._pending and not self._begin(later):
                break
        return self._finish(step)

    def read_alone(self, step: int) -> StepRows:
        """Without beginning the steps after it."""
        self._begin(step)
        return self._finish(step)

    def close(self) -> None:
        self._pending.clear()
        self._workers.close()

    def _begin(self, step: int) -> bool:
        plan = self._serial.plan(step)
        if not self._layout.knows(plan.length):
            return False
        allocated = self._layout.allocate(plan.length)
        pending = self._pending[step] = PendingStep(plan, self._layout.structure(plan.length), allocated)
        for piece in pending.cut(plan, allocated, self._per_row_set):
            self._workers.give(piece)
        return True

    def _finish(self, step: int) -> StepRows:
        pending = self._pending.pop(step, None)
        if pending is None:
            return self._serial.read(step)
        spent = pending.wait()
        return StepRows([], [], used=pending.used, arrays=pending.arrays, spent=spent, length=pending.length)


class RowFiller:
    """Fills pieces in the thread that calls it."""

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows

    def __call__(self, piece: Piece) -> Spent:
        block, spent = self._rows.read(piece.chunk)
        for out, array in zip(piece.outs, self._flatten(block, piece), strict=True):
            np.copyto(out, array)
        return spent

    def _flatten(self, block: Any, piece: Piece) -> list[Any]:
        try:
            if piece.mask is not None:
                block = add_mask(block, piece.mask)
            return piece.step.structure.flatten(block, len(piece.chunk.ids))
        except Exception as error:
            raise as_data_error(f"step {piece.chunk.step}", error) from error
