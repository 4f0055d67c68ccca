"""The rows of a step, read from a source, collated and mapped by one thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import Layout, RowSet
from hostmesh.worker.audit.used import NOTHING, Used, take_own
from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.rows import Block
from hostmesh.worker.mixing.mixture_order import AnyOrder
from hostmesh.worker.ordering.schedule import Schedule
from hostmesh.worker.reading.row_reader import Chunk, RowReader, Spent
from hostmesh.worker.recording.recorder import RECORDER


class StepRows(NamedTuple):
    """What a process read for one step: a block for each row set and, with padding, a mask of the real rows.

    `arrays` are given instead where the rows lie in the memory of a batch already. `used` are the records that this
    process answers for; a stream has no record numbers.
    """

    blocks: list[Block]
    masks: list[NDArray[np.bool_]]
    has_next: bool = True
    used: Used = NOTHING
    arrays: list[list[NDArray[Any]]] | None = None
    spent: Spent = Spent(0.0, 0.0)
    length: int = 0  # to which rows of varying length are padded


def flatten_rows(rows: StepRows, layout: Layout, step: int) -> list[list[NDArray[Any]]]:
    """In the memory of a batch; the first step of each length fixes the structure of all."""
    if rows.arrays is not None:
        return rows.arrays
    try:
        return layout.flatten(rows.blocks, rows.masks, rows.length)
    except Exception as error:
        raise as_data_error(f"step {step}", error) from error


class StepPlan(NamedTuple):
    """What is to be read for a step: a chunk for each row set."""

    chunks: list[Chunk]
    masks: list[NDArray[np.bool_]]
    used: Used
    length: int


class SourceReader:
    """Reads any step, in any order."""

    def __init__(self, rows: RowReader, order: AnyOrder, schedule: Schedule, row_sets: Sequence[RowSet]) -> None:
        self.rows, self.order, self.schedule = rows, order, schedule
        self.row_sets = row_sets
        self._pads = schedule.tail == "pad"
        self._pool = ThreadPoolExecutor(len(row_sets), "hostmesh read") if len(row_sets) > 1 else None

    def read(self, step: int) -> StepRows:
        plan = self.plan(step)
        if self._pool is None:
            found = [self._read(chunk) for chunk in plan.chunks]
        else:
            found = list(self._pool.map(self._read, plan.chunks))
        if len(found) == 1:
            blocks, spent = [found[0][0]], found[0][1]
        else:
            times = [spent for _, spent in found]
            blocks, spent = [block for block, _ in found], Spent(*map(sum, zip(*times, strict=True)))
        return StepRows(blocks, plan.masks, True, plan.used, None, spent, plan.length)

    def plan(self, step: int) -> StepPlan:
        """Without reading anything. The used records are the very ids that the source will be asked for."""
        start, stop = self.schedule.positions(step)
        ids = self.order.ids(start, stop)
        count = len(ids)
        chunks, used = [], []
        for row_set in self.row_sets:
            # Padding repeats the last record, so that it has values a model can compute with.
            rows = row_set.rows if row_set.last < count else np.minimum(row_set.rows, count - 1)
            own = ids if row_set.is_all and len(rows) == count else ids[rows]
            chunks.append(Chunk(step, start, own, rows))
            used.append(NOTHING if row_set.own is None else take_own(own, row_set.rows, row_set.own, count))
        masks = [row_set.rows < stop - start for row_set in self.row_sets] if self._pads else []
        length = self.rows.transforms.length_of(step)
        return StepPlan(chunks, masks, used[0] if len(used) == 1 else np.concatenate(used), length)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, chunk: Chunk) -> tuple[Block, Spent]:
        RECORDER.note_reading(chunk.step, int(chunk.ids[0]) if len(chunk.ids) else 0)
        return self.rows.read(chunk)
