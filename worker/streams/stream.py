"""Records that only come in order, from a fixed number of logical shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamPart:
    """That a stream gives only some of the records, as its pipeline says: part `index` of `count`.

    `said_by` is the step that says so. `may_be_whole` where people use that step for other things too, such as taking a
    tenth of the records on every process.
    """

    said_by: str
    index: int
    count: int
    how_to_remove: str
    may_be_whole: bool = False


@dataclass(frozen=True)
class Stream:
    """Records that only come in order. `open(shard, shards)` begins one pass over the records of a shard.

    A pass gives records or, where `batched`, blocks of stacked records. With one shard every process reads all records
    and keeps its own; with more, each reads only the shards its rows come from. A global batch has equally many rows of
    each shard, so it is the same for any number of processes as long as the passes are the same.

    The iterator of a pass may have `get_state()`, which returns plain JSON values and bytes, and `set_state(state)`, by
    which a fresh iterator goes on from there: then a restored loader need not read everything again. `rewind(shard)` is
    for streams whose passes differ. It is called before a shard is read from its start: the next pass is the first one.
    `part` is for streams that were cut for this process before they came here: a loader takes them with `sharded=True`.
    """

    open: Callable[[int, int], Iterable[Any]]
    shards: int = 1
    batched: bool = False
    name: str = "a stream"
    rewind: Callable[[int], None] | None = None
    part: StreamPart | None = None
