"""Grain: a MapDataset as a source; an IterDataset or DataLoader, with the threads it was given, as a stream."""

from __future__ import annotations

import sys
from functools import reduce
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Ids, Record
from hostmesh.worker.sources.base import RecordSource
from hostmesh.worker.streams.batches import RECORDS, UNKNOWN, Items, batches_of, combine, decide
from hostmesh.worker.streams.passes import stream_of
from hostmesh.worker.streams.stream import Stream, StreamPart

# What a step of Grain's makes of its items, by how the name of its class begins; all other steps keep them.
BATCHES = ("Batch", "Rebatch", "PackAndBatch")
RECORDS_AGAIN = ("FlatMap", "Pack", "FirstFitPack", "BestFitPack", "ConcatThenSplit")
ANYTHING = ("MapDataset", "IterDataset", "Operation", "ElasticIterator")
OWN = "grain."
# What repeats for ever says it has sys.maxsize records, or as many batches as these would fill.
ENDLESS = sys.maxsize >> 24


def source(data: Any) -> RecordSource:
    name = f"grain:{type(data).__name__}"
    if len(data) > ENDLESS:
        raise DataError(f"{name} never ends: leave out .repeat() and give the loader its epochs")
    if _items(data).batched:
        raise DataError(f"{name} is made of batches: leave out .batch(), the loader makes its own")
    return RecordSource(name, len(data), lambda ids: _fetch(data, ids, name))


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Whether it gives batches is seen from its transformations and its first item, unless `batched` says so."""
    name = f"grain:{type(data).__name__}"
    in_blocks, check = decide(_items(data), batched, name)
    return stream_of(lambda: _begin(data), shards, in_blocks, name, check, _find_part(data))


def _begin(data: Any) -> Any:
    from absl import flags

    # Grain's processes are given its flags, which a script that has none of its own never parses.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    # The state of a DataLoader's iterator is refused where the source is shown otherwise, as by its address; that of
    # the iterator inside is held against the records it gives, as any state is.
    return iter(data)._iterator if hasattr(data, "_operations") else data


def _fetch(data: Any, ids: Ids, name: str) -> list[Record]:
    records = [data[id_] for id_ in ids.tolist()]
    for id_, record in zip(ids, records, strict=True):
        if record is None:
            how = "filter before it becomes a MapDataset, or give the loader .to_iter_dataset() as a stream"
            raise DataError(f"{name}: record {id_} was filtered out, but keeps its place: {how}")
    return records


def _items(data: Any) -> Items:
    """A DataLoader keeps a list of operations; a dataset is itself the last step and knows what it reads."""
    before = [_items(part) for part in _parts(data)] or [RECORDS]
    if not hasattr(data, "_operations"):
        return _after(data, before)
    return reduce(lambda found, step: _after(step, [found]), data._operations, before[0])


def _after(step: Any, before: list[Items]) -> Items:
    """A step of the user's own class does what Grain's class does from which it is derived."""
    for kind in type(step).__mro__:
        if not kind.__module__.startswith(OWN):
            continue
        name = kind.__name__.lstrip("_")
        if name.startswith(BATCHES):
            return batches_of(getattr(step, "_batch_size", getattr(step, "batch_size", None)))
        if name.startswith(RECORDS_AGAIN):
            return RECORDS
        return UNKNOWN if name in ANYTHING else combine(before)
    return UNKNOWN  # a function, which a DataLoader takes too


def _parts(data: Any) -> list[Any]:
    """Interleave may make its datasets only when they are read: then the first one stands for all."""
    if (parts := getattr(data, "_datasets", None)) is not None:
        return list(parts) if isinstance(parts, (list, tuple)) else [parts[0]]
    if parents := getattr(data, "parents", None):
        return list(parents)
    read = getattr(data, "_data_source", getattr(data, "_source", None))
    return [read] if hasattr(read, "parents") else []


def _find_part(data: Any) -> StreamPart | None:
    """What the options of a DataLoader or of its sampler say, ShardByJaxProcess for instance."""
    shard = getattr(data, "_shard_options", None)
    if shard is None or shard.shard_count == 1:
        return None
    how = "pass shard_options=NoSharding()"
    return StreamPart(type(shard).__name__, shard.shard_index, shard.shard_count, how)
