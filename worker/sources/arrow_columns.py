"""Columns of an Arrow table as arrays on the table's own memory, mapped or not: only rows that are read are loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Ids


@dataclass(frozen=True)
class Nested:
    """The rows of one chunk that are stored as lists of lists, though all have one shape."""

    offsets: list[NDArray[Any]]  # where each list begins in those below it, outermost first
    values: NDArray[Any]
    length: int
    shape: tuple[int, ...]

    def starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        for offsets in self.offsets:
            rows = offsets[rows].astype(np.int64)
        return rows

    def as_array(self) -> NDArray[Any] | None:
        first, last = self.starts(np.array([0, self.length])).tolist()
        if last - first != self.length * math.prod(self.shape):
            return None
        return self.values[first:last].reshape(self.length, *self.shape)

    def find_bad_row(self) -> tuple[int, int] | None:
        """The first row that has not as many values as its shape, which those who write tables do not check."""
        sizes = np.diff(self.starts(np.arange(self.length + 1)))
        bad = np.flatnonzero(sizes != math.prod(self.shape))
        return (int(bad[0]), int(sizes[bad[0]])) if len(bad) else None


@dataclass(frozen=True)
class FixedColumn:
    """Rows of one shape and dtype: one array a chunk, with the number of the row that ends it."""

    name: str
    arrays: list[NDArray[Any]]
    ends: NDArray[np.int64]
    unchecked: dict[int, Nested] = field(default_factory=dict)

    @property
    def row_size(self) -> int:
        return self.arrays[0][:1].nbytes

    def row_lengths(self, rows: Ids) -> NDArray[np.int64] | None:
        """None where a row is not an array of one axis."""
        return np.full(len(rows), self.arrays[0].shape[1]) if self.arrays[0].ndim == 2 else None

    def read(self, ids: Ids) -> NDArray[Any]:
        if len(self.arrays) == 1:
            self._check({0})
            return self.arrays[0].take(ids, 0)
        # Files often have a chunk for every thousand rows: a shuffled block touches more of them than it pays to group.
        rows = self.rows(ids)
        shape = (len(rows), *self.arrays[0].shape[1:])
        joined = np.concatenate(rows) if rows and len(shape) > 1 else np.array(rows, self.arrays[0].dtype)
        return joined.reshape(shape)

    def rows(self, ids: Ids) -> list[Any]:
        chunk_rows = list(_find(self.ends, ids))
        self._check({chunk for chunk, _ in chunk_rows})
        return [self.arrays[chunk][row] for chunk, row in chunk_rows]

    def _check(self, chunks: set[int]) -> None:
        """Checks a chunk when it is first read: to check all at once would read the whole table."""
        if not self.unchecked:
            return
        for chunk in chunks:
            if nested := self.unchecked.get(chunk):
                _refuse_bad_row(self.name, nested, int(self.ends[chunk]))
                self.unchecked.pop(chunk, None)  # another thread may have been here too


@dataclass(frozen=True)
class ListColumn:
    """Rows of any length: the values of each chunk, and where in them each row begins."""

    values: list[NDArray[Any]]
    offsets: list[NDArray[Any]]
    ends: NDArray[np.int64]

    def rows(self, ids: Ids) -> list[Any]:
        return [
            self.values[chunk][self.offsets[chunk][row] : self.offsets[chunk][row + 1]]
            for chunk, row in _find(self.ends, ids)
        ]

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.concatenate([np.diff(offsets) for offsets in self.offsets]).astype(np.int64)

    def row_lengths(self, rows: Ids) -> NDArray[np.int64]:
        """From the offsets alone."""
        return self._lengths[rows]

    def pieces(self, ids: Ids, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[Any]:
        """Of each row the values from a start to a stop."""
        rows = self.rows(ids)
        return [row[start:stop] for row, start, stop in zip(rows, starts.tolist(), stops.tolist(), strict=True)]


def make_column(name: str, column: Any) -> FixedColumn | ListColumn | None:
    """None where a column has gaps, text or anything else that is no array of numbers."""
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if not chunks:
        return None
    ends = np.cumsum([len(chunk) for chunk in chunks])
    nested = {number: found for number, chunk in enumerate(chunks) if (found := _as_nested(chunk))}
    if len(nested) == len(chunks):
        return _make_nested(name, nested, ends)
    arrays = [_as_array(chunk) for chunk in chunks]
    if all(array is not None for array in arrays):
        return FixedColumn(name, arrays, ends)
    if all(_is_list_of_numbers(chunk) for chunk in chunks):
        values = [_as_array(chunk.values) for chunk in chunks]
        return ListColumn(values, [chunk.offsets.to_numpy() for chunk in chunks], ends)
    return None


def _make_nested(name: str, nested: dict[int, Nested], ends: NDArray[np.int64]) -> FixedColumn:
    arrays = []
    for number, chunk in nested.items():
        array = chunk.as_array()
        if array is None:
            _refuse_bad_row(name, chunk, int(ends[number]))
        else:
            arrays.append(array)
    return FixedColumn(name, arrays, ends, nested)


def _refuse_bad_row(name: str, chunk: Nested, end: int) -> None:
    if bad := chunk.find_bad_row():
        row, size = end - chunk.length + bad[0], bad[1]
        wanted = f"{math.prod(chunk.shape)} by its shape {chunk.shape}"
        raise DataError(f"row {row} of the table: {name} has {size} values, wanted {wanted}")


def _find(ends: NDArray[np.int64], ids: Ids) -> Iterator[tuple[int, int]]:
    """The chunk of each row, and its number in that chunk."""
    chunks = np.searchsorted(ends, ids, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    return zip(chunks.tolist(), (ids - starts[chunks]).tolist(), strict=True)


def _as_nested(chunk: Any) -> Nested | None:
    """Hugging Face's Array2D and its like: an extension type with a shape, on lists of lists."""
    import pyarrow as pa

    shape: Any = getattr(chunk.type, "shape", (None,))
    if not isinstance(chunk, pa.ExtensionArray) or None in shape:
        return None
    offsets, inner = [], chunk.storage
    while isinstance(inner, (pa.ListArray, pa.LargeListArray)) and not inner.null_count:
        offsets.append(inner.offsets.to_numpy())
        inner = inner.values
    values = _as_array(inner)
    return None if values is None or not offsets else Nested(offsets, values, len(chunk), tuple(shape))


def _as_array(chunk: Any) -> Any:
    import pyarrow as pa

    if isinstance(chunk, pa.ExtensionArray) or chunk.null_count:
        return None
    if pa.types.is_fixed_size_list(chunk.type):
        values = _as_array(chunk.flatten())
        return None if values is None else values.reshape(len(chunk), chunk.type.list_size, *values.shape[1:])
    if pa.types.is_integer(chunk.type) or pa.types.is_floating(chunk.type):
        return chunk.to_numpy(zero_copy_only=True)
    if pa.types.is_boolean(chunk.type):
        return chunk.to_numpy(zero_copy_only=False)  # eight to a byte in Arrow
    return None


def _is_list_of_numbers(chunk: Any) -> bool:
    import pyarrow as pa

    is_list = pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type)
    return is_list and not chunk.null_count and getattr(_as_array(chunk.values), "ndim", 0) == 1
