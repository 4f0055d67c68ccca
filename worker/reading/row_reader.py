"""The rows of a chunk: read from a source, collated and mapped. Without jax: data processes use it too."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, StoreError, as_data_error
from hostmesh.worker.loading.rows import Block, Ids
from hostmesh.worker.reading.transforms import Transforms
from hostmesh.worker.sources.base import Source


class Spent(NamedTuple):
    """Seconds that a chunk took: `reading` by the source, `mapping` by `collate` and `map`."""

    reading: float
    mapping: float


class Chunk(NamedTuple):
    """Some rows of one step: their numbers within the global batch, and the records that they are.

    `start` is the global position of the batch's first row.
    """

    step: int
    start: int
    ids: Ids
    rows: NDArray[np.int64]

    def part(self, first: int, last: int) -> Chunk:
        return Chunk(self.step, self.start, self.ids[first:last], self.rows[first:last])


class RowReader:
    """Reads any chunk of a source, in any order. An error names the step and, where one is to blame, the record."""

    def __init__(self, source: Source, transforms: Transforms) -> None:
        self.source, self.transforms = source, transforms

    def read(self, chunk: Chunk) -> tuple[Block, Spent]:
        began = perf_counter()
        try:
            found = self._fetch(chunk.ids)
            fetched = perf_counter()
            block = self._collate(found, chunk)
        except StoreError as error:
            raise as_data_error(f"step {chunk.step}", error) from None
        except Exception as error:
            raise self._explain_failure(chunk, error) from error
        try:
            block = self.transforms.apply_map(block, chunk.ids, chunk.start, chunk.rows)
        except DataError as error:
            raise as_data_error(f"step {chunk.step}", error) from error
        return block, Spent(fetched - began, perf_counter() - fetched)

    def _fetch(self, ids: Ids) -> Any:
        """A block, or records where these are to be collated."""
        return self.source.read(ids) if self.transforms.collate is None else self.source.records(ids)

    def _collate(self, found: Any, chunk: Chunk) -> Block:
        if self.transforms.collate is None:
            return found
        return self.transforms.apply_collate(found, chunk.ids, chunk.start, chunk.rows)

    def _explain_failure(self, chunk: Chunk, error: Exception) -> DataError:
        """Reads the records one by one: if one of them fails alone, the message names it."""
        for n, record in enumerate(chunk.ids):
            alone = chunk.part(n, n + 1)
            try:
                self._collate(self._fetch(alone.ids), alone)
            except DataError as cause:
                return as_data_error(f"step {chunk.step}", cause)
            except Exception as cause:
                return as_data_error(f"step {chunk.step}: record {record} of {self.source.name}", cause)
        return as_data_error(f"step {chunk.step}: {self.source.name}", error)
