"""Any object with a length and rows as a source: `read(ids)`, `__getitems__(ids)` or `__getitem__(id)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block, Ids, Record, count_rows, map_leaves
from hostmesh.worker.sources.base import BlockSource, RecordSource


def object_source(data: Any, name: str | None = None) -> BlockSource | RecordSource:
    """The fastest of the three ways that the object has."""
    name = name or type(data).__name__
    lengths = find_lengths(data)
    if hasattr(data, "read"):
        return BlockSource(name, len(data), lambda ids: _read(data, ids, name), lengths=lengths)
    return RecordSource(name, len(data), lambda ids: get_records(data, ids, name), lengths=lengths)


def find_lengths(data: Any) -> Callable[..., Any] | None:
    """Its method of that name, which says how long records are; anything else of that name is the object's own."""
    found = getattr(data, "lengths", None)
    return found if callable(found) else None


def get_records(data: Any, ids: Ids, name: str) -> Sequence[Record]:
    if not hasattr(data, "__getitems__"):
        return [data[id_] for id_ in ids.tolist()]
    records: Sequence[Record] = data.__getitems__(ids.tolist())
    if len(records) != len(ids):
        raise DataError(f"{name}: __getitems__ of {len(ids)} ids wants as many records, found {len(records)}")
    return records


def _read(data: Any, ids: Ids, name: str) -> Block:
    block = map_leaves(_owned, data.read(ids))
    if (rows := count_rows(block, f"a block of {name}")) != len(ids):
        raise DataError(f"{name}: read() of {len(ids)} ids wants as many rows, found {rows}")
    return block


def _owned(leaf: Any) -> Any:
    """A view is copied: it may show memory that the object writes to later."""
    array = np.asarray(leaf)
    return array if array.flags.owndata else array.copy()
