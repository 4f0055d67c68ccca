"""Records that only come in order, from a fixed number of logical shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stream:
    """`open(shard, shards)` begins one pass over the records of a shard.

    It gives records, or blocks of stacked records where `batched`. With one shard every process reads all records
    and keeps its own; with more, each reads only the shards its rows come from. A global batch is made of equally
    many rows of each shard, so it is the same for any number of processes, as far as the passes are.

    Where the iterator of a pass has `get_state()`, of plain JSON values and bytes, and `set_state(state)`, by which a
    fresh one goes on from there, a restored loader need not read again what came before. `rewind(shard)` is for streams
    whose passes differ, and called before a shard is read from its start: its next pass is the first.
    """

    open: Callable[[int, int], Iterable[Any]]
    shards: int = 1
    batched: bool = False
    name: str = "a stream"
    rewind: Callable[[int], None] | None = None
