"""From what a user gives as data to its rows: those of a source, of a stream, or of streams sharded by process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import Sharding

from hostmesh.worker.loading.lengths import Lengths, find_known_lengths
from hostmesh.worker.loading.padding import make_transforms
from hostmesh.worker.loading.source_rows import SourceRows
from hostmesh.worker.mixing.orders import make_order
from hostmesh.worker.ordering.schedule import Schedule
from hostmesh.worker.reading.transforms import Collate, Map, Transforms
from hostmesh.worker.sources import Source, as_source
from hostmesh.worker.streams.sharded.rows import ShardedRows
from hostmesh.worker.streams.sharded.source_passes import source_stream
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.streams.stream_rows import StreamRows


class Opened(NamedTuple):
    source: Source | Stream
    rows: SourceRows | StreamRows
    transforms: Transforms


def open_rows(
    data: Any,
    shardings: Sequence[Sharding],
    *,
    batch_size: int,
    seed: int,
    shuffle: bool,
    epochs: int | None,
    steps: int | None,
    map: Map | None,
    collate: Collate | None,
    loading: str,
    tail: str,
    verify: bool,
    lengths: Lengths | None,
    sharded: bool,
) -> Opened:
    """The arguments are those of a `Loader`."""
    source = as_source(data)
    if sharded and not isinstance(source, Stream):
        source = source_stream(source, make_order(source, seed, shuffle), collate is None)
    if isinstance(source, Stream):
        schedule = Schedule(batch_size, batch_size, tail, epochs, steps)
        transforms = make_transforms(map, collate, seed, lengths, None)
        stream = source, schedule, transforms
        rows = ShardedRows(*stream, shardings, loading, verify) if sharded else StreamRows(*stream, shardings[0])
        return Opened(source, rows, transforms)
    schedule = Schedule(len(source), batch_size, tail, epochs, steps)
    order = make_order(source, seed, shuffle)
    known = find_known_lengths(source, lengths, order, schedule)
    transforms = make_transforms(map, collate, seed, lengths, known)
    return Opened(source, SourceRows(source, schedule, order, transforms), transforms)
