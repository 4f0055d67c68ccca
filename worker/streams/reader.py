"""The rows of one step after another, from the shards of a stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import RowSet
from hostmesh.worker.errors import error_context
from hostmesh.worker.loading.reader import StepRows
from hostmesh.worker.loading.rows import Block, stack_records, take_rows
from hostmesh.worker.process.progress import Progress
from hostmesh.worker.reading.transforms import Transforms
from hostmesh.worker.streams.row_shards import RowShards
from hostmesh.worker.streams.shard import BlockReader, RecordReader, ShardReader, join_blocks
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.verify.fingerprint import fingerprint_records

ShardRows: TypeAlias = dict[int, tuple[Any, int]]  # for each shard its records or block, and how many rows those are


class StreamReader:
    """Reads steps in order only. To begin at a later one it reads the earlier ones and drops them, or begins at a
    position near it that was recorded.

    When a shard has ended, its last row stands in for the missing ones, and they are masked.
    """

    def __init__(
        self,
        stream: Stream,
        row_shards: RowShards,
        epochs: int | None,
        tail: str,
        transforms: Transforms,
        row_sets: Sequence[RowSet],
        ahead: int = 0,
    ) -> None:
        """`ahead` is how many steps may be read and not delivered."""
        self.stream, self.batch_size = stream, row_shards.batch_size
        self.transforms, self.row_sets = transforms, row_sets
        self._row_shards = row_shards
        self._pads = tail == "pad"
        self._in_blocks = stream.batched and transforms.collate is None
        reader = BlockReader if self._in_blocks else RecordReader
        rows = np.concatenate([self._rows(row_set) for row_set in row_sets])
        shards = np.unique(row_shards.shard[rows]).tolist()
        self._shares = {shard: row_shards.share(shard) for shard in shards}  # rows of each shard in a batch
        # Two more: one is read to know whether there is a next step, and one may be on its way.
        self._readers: dict[int, ShardReader] = {shard: reader(stream, shard, epochs, ahead + 2) for shard in shards}
        self._last: dict[int, Any] = {}
        self._ahead: ShardRows | Exception | None = None

    def read(self, step: int) -> StepRows:
        with error_context(f"step {step}: {self.stream.name}"):
            is_over = not self._pads and not self.has_next()
        if is_over:
            raise StopIteration
        with error_context(f"step {step}: {self.stream.name}"):
            taken = self._take()
            blocks = [self._block(step, taken, row_set) for row_set in self.row_sets]
            masks = [self._mask(taken, row_set) for row_set in self.row_sets] if self._pads else []
            return StepRows(blocks, masks, self._peek_for_later())

    def skip(self, steps: int, positions: Mapping[str, Any]) -> None:
        """Go to just after so many steps, in each shard from a position recorded on the way there, if there is one."""
        with error_context(self.stream.name):
            for shard, reader in self._readers.items():
                position = positions.get(str(shard))
                if position is not None and (problem := reader.resume(position, steps * self._shares[shard])):
                    line = f"{self.stream.name}: shard {shard} is read again from its start, because {problem}"
                    print(line, file=sys.stderr, flush=True)
            progress = Progress(steps, f"skipping to batch {steps:,} of {self.stream.name}")
            for step in range(1, steps + 1):
                for shard, reader in self._readers.items():
                    self._skip_to(step * self._shares[shard], shard, reader)
                progress.reached(step)

    def find_positions(self, step: int) -> dict[str, Any]:
        """For each shard the last position that was recorded on the way to this step, if there is one."""
        readers = self._readers.items()
        found = {str(shard): reader.find_position(step * self._shares[shard]) for shard, reader in readers}
        return {shard: position for shard, position in found.items() if position is not None}

    def has_next(self) -> bool:
        """Whether the next step has all its rows or, with padding, any."""
        counts = {shard: count for shard, (_, count) in self._peek().items()}
        return any(counts.values()) if self._pads else counts == self._shares

    def fingerprint_next(self) -> dict[str, str]:
        """A fingerprint of the next records of each shard."""
        return {str(shard): fingerprint_records(self._listed(*taken)) for shard, taken in self._peek().items()}

    def close(self) -> None:
        self._readers.clear()

    def _skip_to(self, rows: int, shard: int, reader: ShardReader) -> None:
        if rows <= reader.taken:
            return
        if self._pads:
            self._remember(shard, *reader.take(rows - reader.taken))
        else:
            reader.skip(rows - reader.taken)

    def _take(self) -> ShardRows:
        taken, self._ahead = self._peek(), None
        for shard, (rows, count) in taken.items():
            self._remember(shard, rows, count)
        return taken

    def _remember(self, shard: int, rows: Any, count: int) -> None:
        """Keep the last row of a shard: padding repeats it."""
        if count:
            self._last[shard] = take_rows(rows, slice(count - 1, None)) if self._in_blocks else rows[-1:]

    def _peek(self) -> ShardRows:
        if self._ahead is None:
            self._ahead = {shard: reader.take(self._shares[shard]) for shard, reader in self._readers.items()}
        elif isinstance(self._ahead, Exception):
            raise self._ahead
        return self._ahead

    def _peek_for_later(self) -> bool:
        """Whether there is a next step. An error in reading it is raised when its turn comes."""
        try:
            return self.has_next()
        except Exception as error:
            self._ahead = error
            return True

    def _listed(self, rows: Any, count: int) -> list[Any]:
        if not count:
            return []
        return [rows] if self._in_blocks else list(rows)

    def _rows(self, row_set: RowSet) -> NDArray[np.int64]:
        return np.minimum(row_set.rows, self.batch_size - 1)

    def _block(self, step: int, taken: ShardRows, row_set: RowSet) -> Block:
        rows = self._rows(row_set)
        shard_of, place = self._row_shards.shard[rows], self._row_shards.place[rows]
        pieces: list[Any] = []
        # Rows of one shard that follow one another are taken together: the pieces must keep the order of the rows.
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(shard_of)) + 1):
            shard = int(shard_of[run[0]])
            pieces += self._pieces(shard, taken[shard], place[run])
        start = step * self.batch_size
        block = join_blocks(pieces) if self._in_blocks else self._join_records(pieces, start, rows)
        return self.transforms.apply_map(block, start + rows, start, rows)

    def _join_records(self, records: list[Any], start: int, rows: NDArray[np.int64]) -> Block:
        if self.transforms.collate is None:
            return stack_records(records, start + rows)
        return self.transforms.apply_collate(records, start + rows, start, rows)

    def _pieces(self, shard: int, taken: tuple[Any, int], rows: NDArray[np.int64]) -> list[Any]:
        """One block, or one record a row."""
        found, count = taken if taken[1] else (self._last[shard], 1)
        rows = np.minimum(rows, count - 1)
        return [take_rows(found, rows)] if self._in_blocks else [found[row] for row in rows]

    def _mask(self, taken: ShardRows, row_set: RowSet) -> NDArray[np.bool_]:
        counts = np.zeros(self.stream.shards, np.int64)
        for shard, (_, count) in taken.items():
            counts[shard] = count
        rows = self._rows(row_set)
        found: NDArray[np.bool_] = self._row_shards.place[rows] < counts[self._row_shards.shard[rows]]
        return found
