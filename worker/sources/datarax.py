"""Datarax: what has random access as a source; a Pipeline as a stream of blocks, a mix of sources as one of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block, count_rows, map_leaves, take_rows
from hostmesh.worker.sources.arrays import array_source
from hostmesh.worker.sources.base import BlockSource, RecordSource
from hostmesh.worker.sources.objects import get_records
from hostmesh.worker.streams.passes import Pass
from hostmesh.worker.streams.stream import Stream

RANDOM_COUNTS = 1 << 32  # Flax counts its draws in 32 bits
DRAWS_PER_PASS = 1 << 20  # what sets the random numbers of one pass apart from those of the next


def source(data: Any) -> BlockSource | RecordSource:
    """Its own shuffling is not used: the loader's order decides."""
    from datarax.core.data_source import DataSourceModule

    name = f"datarax:{type(data).__name__}"
    if type(data).__getitem__ is DataSourceModule.__getitem__ or type(data).__len__ is DataSourceModule.__len__:
        raise DataError(f"{name} only comes in order: pass as_stream a function f(shard, shards) that makes one")
    if isinstance(getattr(data, "data", None), dict):
        return array_source(map_leaves(np.asarray, dict(data.data)), name)
    return RecordSource(name, len(data), lambda ids: map_leaves(np.asarray, list(get_records(data, ids, name))))


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    name = f"datarax:{type(data).__name__}"
    if hasattr(data, "to_grain_iter_dataset"):
        return _mix_stream(data, shards, bool(batched), name)
    if not data.source.supports_indexed_access():
        how = "pass as_stream a function f(shard, shards) that makes a new Pipeline"
        raise DataError(f"{name}: its {type(data.source).__name__} cannot begin anew: {how}")
    # A mix has no such word: it draws the record of each position at random, and may draw one twice.
    if getattr(data.source, "is_random_order", False):
        how = "make it with shuffle=False, or pass the source itself and let the loader shuffle"
        raise DataError(f"{name}: its source shuffles anew for every batch, so that records repeat: {how}")
    counts = iter(data).get_state()["rng_counts"]
    passes: Counter[int] = Counter()

    def begin(shard: int, of: int) -> Pass:
        passes[shard] += 1
        blocks = _Blocks(data, counts, passes, shard)
        # Iterators of one Pipeline share their counts of draws, so with several shards none has a state of its own.
        return Pass(blocks if of == 1 else map(lambda block: block, blocks), shard, of, batched=True)

    def rewind(shard: int) -> None:
        passes[shard] = 0

    return Stream(begin, shards, batched is not False, name, rewind)


def _mix_stream(data: Any, shards: int, batched: bool, name: str) -> Stream:
    """The records of all its sources by weight, until one of them ends; Grain mixes them."""

    def begin(shard: int, of: int) -> Pass:
        return Pass(data.to_grain_iter_dataset(), shard, of, batched, convert=_to_numpy)

    return Stream(begin, shards, batched, name)


def _to_numpy(record: Any) -> Any:
    return map_leaves(np.asarray, record)


class _Blocks(Iterator[Block]):
    """One pass. A Pipeline goes on where its last iterator ended, and so would the next epoch.

    The last batch of a Pipeline is filled up with records from the start, which would come twice.
    """

    def __init__(self, data: Any, counts: list[int], passes: Counter[int], shard: int) -> None:
        self._passes, self._shard, self._left = passes, shard, len(data.source)
        self._batches = iter(data)
        draws = DRAWS_PER_PASS * (passes[shard] - 1)
        self._batches.set_state({"position": 0, "rng_counts": [(count + draws) % RANDOM_COUNTS for count in counts]})

    def __next__(self) -> Block:
        block = map_leaves(np.asarray, next(self._batches))
        rows, left = count_rows(block, "a batch of the pipeline"), self._left
        self._left -= rows
        return block if rows <= left else take_rows(block, slice(left))

    def get_state(self) -> Any:
        found = self._batches.get_state()
        own = {"left": self._left, "passes": self._passes[self._shard]}
        return {**own, "position": int(found["position"]), "rng_counts": found["rng_counts"]}

    def set_state(self, state: Any) -> None:
        self._left, self._passes[self._shard] = state["left"], state["passes"]
        self._batches.set_state({name: state[name] for name in ("position", "rng_counts")})
