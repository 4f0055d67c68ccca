"""The rows of one step after another, from the shards of a stream."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import naming
from hostmesh.worker.loading.layout import Part
from hostmesh.worker.loading.reader import Loaded, Transforms
from hostmesh.worker.loading.rows import Block, stack_records, take_rows
from hostmesh.worker.streams.shard import BlockReader, RecordReader, ShardReader, join_blocks
from hostmesh.worker.streams.skipping import Skipping
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.verify.fingerprint import fingerprint_records

BytesStored: TypeAlias = dict[int, tuple[Any, int]]  # for each shard its records or block, and how many rows they are


class StreamFeed:
    """Steps in order only: to begin at a later one, the earlier ones are read and thrown away, except where a place
    near it was noted.

    Rows that a shard no longer has are copies of its last one, and masked.
    """

    def __init__(
        self,
        stream: Stream,
        batch_size: int,
        epochs: int | None,
        tail: str,
        work: Transforms,
        parts: Sequence[Part],
        ahead: int = 0,
    ) -> None:
        """`ahead`: so many steps may be read and not delivered."""
        self.stream, self.batch_size, self.work, self.parts = stream, batch_size, work, parts
        self.share = batch_size // stream.shards
        self._pads = tail == "pad"
        self._in_blocks = stream.batched and work.collate is None
        reader = BlockReader if self._in_blocks else RecordReader
        shards = np.unique(np.concatenate([self._rows(part) for part in parts]) // self.share).tolist()
        # One more is looked at to know whether there is one, and one may be on its way.
        self._readers: dict[int, ShardReader] = {shard: reader(stream, shard, epochs, ahead + 2) for shard in shards}
        self._last: dict[int, Any] = {}
        self._ahead: BytesStored | Exception | None = None

    def read(self, step: int) -> Loaded:
        with naming(f"step {step}: {self.stream.name}"):
            is_over = not self._pads and not self.has_next()
        if is_over:
            raise StopIteration
        with naming(f"step {step}: {self.stream.name}"):
            taken = self._take()
            blocks = [self._block(step, taken, part) for part in self.parts]
            masks = [self._mask(taken, part) for part in self.parts] if self._pads else []
            return Loaded(blocks, masks, self._peek_for_later())

    def skip(self, steps: int, places: Mapping[str, Any]) -> None:
        """To just after so many steps, from the places that were noted in the shards on the way there, if any."""
        with naming(self.stream.name):
            for shard, reader in self._readers.items():
                place = places.get(str(shard))
                if place is not None and (problem := reader.resume(place, steps * self.share)):
                    told = f"{self.stream.name}: shard {shard} is read again from its start, because {problem}"
                    print(told, file=sys.stderr, flush=True)
            progress = Skipping(steps, self.stream.name)
            for step in range(1, steps + 1):
                for shard, reader in self._readers.items():
                    self._skip_to(step * self.share, shard, reader)
                progress.reached(step)

    def find_places(self, step: int) -> dict[str, Any]:
        """For each shard the last place noted on the way to this step, if there is one."""
        found = {str(shard): reader.find_place(step * self.share) for shard, reader in self._readers.items()}
        return {shard: place for shard, place in found.items() if place is not None}

    def has_next(self) -> bool:
        """Whether the next step has all its rows or, padded, any."""
        counts = [count for _, count in self._peek().values()]
        return any(counts) if self._pads else all(count == self.share for count in counts)

    def mark_next(self) -> dict[str, str]:
        """What the next records of each shard are, in short."""
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

    def _take(self) -> BytesStored:
        taken, self._ahead = self._peek(), None
        for shard, (rows, count) in taken.items():
            self._remember(shard, rows, count)
        return taken

    def _remember(self, shard: int, rows: Any, count: int) -> None:
        """The last row of a shard, for what is padded."""
        if count:
            self._last[shard] = take_rows(rows, slice(count - 1, None)) if self._in_blocks else rows[-1:]

    def _peek(self) -> BytesStored:
        if self._ahead is None:
            self._ahead = {shard: reader.take(self.share) for shard, reader in self._readers.items()}
        elif isinstance(self._ahead, Exception):
            raise self._ahead
        return self._ahead

    def _peek_for_later(self) -> bool:
        """Whether there is a next step; what is wrong with it is told when its turn comes."""
        try:
            return self.has_next()
        except Exception as error:
            self._ahead = error
            return True

    def _listed(self, rows: Any, count: int) -> list[Any]:
        if not count:
            return []
        return [rows] if self._in_blocks else list(rows)

    def _rows(self, part: Part) -> NDArray[np.int64]:
        return np.minimum(part.rows, self.batch_size - 1)

    def _block(self, step: int, taken: BytesStored, part: Part) -> Block:
        rows = self._rows(part)
        pieces: list[Any] = []
        for shard in np.unique(rows // self.share).tolist():
            pieces += self._pieces(shard, taken[shard], rows[rows // self.share == shard] - shard * self.share)
        start = step * self.batch_size
        block = join_blocks(pieces) if self._in_blocks else self._join_records(pieces, start, rows)
        return self.work.apply_map(block, start + rows, start, rows)

    def _join_records(self, records: list[Any], start: int, rows: NDArray[np.int64]) -> Block:
        if self.work.collate is None:
            return stack_records(records, start + rows)
        return self.work.apply_collate(records, start + rows, start, rows)

    def _pieces(self, shard: int, taken: tuple[Any, int], rows: NDArray[np.int64]) -> list[Any]:
        """One block, or one record a row."""
        found, count = taken if taken[1] else (self._last[shard], 1)
        rows = np.minimum(rows, count - 1)
        return [take_rows(found, rows)] if self._in_blocks else [found[row] for row in rows]

    def _mask(self, taken: BytesStored, part: Part) -> NDArray[np.bool_]:
        counts = np.zeros(self.stream.shards, np.int64)
        for shard, (_, count) in taken.items():
            counts[shard] = count
        rows = self._rows(part)
        return rows % self.share < counts[rows // self.share]
