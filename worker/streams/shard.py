"""The records of one shard of a stream over its epochs, from the start or from a recorded position on."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Record, count_rows, leaves, map_leaves, split_block, take_rows
from hostmesh.worker.streams.passes import Pass
from hostmesh.worker.streams.state import decode_state, encode_state
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.verify.fingerprint import fingerprint_records

# Seconds between two recorded positions, at least. Where recording is slow it is done less often, so that it takes at
# most a hundredth of the time.
NOTE_EVERY = 1.0
SHARE_OF_TIME = 100


@dataclass(frozen=True)
class ShardPosition:
    """The state of a pass's iterator after so many rows of the shard, and a fingerprint of the item that came next."""

    rows: int
    passes: int  # completed ones
    state: str
    fingerprint: str


class ShardReader(ABC):
    def __init__(self, stream: Stream, shard: int, epochs: int | None, ahead: int) -> None:
        """`ahead` is how many takes at most are not delivered yet."""
        self._stream, self._shard, self._epochs = stream, shard, epochs
        self.taken = 0
        self._items: Any = None  # the iterator of this pass
        self._positions: tuple[ShardPosition, ...] = ()  # replaced, never changed: another thread may read it
        self._max_positions = ahead + 3
        self._record_at = 0.0
        self._begin()

    @abstractmethod
    def take(self, rows: int) -> tuple[Any, int]:
        """The next rows, fewer than asked for only at the end, and how many they are."""

    @abstractmethod
    def skip(self, rows: int) -> None:
        """Pass over the next rows."""

    @abstractmethod
    def _held(self) -> int:
        """Rows that have arrived and were not taken yet."""

    @abstractmethod
    def _keep(self, item: Any) -> None: ...

    def find_position(self, rows: int) -> dict[str, Any] | None:
        """The newest recorded position before the last of so many rows, so that at least one row is read again."""
        rows = rows if self._total is None else min(rows, self._total)
        found = [position for position in self._positions if position.rows < rows]
        return asdict(found[-1]) if found else None

    def resume(self, found: Mapping[str, Any], rows: int) -> str | None:
        """Go on from a position that was recorded on the way to so many rows.

        Returns None, or why that is not possible: then the shard is at its start.
        """
        try:
            position = ShardPosition(**found)
            if not 0 <= position.rows < rows:
                raise DataError(f"the place saved comes after {position.rows} records, wanted one before {rows}")
            self._items = iter(self._stream.open(self._shard, self._stream.shards))
            self._items.set_state(decode_state(position.state))
            self._pass = position.passes
            item = next(self._arriving, None)
            is_same = _fingerprint(item) == position.fingerprint
            problem = None if is_same else "there are other records at the place that was saved"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            self._begin()
            return problem
        self.taken, self._positions = position.rows, (position,)
        self._keep(item)
        return None

    def _begin(self) -> None:
        if self._stream.rewind is not None:
            self._stream.rewind(self._shard)
        self._pass, self._items = 0, None
        self._total: int | None = None  # rows in all, once the end was seen
        self._arriving = self._arrive()

    def _arrive(self) -> Iterator[Any]:
        while self._epochs is None or self._pass < self._epochs:
            is_empty = self._items is None  # a pass that was resumed may already be at its end
            if self._items is None:
                self._items = iter(self._stream.open(self._shard, self._stream.shards))
            for item in self._items:
                is_empty = False
                yield item
            if is_empty:
                where = f"shard {self._shard} of {self._stream.shards}"
                raise DataError(f"{self._stream.name}: a pass over {where} gave no record")
            self._items = None
            self._pass += 1
        self._total = self.taken + self._held()

    def _record_position(self) -> None:
        """Now and then, before more is read: the next item is part of the position, by its fingerprint."""
        began = time.monotonic()
        if began < self._record_at or not hasattr(self._items, "get_state"):
            return
        rows, passes, state = self.taken + self._held(), self._pass, _ask_state(self._items)
        spent = time.monotonic() - began
        if state is not None and (item := next(self._arriving, None)) is not None:
            self._keep(item)
            position = ShardPosition(rows, passes, state, _fingerprint(item))
            self._positions = (*self._positions, position)[-self._max_positions :]
        self._record_at = time.monotonic() + max(NOTE_EVERY, SHARE_OF_TIME * spent)


class RecordReader(ShardReader):
    """Gives lists of records."""

    def __init__(self, *args: Any) -> None:
        self._records: list[Record] = []
        super().__init__(*args)

    def take(self, rows: int) -> tuple[list[Record], int]:
        if len(self._records) < rows:
            self._record_position()
        while len(self._records) < rows and (item := next(self._arriving, None)) is not None:
            self._keep(item)
        taken, self._records = self._records[:rows], self._records[rows:]
        self.taken += len(taken)
        return taken, len(taken)

    def skip(self, rows: int) -> None:
        held = min(rows, self._held())
        self._records = self._records[held:]
        self.taken += held
        left = rows - held
        if left and not self._stream.batched and isinstance(self._items, Pass):
            skipped = self._items.skip(left)  # in this pass
            self.taken += skipped
            left -= skipped
        if left:
            self.take(left)

    def _held(self) -> int:
        return len(self._records)

    def _keep(self, item: Any) -> None:
        if self._stream.batched:
            self._records += split_block(item, count_rows(item, self._stream.name))
        else:
            self._records.append(item)


class BlockReader(ShardReader):
    """Gives blocks, which are cut and joined without taking records apart; None at the very end."""

    def __init__(self, *args: Any) -> None:
        self._rest: Any = None
        self._left = 0
        self._may_record = False
        super().__init__(*args)

    def take(self, rows: int) -> tuple[Any, int]:
        pieces = list(self._pieces(rows))
        taken = sum(number for _, number in pieces)
        return (join_blocks([piece for piece, _ in pieces]) if pieces else None), taken

    def skip(self, rows: int) -> None:
        for _ in self._pieces(rows):
            pass

    def _pieces(self, rows: int) -> Iterator[tuple[Any, int]]:
        self._may_record = True
        while rows and self._refill():
            number = min(rows, self._left)
            piece, self._rest = take_rows(self._rest, slice(0, number)), take_rows(self._rest, slice(number, None))
            self._left -= number
            self.taken += number
            rows -= number
            yield piece, number

    def _refill(self) -> bool:
        if self._left == 0 and self._may_record:  # one a take: more would push out those before the delivered rows
            self._record_position()
            self._may_record = False
        while self._left == 0:
            block = next(self._arriving, None)
            if block is None:
                return False
            self._keep(block)
        return True

    def _held(self) -> int:
        return self._left

    def _keep(self, item: Any) -> None:
        self._rest, self._left = map_leaves(np.asarray, item), count_rows(item, self._stream.name)


def join_blocks(blocks: list[Any]) -> Any:
    """A fresh block with the rows of all of them, which have the same structure."""
    parts = [[leaf for _, leaf in leaves(block)] for block in blocks]
    joined = iter([np.concatenate(column) for column in zip(*parts, strict=True)])
    return map_leaves(lambda _: next(joined), blocks[0])


def _ask_state(items: Any) -> str | None:
    try:
        return encode_state(items.get_state())
    except Exception:  # an iterator may refuse to give its state; its records can be used all the same
        return None


def _fingerprint(item: Any) -> str:
    return fingerprint_records([item])
