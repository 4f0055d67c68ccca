"""The lengths that rows are padded to, so that a step compiles once for each, and which of them a batch gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.loading.choices import as_count
from hostmesh.worker.loading.rows import Block, Ids, Record, leaves, rebuild, require_fit, stack_records
from hostmesh.worker.mixing.mixture_order import AnyOrder
from hostmesh.worker.mixing.orders import count_ids
from hostmesh.worker.ordering.schedule import Schedule
from hostmesh.worker.text.lengths import AT_ONCE, known_lengths

LENGTHS = "lengths"  # the field that is added to a batch


@dataclass(frozen=True)
class Lengths:
    """Each batch is padded to the smallest of these lengths that holds its longest record.

    - `fields`: the arrays whose first axis varies; all that have one axis, if none are named.
    - `pad`: the value of padding, or one for each field that wants another than 0.
    """

    lengths: Sequence[int]
    fields: Sequence[str] | None = None
    pad: Any = 0

    def __post_init__(self) -> None:
        given = self.lengths
        counts = [as_count(n) for n in given] if np.iterable(given) else [None]
        if not counts or None in counts or counts != sorted(set(counts)):  # type: ignore[type-var]
            hint = f": one length is ({given},)" if as_count(given) else ""
            raise DataError(f"lengths wants ascending integers of 1 or more; found {given!r}{hint}")
        object.__setattr__(self, "lengths", tuple(counts))
        pad = {name: _plain(value) for name, value in self.pad.items()} if isinstance(self.pad, Mapping) else self.pad
        object.__setattr__(self, "pad", _plain(pad))
        if isinstance(self.fields, str):
            object.__setattr__(self, "fields", (self.fields,))

    def choose(self, longest: int) -> int:
        """The length for a batch whose longest record is so long; `check` has refused what none of them holds."""
        return self.lengths[int(np.searchsorted(self.lengths, longest))]

    def check(self, length: int, record: int, name: str = "") -> None:
        if length > self.lengths[-1]:
            where = f"{name}: record {record}" if name else f"record {record}"
            wanted = f"wanted at most {self.lengths[-1]}, the longest of lengths={self.lengths}"
            raise DataError(f"{where} has length {length}, {wanted}")

    def check_pad(self, record: Record) -> None:
        """Whether the arrays of a record can hold their padding."""
        for path, leaf in leaves(record):
            if self.is_varying(path, leaf):
                require_fit(f"pad of {path or 'a record'}", self._pad_of(path), np.asarray(leaf).dtype)

    def describe(self) -> str:
        return f"{self.lengths}, fields {self.fields}, pad {self.pad}"

    def is_varying(self, path: str, leaf: Any) -> bool:
        return np.ndim(leaf) == 1 if self.fields is None else path in self.fields

    def measure(self, record: Record, id_: int) -> int:
        """The length of a record: that of its longest array that varies."""
        found = {path: leaf for path, leaf in leaves(record) if self.is_varying(path, leaf)}
        missing = [field for field in self.fields or () if field not in found or not np.ndim(found[field])]
        if missing or not found:
            wanted = f"the array {missing[0]}" if missing else "an array of one axis"
            there = ", ".join(f"{path or 'it'} {np.shape(leaf)}" for path, leaf in leaves(record))
            raise DataError(f"record {id_}: lengths= wants {wanted}; found {there}: name some by Lengths(fields=…)")
        longest = max(len(leaf) for leaf in found.values())
        self.check(longest, id_)
        return longest

    def pad_records(self, records: Sequence[Record], ids: NDArray[np.int64], length: int) -> Block:
        """A block of that length; to a dict, the field `lengths` is added: how long each record is."""
        sizes = [self.measure(record, id_) for record, id_ in zip(records, ids.tolist(), strict=True)]
        for size, id_ in zip(sizes, ids.tolist(), strict=True):
            if size > length:
                raise DataError(f"record {id_} has length {size}, where its source said at most {length}")
        block = stack_records([self._padded(record, length, "") for record in records], ids)
        if not isinstance(block, dict):
            return block
        if LENGTHS in block:
            raise DataError(f"lengths= adds the field {LENGTHS!r}; found a record that has one: rename it")
        return {**block, LENGTHS: np.array(sizes, np.int32)}

    def _pad_of(self, path: str) -> Any:
        return self.pad.get(path, 0) if isinstance(self.pad, Mapping) else self.pad

    def _padded(self, tree: Any, length: int, path: str) -> Any:
        if isinstance(tree, dict):
            return {
                key: self._padded(part, length, f"{path}.{key}" if path else str(key)) for key, part in tree.items()
            }
        if isinstance(tree, (tuple, list)):
            return rebuild(tree, [self._padded(part, length, f"{path}[{n}]") for n, part in enumerate(tree)])
        if not self.is_varying(path, tree):
            return tree
        array = np.asarray(tree)
        try:
            padded = np.full((length, *array.shape[1:]), self._pad_of(path), array.dtype)
        except (OverflowError, TypeError, ValueError):
            require_fit(f"pad of {path or 'a record'}", self._pad_of(path), array.dtype)
            raise
        padded[: len(array)] = array
        return padded


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's: those are wrapped where they do not fit, these are refused."""
    return value.item() if isinstance(value, np.generic) else value


def as_lengths(given: Any) -> Lengths | None:
    return given if given is None or isinstance(given, Lengths) else Lengths(given)


@dataclass(frozen=True)
class KnownLengths:
    """The longest record of any batch, from its ids alone: `ask` are what sources say of the fields that vary."""

    ask: Sequence[Callable[[Ids], NDArray[np.int64]]]
    order: AnyOrder
    schedule: Schedule

    def longest_from(self, start: int) -> int:
        """In the batch that begins at this global position."""
        ids = self.order.ids(start, self.schedule.stop(start))
        return max(int(ask(ids).max()) for ask in self.ask)

    def longest_of(self, step: int) -> int:
        return self.longest_from(self.schedule.positions(step)[0])


def find_known_lengths(
    source: Any, lengths: Lengths | None, order: AnyOrder, schedule: Schedule
) -> KnownLengths | None:
    """None where nobody needs them, or the source does not know them.

    All records are checked at once, so that one that is too long is told before the first step.
    """
    if lengths is None:
        return None
    if lengths.pad:
        with error_context(source.name):
            lengths.check_pad(source.records(np.zeros(1, np.int64))[0])
    asked = [known_lengths(source, field) for field in lengths.fields or (None,)]
    known = [ask for ask in asked if ask is not None]
    if len(known) < len(asked):
        return None
    count = count_ids(source)
    for start in range(0, count, AT_ONCE):
        ids = np.arange(start, min(start + AT_ONCE, count))
        found = np.max([ask(ids) for ask in known], axis=0)
        lengths.check(int(found.max()), int(ids[found.argmax()]), source.name)
    return KnownLengths(known, order, schedule)
