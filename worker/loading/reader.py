"""The rows of a step, read from a source, collated and mapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.audit.used import NOTHING, Used, take_own
from hostmesh.worker.errors import DataError, as_data_error
from hostmesh.worker.loading.layout import RowSet
from hostmesh.worker.loading.randomness import COLLATE, RowRandom
from hostmesh.worker.loading.rows import Block, Ids, Record
from hostmesh.worker.loading.schedule import Schedule
from hostmesh.worker.mixing.mixture_order import AnyOrder
from hostmesh.worker.recording.recorder import RECORDER
from hostmesh.worker.sources import Source

Map: TypeAlias = Callable[..., Block]
Collate: TypeAlias = Callable[..., Block]


@dataclass(frozen=True)
class StepRows:
    """What a process read for one step: a block for each row set and, with padding, a mask of the real rows.

    `used` are the records of it that this process answers for; a stream has no record numbers.
    """

    blocks: list[Block]
    masks: list[NDArray[np.bool_]]
    has_next: bool = True
    used: Used = field(default_factory=lambda: NOTHING)


class Transforms:
    """What the user wants done to rows: `collate` makes a block of records, `map` changes a block."""

    def __init__(self, map: Map | None, collate: Collate | None, seed: int) -> None:
        self.collate = collate
        self._map = map
        self._seed = seed
        self._map_wants_all = map is not None and count_arguments(map, "map", "block") == 3
        self._collate_wants_all = collate is not None and count_arguments(collate, "collate", "records") == 3

    def apply_collate(self, records: list[Record], ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        """`rows` are numbers within a batch; `start` is the global position of its first row."""
        assert self.collate is not None
        try:
            if self._collate_wants_all:
                return self.collate(records, ids, RowRandom(self._seed, start + rows, COLLATE))
            return self.collate(records)
        except Exception as error:
            raise as_data_error("collate" if len(ids) > 1 else f"collate of record {ids[0]}", error) from error

    def apply_map(self, block: Block, ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        if self._map is None:
            return block
        try:
            if self._map_wants_all:
                return self._map(block, ids, RowRandom(self._seed, start + rows))
            return self._map(block)
        except Exception as error:
            raise as_data_error("map", error) from error


class SourceReader:
    """Reads any step, in any order."""

    def __init__(
        self, source: Source, order: AnyOrder, schedule: Schedule, transforms: Transforms, row_sets: Sequence[RowSet]
    ) -> None:
        self.source, self.order, self.schedule = source, order, schedule
        self.transforms, self.row_sets = transforms, row_sets
        self._pads = schedule.tail == "pad"
        self._pool = ThreadPoolExecutor(len(row_sets), "hostmesh read") if len(row_sets) > 1 else None

    def read(self, step: int) -> StepRows:
        start, stop = self.schedule.positions(step)
        ids = self.order.ids(start, stop)
        if self._pool is None:
            found = [self._read_rows(step, ids, start, row_set) for row_set in self.row_sets]
        else:
            found = list(self._pool.map(lambda row_set: self._read_rows(step, ids, start, row_set), self.row_sets))
        masks = [row_set.rows < stop - start for row_set in self.row_sets] if self._pads else []
        used = found[0][1] if len(found) == 1 else np.concatenate([each for _, each in found])
        return StepRows([block for block, _ in found], masks, used=used)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _read_rows(self, step: int, batch_ids: Ids, start: int, row_set: RowSet) -> tuple[Block, Used]:
        """A block, and the records in it that count as used here: the very ids that the source is asked for."""
        # Padding repeats the last record, so that it has values a model can compute with.
        count = len(batch_ids)
        rows = row_set.rows if row_set.last < count else np.minimum(row_set.rows, count - 1)
        ids = batch_ids if row_set.is_all and len(rows) == count else batch_ids[rows]
        used = NOTHING if row_set.own is None else take_own(ids, row_set.rows, row_set.own, count)
        RECORDER.note_reading(step, int(ids[0]) if count else 0)
        try:
            block = self._read_block(ids, start, rows)
        except Exception as error:
            raise self._explain_failure(step, ids, start, rows, error) from error
        try:
            return self.transforms.apply_map(block, ids, start, rows), used
        except DataError as error:
            raise as_data_error(f"step {step}", error) from error

    def _read_block(self, ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        if self.transforms.collate is None:
            return self.source.read(ids)
        return self.transforms.apply_collate(self.source.records(ids), ids, start, rows)

    def _explain_failure(self, step: int, ids: Ids, start: int, rows: NDArray[np.int64], error: Exception) -> DataError:
        """Reads the records one by one: if one of them fails alone, the message names it."""
        for n, record in enumerate(ids):
            try:
                self._read_block(ids[n : n + 1], start, rows[n : n + 1])
            except DataError as alone:
                return as_data_error(f"step {step}", alone)
            except Exception as alone:
                return as_data_error(f"step {step}: record {record} of {self.source.name}", alone)
        return as_data_error(f"step {step}: {self.source.name}", error)


def count_arguments(function: Callable[..., Block], name: str, first: str) -> int:
    """1 for a function of the rows alone, 3 for one that also takes ids and random numbers."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a built-in function without a signature
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 3
    required = sum(
        parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
        for parameter in parameters
    )
    if required not in (1, 3):
        wanted = f"one argument ({first}) or three ({first}, ids, rng)"
        raise DataError(f"{name} wants {wanted}; found one that takes {required}")
    return required
