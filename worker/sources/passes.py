"""Fresh passes over what can be iterated anew, whole or every so-many-th record of it, as streams."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from worker.errors import DataError
from worker.rows import Block, count_rows, take_rows
from worker.stream import Stream


def stream_of(begin: Callable[[], Iterable[Any]], shards: int, batched: bool, name: str) -> Stream:
    """A shard is every `shards`-th record of a pass that `begin` starts."""
    return Stream(lambda shard, of: take_shard(begin(), shard, of, batched), shards, batched, name)


def iterable_stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Anything that can be iterated again and again."""
    name = type(data).__name__
    if hasattr(data, "__next__"):
        raise DataError(f"{name} can be passed through once only; pass a function f(shard, shards) that makes one")
    return stream_of(lambda: data, shards, bool(batched), name)


def function_stream(function: Callable[..., Any], shards: int = 1, batched: bool | None = None) -> Stream:
    """A function f(shard, shards) that begins a pass over a shard."""
    name = getattr(function, "__name__", type(function).__name__)
    try:
        inspect.signature(function).bind(0, shards)
    except TypeError as error:
        raise DataError(f"{name}{inspect.signature(function)} wants the arguments (shard, shards): {error}") from error
    return Stream(function, shards, bool(batched), name)


def take_shard(items: Iterable[Any], shard: int, shards: int, batched: bool) -> Iterator[Any]:
    """The records whose number in the pass, counted through all blocks, leaves the rest `shard`."""
    return _take_rows_of_blocks(items, shard, shards) if batched and shards > 1 else islice(items, shard, None, shards)


def _take_rows_of_blocks(blocks: Iterable[Block], shard: int, shards: int) -> Iterator[Block]:
    first = shard
    for block in blocks:
        rows = count_rows(block, "a block of the stream")
        if first < rows:
            yield take_rows(block, slice(first, None, shards))
        first = (first - rows) % shards
