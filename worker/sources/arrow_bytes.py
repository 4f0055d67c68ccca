"""The bytes of a Hugging Face table's columns, by which its content is known: numbers, lists of numbers, and text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from hostmesh.worker.loading.rows import Ids
from hostmesh.worker.sources.arrow_columns import FixedColumn, ListColumn
from hostmesh.worker.verify.content import Stored

# Rows whose mean is taken for the size of a row, where rows have different sizes.
LOOKED_AT = 64

Read: TypeAlias = Callable[[int, int], Any]


def store_column(
    name: str, column: FixedColumn | ListColumn | None, dataset: Any, find_rows: Callable[[Ids], Ids]
) -> Stored | None:
    """`find_rows` gives the rows of the table for those of the dataset.

    None for other columns: what they hold may differ where records do not, such as the path of a picture.
    """
    read: Read | None
    if isinstance(column, FixedColumn):
        fixed, size = column, column.row_size
        read = lambda start, stop: fixed.read(find_rows(np.arange(start, stop)))  # noqa: E731
    else:
        read = _read_lists(column, find_rows) if isinstance(column, ListColumn) else _read_text(name, dataset)
        looked_at = min(LOOKED_AT, len(dataset))
        if read is None or not looked_at:
            return None
        size = max(1, len(read(0, looked_at)) // looked_at)
    return Stored(name, len(dataset), size, read, records=(0, size) if size else None)


def _read_lists(column: ListColumn, find_rows: Callable[[Ids], Ids]) -> Read:
    """Where each list ends is a part of it."""

    def read(start: int, stop: int) -> bytes:
        lists = column.rows(find_rows(np.arange(start, stop)))
        lengths = np.array([len(values) for values in lists], np.int64)
        return lengths.tobytes() + b"".join(values.tobytes() for values in lists)

    return read


def _read_text(name: str, dataset: Any) -> Read | None:
    import pyarrow as pa

    kind = dataset.data.column(name).type
    is_of = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(is_kind(kind) for is_kind in is_of):
        return None
    only = dataset.select_columns([name])
    return lambda start, stop: repr(only[start:stop][name]).encode("utf-8", "surrogatepass")
