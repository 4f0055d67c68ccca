"""The rows of a step, read from a source, collated and mapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, blame
from hostmesh.worker.loading.layout import Part
from hostmesh.worker.loading.order import Order
from hostmesh.worker.loading.randomness import COLLATE, RowRandom
from hostmesh.worker.loading.rows import Block, Ids, Record
from hostmesh.worker.loading.schedule import Schedule
from hostmesh.worker.sources import Source

Map: TypeAlias = Callable[..., Block]
Collate: TypeAlias = Callable[..., Block]


@dataclass(frozen=True)
class Loaded:
    """What one process read for one step: a block for each part and, where some are padding, which rows are real."""

    blocks: list[Block]
    masks: list[NDArray[np.bool_]]
    has_next: bool = True


class Transforms:
    """What the user wants done to rows: `collate` makes a block of records, `map` changes a block."""

    def __init__(self, map: Map | None, collate: Collate | None, seed: int) -> None:
        self.collate = collate
        self._map = map
        self._seed = seed
        self._map_wants_all = map is not None and count_arguments(map, "map", "block") == 3
        self._collate_wants_all = collate is not None and count_arguments(collate, "collate", "records") == 3

    def apply_collate(self, records: list[Record], ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        """The rows are those of a batch that begins at this position."""
        assert self.collate is not None
        try:
            if self._collate_wants_all:
                return self.collate(records, ids, RowRandom(self._seed, start + rows, COLLATE))
            return self.collate(records)
        except Exception as error:
            raise blame("collate" if len(ids) > 1 else f"collate of record {ids[0]}", error) from error

    def apply_map(self, block: Block, ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        if self._map is None:
            return block
        try:
            if self._map_wants_all:
                return self._map(block, ids, RowRandom(self._seed, start + rows))
            return self._map(block)
        except Exception as error:
            raise blame("map", error) from error


class SourceFeed:
    """Any step, in any order."""

    def __init__(
        self, source: Source, order: Order, schedule: Schedule, work: Transforms, parts: Sequence[Part]
    ) -> None:
        self.source, self.order, self.schedule, self.work, self.parts = source, order, schedule, work, parts
        self._pads = schedule.tail == "pad"
        self._pool = ThreadPoolExecutor(len(parts), "hostmesh read") if len(parts) > 1 else None

    def read(self, step: int) -> Loaded:
        start, stop = self.schedule.positions(step)
        ids = self.order.ids(start, stop)
        if self._pool is None:
            blocks = [self._read_part(step, ids, start, part) for part in self.parts]
        else:
            blocks = list(self._pool.map(lambda part: self._read_part(step, ids, start, part), self.parts))
        return Loaded(blocks, [part.rows < stop - start for part in self.parts] if self._pads else [])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _read_part(self, step: int, batch_ids: Ids, start: int, part: Part) -> Block:
        # Rows beyond the records are copies of the last one: numbers that no model chokes on.
        count = len(batch_ids)
        rows = part.rows if part.last < count else np.minimum(part.rows, count - 1)
        ids = batch_ids if part.is_all and len(rows) == count else batch_ids[rows]
        try:
            block = self._read_block(ids, start, rows)
        except Exception as error:
            raise self._blame_record(step, ids, start, rows, error) from error
        try:
            return self.work.apply_map(block, ids, start, rows)
        except DataError as error:
            raise blame(f"step {step}", error) from error

    def _read_block(self, ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        if self.work.collate is None:
            return self.source.read(ids)
        return self.work.apply_collate(self.source.records(ids), ids, start, rows)

    def _blame_record(self, step: int, ids: Ids, start: int, rows: NDArray[np.int64], error: Exception) -> DataError:
        """Names the record, if one fails alone."""
        for n, record in enumerate(ids):
            try:
                self._read_block(ids[n : n + 1], start, rows[n : n + 1])
            except DataError as alone:
                return blame(f"step {step}", alone)
            except Exception as alone:
                return blame(f"step {step}: record {record} of {self.source.name}", alone)
        return blame(f"step {step}: {self.source.name}", error)


def count_arguments(function: Callable[..., Block], name: str, first: str) -> int:
    """One, or three where there is room for three."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # built in: it says nothing about itself
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return 3
    required = sum(
        parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
        for parameter in parameters
    )
    if required not in (1, 3):
        wanted = f"one argument ({first}) or three ({first}, ids, rng)"
        raise DataError(f"{name} wants {wanted}; found one that takes {required}")
    return required
