"""A part of a source, chosen by number or by a predicate, and a source whose rows are changed when they are read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, count_rows, map_leaves, stack_records, take_rows
from hostmesh.worker.mixing.filtering import find_kept
from hostmesh.worker.sources.base import BaseSource, Source
from hostmesh.worker.text.lengths import by_field
from hostmesh.worker.verify.content import Content


class Selection(BaseSource):
    """Some records of a source, in a fixed order: a range of their numbers, or a list."""

    def __init__(self, source: Source, chosen: range | Ids, name: str) -> None:
        self.source, self.chosen, self.name = source, chosen, name

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def content(self) -> Content | None:
        """All that is behind the source, and the list."""
        found: Content | None = getattr(self.source, "content", None)
        if found is None or isinstance(self.chosen, range):
            return found
        return found.with_array("the records kept", self.chosen)

    def identity(self) -> Mapping[str, str]:
        before = identity_of(self.source)
        if isinstance(self.chosen, range):
            return before
        return {**before, "kept": f"{len(self):,} records {zlib.crc32(self.chosen.tobytes()):08x}"}

    @property
    def lengths(self) -> Callable[..., Any] | None:
        """How long records are, where the source knows it."""
        ask = by_field(getattr(self.source, "lengths", None))
        return None if ask is None else lambda ids, field=None: ask(self._translate(ids), field)

    def pieces(
        self, field: str, ids: Ids, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[NDArray[Any]] | None:
        """Of each record the tokens from a start to a stop; None where the source reads whole records only."""
        ask = getattr(self.source, "pieces", None)
        found: list[NDArray[Any]] | None = ask(field, self._translate(ids), starts, stops) if callable(ask) else None
        return found

    def read(self, ids: Ids) -> Block:
        return self.source.read(self._translate(ids))

    def records(self, ids: Ids) -> list[Record]:
        return self.source.records(self._translate(ids))

    def _translate(self, ids: Ids) -> Ids:
        check_ids(ids, len(self), self.name)
        return ids + self.chosen.start if isinstance(self.chosen, range) else self.chosen[ids]


class Mapped(BaseSource):
    """Rows are changed by a function of blocks, before they are mixed with those of other sources.

    It has neither `lengths` nor `pieces`: the function may make records longer or shorter.
    """

    def __init__(self, source: Source, function: Callable[[Block], Block]) -> None:
        if not callable(function):
            raise DataError(f"map of {source.name} wants a function of a block; found {function!r}")
        self.source, self.function = source, function
        self.name = f"{source.name}.map({getattr(function, '__name__', type(function).__name__)})"

    def __len__(self) -> int:
        return len(self.source)

    @property
    def content(self) -> Content | None:
        """What is behind the source; of what the function makes of it a few records are compared."""
        found: Content | None = getattr(self.source, "content", None)
        return found

    def identity(self) -> Mapping[str, str]:
        return identity_of(self.source)

    def read(self, ids: Ids) -> Block:
        return self._apply(self.source.read(ids), len(ids))

    def records(self, ids: Ids) -> list[Record]:
        """One by one, because rows of different lengths make no block."""
        found = self.source.records(ids)
        blocks = [stack_records([record], [id_]) for record, id_ in zip(found, ids.tolist(), strict=True)]
        return [take_rows(self._apply(block, 1), 0) for block in blocks]

    def _apply(self, block: Block, rows: int) -> Block:
        with error_context(f"map of {self.source.name}"):
            mapped = map_leaves(np.asarray, self.function(block))
            if (found := count_rows(mapped, "what it returned")) != rows:
                raise DataError(f"a block of {rows} rows wants as many back; found {found}")
        return mapped


def identity_of(source: Source) -> Mapping[str, str]:
    return source.identity() if isinstance(source, BaseSource) else {}


def take(source: Source, count: int) -> Selection:
    _check_count("take", source, count, 1, len(source))
    return _select(source, range(count), f"{source.name}.take({count})")


def skip(source: Source, count: int) -> Selection:
    _check_count("skip", source, count, 0, len(source) - 1)
    return _select(source, range(count, len(source)), f"{source.name}.skip({count})")


def filter_records(source: Source, predicate: Callable[[Record], bool]) -> Selection:
    """Looks at all records now; see `find_kept`."""
    if not callable(predicate):
        raise DataError(f"filter of {source.name} wants a function of a record; found {predicate!r}")
    kept = find_kept(source, predicate)
    if not len(kept):
        raise DataError(f"filter of {source.name} wants to keep at least one record; found none of {len(source):,}")
    return _select(source, kept, f"{source.name}.filter({getattr(predicate, '__name__', type(predicate).__name__)})")


def _select(source: Source, chosen: range | Ids, name: str) -> Selection:
    """A selection of a selection is one of the source behind it."""
    if not isinstance(source, Selection):
        return Selection(source, chosen, name)
    behind = source.chosen
    if isinstance(chosen, range):
        return Selection(source.source, behind[chosen.start : chosen.stop], name)
    if isinstance(behind, range):
        return Selection(source.source, chosen + behind.start, name)
    return Selection(source.source, behind[chosen], name)


def _check_count(what: str, source: Source, count: Any, least: int, most: int) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not least <= count <= most:
        raise DataError(
            f"{what} of {source.name}, which has {len(source):,} records, wants a number from {least} to {most};"
            f" found {count!r}"
        )
