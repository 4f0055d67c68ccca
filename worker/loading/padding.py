"""Records of varying length become blocks of one of a few lengths, which all processes choose alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.ahead.failure import Failure
from hostmesh.worker.loading.ahead.prefetch import ReadAhead
from hostmesh.worker.loading.choices import require_function
from hostmesh.worker.loading.lengths import KnownLengths, Lengths
from hostmesh.worker.loading.reader import StepRows
from hostmesh.worker.loading.rows import Block, Ids, Record
from hostmesh.worker.reading.transforms import Collate, Map, Transforms
from hostmesh.worker.sources.base import Source
from hostmesh.worker.streams.has_next import GlobalHasNext
from hostmesh.worker.streams.stream import Stream

B = TypeVar("B", bound="Batch")


@dataclass(frozen=True)
class Unpadded:
    """Records of a step that wait for the length that all processes agree on."""

    records: list[Record]
    ids: Ids
    start: int
    rows: NDArray[np.int64]
    longest: int


class PaddingTransforms(Transforms):
    """In the place of `collate`: pads to a length, then maps.

    Where the source knows the lengths of its records, those of the whole batch tell the length at once. Else records
    are padded to what this process needs, and once more if another one needs a greater length.
    """

    def __init__(self, map: Map | None, seed: int, lengths: Lengths, known: KnownLengths | None) -> None:
        super().__init__(map, _not_called, seed)  # with a `collate`, readers give records
        self.lengths, self._known = lengths, known
        self.must_agree = known is None

    def describe(self) -> dict[str, Any]:
        """What must be the same on all processes."""
        return {"lengths": self.lengths.describe(), "lengths are known": not self.must_agree}

    def apply_collate(self, records: list[Record], ids: Ids, start: int, rows: NDArray[np.int64]) -> Any:
        if self._known is not None:
            length = self.lengths.choose(self._known.longest_from(start))
            return self.lengths.pad_records(records, ids, length)
        longest = max(self.lengths.measure(record, id_) for record, id_ in zip(records, ids.tolist(), strict=True))
        return Unpadded(records, ids, start, rows, longest)

    def apply_map(self, block: Any, ids: Ids, start: int, rows: NDArray[np.int64]) -> Any:
        return block if isinstance(block, Unpadded) else super().apply_map(block, ids, start, rows)

    def length_of(self, step: int) -> int:
        return 0 if self._known is None else self.lengths.choose(self._known.longest_of(step))

    def complete(self, step: int, rows: StepRows, length: int = 0) -> StepRows:
        """The rows of a step, padded to a length or, at first, to what this process needs."""
        length = length or self.lengths.choose(max(block.longest for block in rows.blocks))
        try:
            blocks = [self.complete_block(block, length) for block in rows.blocks]
            return rows._replace(blocks=blocks, length=length)
        except Exception as error:
            raise as_data_error(f"step {step}", error) from error

    def complete_block(self, found: Unpadded, length: int) -> Block:
        block = self.lengths.pad_records(found.records, found.ids, length)
        return super().apply_map(block, found.ids, found.start, found.rows)


def make_transforms(
    map: Map | None, collate: Collate | None, seed: int, lengths: Lengths | None, known: KnownLengths | None
) -> Transforms:
    require_function("map", map)
    require_function("collate", collate)
    if lengths is None:
        return Transforms(map, collate, seed)
    if collate is not None:
        raise ValueError("lengths= pads records by itself: wanted it or collate=, found both")
    return PaddingTransforms(map, seed, lengths, known)


def find_one_thread(source: Source | Stream, transforms: Transforms) -> str:
    """Why one thread reads, where several cannot."""
    if isinstance(source, Stream):
        return "the records of a stream only come in order"
    how = "lengths= of what does not know how long its records are wants whole batches (a method lengths(ids) says it)"
    return how if transforms.must_agree else ""


def _not_called(records: list[Record]) -> Block:
    raise AssertionError("padding stands in for it")


class Batch(Protocol):
    """A batch on the host, padded to what this process needs."""

    @property
    def length(self) -> int: ...


class AgreedBatches(Generic[B]):
    """Holds one batch ahead, so that the length that all processes agree on is there when it is asked for.

    Taking is a collective, which only the thread that trains may begin.
    """

    def __init__(self, batches: ReadAhead[B, B], longest: GlobalHasNext, finish: Callable[[B, int], Any]) -> None:
        """`finish` puts a batch on the devices, padded to the length that was agreed on."""
        self.on_host, self._longest, self._finish = batches, longest, finish
        self._ahead: B | Failure | None = None

    def take(self) -> Any:
        if self._ahead is None:
            self._read_next()
        batch, length = self._ahead, self._longest.value()
        if isinstance(batch, Failure):
            raise batch.take()
        assert batch is not None
        self._read_next()
        return self._finish(batch, length)

    def _read_next(self) -> None:
        """What goes wrong is raised in its turn."""
        try:
            self._ahead = self.on_host.take()
        except Exception as error:
            self._ahead = Failure(error)
        self._longest.reduce(0 if isinstance(self._ahead, Failure) else self._ahead.length)

    def close(self) -> None:
        self.on_host.close()
