"""Records that only come in order, from a fixed number of logical shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from worker.errors import DataError
from worker.rows import Record, count_rows, leaves, map_leaves, split_block, take_rows


@dataclass(frozen=True)
class Stream:
    """`open(shard, shards)` begins one pass over the records of a shard.

    It gives records, or blocks of stacked records where `batched`. With one shard every process reads all records
    and keeps its own; with more, each reads only the shards its rows come from. A global batch is made of equally
    many rows of each shard, so it is the same for any number of processes, as far as the passes are.
    """

    open: Callable[[int, int], Iterable[Any]]
    shards: int = 1
    batched: bool = False
    name: str = "a stream"


class RecordReader:
    """The records of one shard over its epochs, some at a time."""

    def __init__(self, stream: Stream, shard: int, epochs: int | None) -> None:
        self._stream = stream
        self._arriving = _passes(stream, shard, epochs)
        self._records: list[Record] = []

    def take(self, rows: int) -> tuple[list[Record], int]:
        """So many records, fewer only at the end, and how many they are."""
        while len(self._records) < rows and (item := next(self._arriving, None)) is not None:
            self._records += self._records_of(item)
        taken, self._records = self._records[:rows], self._records[rows:]
        return taken, len(taken)

    def _records_of(self, item: Any) -> list[Record]:
        if not self._stream.batched:
            return [item]
        return split_block(item, count_rows(item, self._stream.name))


class BlockReader:
    """Like RecordReader for a stream that comes in blocks, which are cut and joined without taking records apart."""

    def __init__(self, stream: Stream, shard: int, epochs: int | None) -> None:
        self._name = stream.name
        self._arriving = _passes(stream, shard, epochs)
        self._rest: Any = None
        self._left = 0

    def take(self, rows: int) -> tuple[Any, int]:
        """One block, None at the very end, and how many rows it has."""
        pieces: list[Any] = []
        wanted = rows
        while wanted and self._refill():
            number = min(wanted, self._left)
            pieces.append(take_rows(self._rest, slice(0, number)))
            self._rest, self._left = take_rows(self._rest, slice(number, None)), self._left - number
            wanted -= number
        return (join_blocks(pieces) if pieces else None), rows - wanted

    def _refill(self) -> bool:
        while self._left == 0:
            block = next(self._arriving, None)
            if block is None:
                return False
            self._rest, self._left = map_leaves(np.asarray, block), count_rows(block, self._name)
        return True


def join_blocks(blocks: list[Any]) -> Any:
    """A fresh block with the rows of all of them, which have the same structure."""
    parts = [[leaf for _, leaf in leaves(block)] for block in blocks]
    joined = iter([np.concatenate(column) for column in zip(*parts, strict=True)])
    return map_leaves(lambda _: next(joined), blocks[0])


def _passes(stream: Stream, shard: int, epochs: int | None) -> Iterator[Any]:
    for _ in range(epochs) if epochs is not None else count():
        is_empty = True
        for item in stream.open(shard, stream.shards):
            is_empty = False
            yield item
        if is_empty:
            raise DataError(f"{stream.name}: a pass over shard {shard} of {stream.shards} gave no record")
