"""Whether a stream gives records or batches: what its pipeline says, checked against the first item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import leaves

Check: TypeAlias = Callable[[Any], None]

SAY_IT = "say which they are: as_stream(data, batched=True), or batched=False"


@dataclass(frozen=True)
class Items:
    """`batched` is None where it is not known; `sizes` are the batch sizes, as far as they are known."""

    batched: bool | None
    sizes: frozenset[int] = frozenset()

    def check(self, item: Any, name: str) -> None:
        """Steps of the user's own may do anything, so the first item is checked for what it can be."""
        rows = count_equal_rows(item)
        if self.batched is None and rows is not None:
            found = f"every array of the first one has {rows} rows"
            raise DataError(f"{name} gives records or batches, and nothing tells which: {found}; {SAY_IT}")
        if self.batched and not self._can_be_batch(item, rows):
            wanted = f" of {' or '.join(map(str, sorted(self.sizes)))}" if self.sizes else ""
            found = "arrays of different lengths" if rows is None else f"{rows} rows"
            raise DataError(f"{name} makes batches{wanted} on its way, but its first item has {found}; {SAY_IT}")

    def _can_be_batch(self, item: Any, rows: int | None) -> bool:
        if rows is None or not self.sizes or rows in self.sizes:
            return rows is not None
        # A batch may be short. But a list that is as long as a batch is a list of records.
        return rows < max(self.sizes) and self.sizes.isdisjoint(_list_lengths(item))


RECORDS = Items(batched=False)
UNKNOWN = Items(batched=None)


def batches_of(size: Any) -> Items:
    """The size only where it is a plain number."""
    return Items(True, frozenset([int(size)]) if isinstance(size, (int, np.integer)) else frozenset())


def combine(parts: Iterable[Items]) -> Items:
    """What a step gives that mixes items of all these."""
    found = list(parts)
    if len({part.batched for part in found}) != 1:
        return UNKNOWN
    return Items(found[0].batched, frozenset().union(*(part.sizes for part in found)))


def decide(declared: Items, batched: bool | None, name: str) -> tuple[bool, Check | None]:
    """Whether a stream gives batches, and how its first item is checked: not at all where the user has said it."""
    if batched is not None:
        return batched, None
    return declared.batched is True, None if declared == RECORDS else lambda item: declared.check(item, name)


def count_equal_rows(item: Any) -> int | None:
    """How many rows all arrays have, where they have equally many: only then can it be a batch."""
    lengths = {len(leaf) if np.ndim(leaf) else None for _, leaf in leaves(item)}
    return lengths.pop() if len(lengths) == 1 else None


def _list_lengths(item: Any) -> Iterator[int]:
    if isinstance(item, (list, tuple)):
        yield len(item)
    if isinstance(item, (dict, list, tuple)):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _list_lengths(part)
