"""The records of one shard of a stream over its epochs, some at a time, from the start or from a noted place on."""

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

# Seconds between two places that are noted, at the least; more where noting one takes long: it may cost a hundredth.
NOTE_EVERY = 1.0
SHARE_OF_TIME = 100


@dataclass(frozen=True)
class Place:
    """The state of the iterator of a pass after so many rows of the shard, and a mark of what it gave next."""

    rows: int
    passes: int  # whole ones before this
    state: str
    mark: str


class ShardReader(ABC):
    def __init__(self, stream: Stream, shard: int, epochs: int | None, ahead: int) -> None:
        """`ahead`: so many takes at most are not delivered yet."""
        self._stream, self._shard, self._epochs = stream, shard, epochs
        self.taken = 0
        self._items: Any = None  # the iterator of this pass
        self._places: tuple[Place, ...] = ()  # replaced, never changed: another thread may look at it
        self._most_places = ahead + 3
        self._note_at = 0.0
        self._begin()

    @abstractmethod
    def take(self, rows: int) -> tuple[Any, int]:
        """So many rows, fewer only at the end, and how many they are."""

    @abstractmethod
    def skip(self, rows: int) -> None:
        """Like take, with nothing to show for it."""

    @abstractmethod
    def _held(self) -> int:
        """Rows that have arrived and were not taken yet."""

    @abstractmethod
    def _keep(self, item: Any) -> None: ...

    def find_place(self, rows: int) -> dict[str, Any] | None:
        """The newest noted one that comes before the last of so many rows, so that this one is read again."""
        rows = rows if self._total is None else min(rows, self._total)
        found = [place for place in self._places if place.rows < rows]
        return asdict(found[-1]) if found else None

    def resume(self, found: Mapping[str, Any], rows: int) -> str | None:
        """Goes on from a place noted on the way to so many rows. If it cannot, why; then it is at the start."""
        try:
            place = Place(**found)
            if not 0 <= place.rows < rows:
                raise DataError(f"the place saved comes after {place.rows} records, wanted one before {rows}")
            self._items = iter(self._stream.open(self._shard, self._stream.shards))
            self._items.set_state(decode_state(place.state))
            self._pass = place.passes
            item = next(self._arriving, None)
            problem = None if _mark(item) == place.mark else "there are other records at the place that was saved"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem is not None:
            self._begin()
            return problem
        self.taken, self._places = place.rows, (place,)
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
            is_empty = self._items is None  # one that was resumed may be at its end
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

    def _note_place(self) -> None:
        """Now and then, when there is more to read: the first of it belongs to the place."""
        began = time.monotonic()
        if began < self._note_at or not hasattr(self._items, "get_state"):
            return
        rows, passes, state = self.taken + self._held(), self._pass, _ask_state(self._items)
        spent = time.monotonic() - began
        if state is not None and (item := next(self._arriving, None)) is not None:
            self._keep(item)
            self._places = (*self._places, Place(rows, passes, state, _mark(item)))[-self._most_places :]
        self._note_at = time.monotonic() + max(NOTE_EVERY, SHARE_OF_TIME * spent)


class RecordReader(ShardReader):
    """Gives lists of records."""

    def __init__(self, *args: Any) -> None:
        self._records: list[Record] = []
        super().__init__(*args)

    def take(self, rows: int) -> tuple[list[Record], int]:
        if len(self._records) < rows:
            self._note_place()
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
        self._may_note = False
        super().__init__(*args)

    def take(self, rows: int) -> tuple[Any, int]:
        pieces = list(self._pieces(rows))
        taken = sum(number for _, number in pieces)
        return (join_blocks([piece for piece, _ in pieces]) if pieces else None), taken

    def skip(self, rows: int) -> None:
        for _ in self._pieces(rows):
            pass

    def _pieces(self, rows: int) -> Iterator[tuple[Any, int]]:
        self._may_note = True
        while rows and self._refill():
            number = min(rows, self._left)
            piece, self._rest = take_rows(self._rest, slice(0, number)), take_rows(self._rest, slice(number, None))
            self._left -= number
            self.taken += number
            rows -= number
            yield piece, number

    def _refill(self) -> bool:
        if self._left == 0 and self._may_note:  # one place a take, or those of the delivered rows would be crowded out
            self._note_place()
            self._may_note = False
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
    except Exception:  # not every iterator that could tell does; the records are there all the same
        return None


def _mark(item: Any) -> str:
    return fingerprint_records([item])
