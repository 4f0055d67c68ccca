"""Streams of whatever can be iterated again and again; a shard is every n-th record of a pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import count_rows, take_rows
from hostmesh.worker.streams.batches import UNKNOWN, Check, decide
from hostmesh.worker.streams.stream import Stream, StreamPart


class Pass(Iterator[Any]):
    """One pass over a shard: the records whose number in the pass, modulo `shards`, is `shard`.

    It has a state (`get_state`, `set_state`) where `items` has one.
    """

    def __init__(
        self,
        items: Iterable[Any],
        shard: int = 0,
        shards: int = 1,
        batched: bool = False,
        check: Check | None = None,
        convert: Callable[[Any], Any] | None = None,
    ) -> None:
        self._items = iter(items)
        self._shards, self._batched = shards, batched
        self._check, self._convert = check, convert
        self._before = shard  # records of other shards that come first

    def __next__(self) -> Any:
        if not self._batched:
            self._drop(self._before)
            self._before = self._shards - 1
            return self._prepare(next(self._items))
        while True:
            block = self._prepare(next(self._items))
            if self._shards == 1:
                return block
            rows, first = count_rows(block, "a batch of the stream"), self._before
            self._before = (first - rows) % self._shards
            if first < rows:
                return take_rows(block, slice(first, None, self._shards))

    def skip(self, records: int) -> int:
        """Drops so many records and returns how many there were. Only for items that are records, not batches."""
        before, self._before = self._before, self._shards - 1
        dropped = self._drop(before + (records - 1) * self._shards + 1)
        return (dropped - before - 1) // self._shards + 1

    def get_state(self) -> Any:
        """None where there is none."""
        if not hasattr(self._items, "get_state") or (found := self._items.get_state()) is None:
            return None
        return {"before": self._before, "items": found}

    def set_state(self, state: Any) -> None:
        self._items.set_state(state["items"])  # type: ignore[attr-defined]
        self._before = state["before"]

    def _drop(self, items: int) -> int:
        return sum(1 for _ in islice(self._items, items)) if items else 0

    def _prepare(self, item: Any) -> Any:
        item = item if self._convert is None else self._convert(item)
        if self._check is not None:
            self._check(item)
            self._check = None
        return item


def stream_of(
    begin: Callable[[], Iterable[Any]],
    shards: int,
    batched: bool,
    name: str,
    check: Check | None = None,
    part: StreamPart | None = None,
) -> Stream:
    """A shard is every `shards`-th record of a pass that `begin` starts."""
    return Stream(lambda shard, of: Pass(begin(), shard, of, batched, check), shards, batched, name, part=part)


def iterable_stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Anything that can be iterated again and again."""
    name = type(data).__name__
    if hasattr(data, "__next__"):
        raise DataError(f"{name} can be passed through once only; pass a function that makes one")
    in_blocks, check = decide(UNKNOWN, batched, name)
    return stream_of(lambda: data, shards, in_blocks, name, check)


def function_stream(function: Callable[..., Any], shards: int = 1, batched: bool | None = None) -> Stream:
    """A function f(shard, shards) that begins a pass over a shard."""
    name = name_function(function)
    in_blocks, check = decide(UNKNOWN, batched, name)
    return Stream(lambda shard, of: Pass(function(shard, of), check=check), shards, in_blocks, name)


def name_function(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def wants_shard(function: Callable[..., Any]) -> bool:
    """Whether it is called as f(shard, shards), which begins a pass over a shard, or as f(), over everything."""
    signature = inspect.signature(function)
    for arguments in ((0, 1), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    wanted = "wanted one without arguments, or with the arguments (shard, shards)"
    raise DataError(f"found the function {name_function(function)}{signature}; {wanted}")
