"""Grain: a MapDataset as a source; an IterDataset or DataLoader, with the threads it was given, as a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from worker.errors import DataError
from worker.rows import Ids, Record
from worker.sources.passes import stream_of
from worker.sources.reading import RecordSource
from worker.stream import Stream


def source(data: Any) -> RecordSource:
    name = f"grain:{type(data).__name__}"
    if len(data) == sys.maxsize:
        raise DataError(f"{name} never ends: leave out .repeat() and give the loader its epochs")
    if _is_batched(data):
        raise DataError(f"{name} is made of batches: leave out .batch(), the loader makes its own")
    return RecordSource(name, len(data), lambda ids: _fetch(data, ids, name))


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Whether it gives batches is seen from its transformations, unless `batched` says so."""
    name = f"grain:{type(data).__name__}"
    _check_shard(data, name)
    return stream_of(lambda: data, shards, _is_batched(data) if batched is None else batched, name)


def _fetch(data: Any, ids: Ids, name: str) -> list[Record]:
    records = [data[id_] for id_ in ids.tolist()]
    for id_, record in zip(ids, records, strict=True):
        if record is None:
            how = "filter before it becomes a MapDataset, or give the loader .to_iter_dataset() as a stream"
            raise DataError(f"{name}: record {id_} was filtered out, but keeps its place: {how}")
    return records


def _is_batched(data: Any) -> bool:
    """The last transformation that makes batches or takes them apart decides."""
    for step in _steps_from_last(data):
        for kind in type(step).__mro__:
            if kind.__name__.startswith("FlatMap"):
                return False
            if kind.__name__.startswith(("Batch", "Rebatch", "PackAndBatch")):
                return True
    return False


def _steps_from_last(data: Any) -> Iterator[Any]:
    """A DataLoader keeps a list of operations; a dataset is itself the last step and knows its parents."""
    if hasattr(data, "_operations"):
        yield from reversed(data._operations)
        return
    yield data
    while data.parents:
        data = data.parents[0]
        yield data


def _check_shard(data: Any, name: str) -> None:
    shard = getattr(data, "_shard_options", None)
    if shard is not None and shard.shard_count > 1:
        found = f"shard {shard.shard_index} of {shard.shard_count}"
        raise DataError(f"{name} reads only {found}, wanted all records: pass shard_options=NoSharding()")
