"""Functions without arguments that give records or batches: generators, or anything that can be a stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from hostmesh.worker.errors import error_context
from hostmesh.worker.streams.batches import UNKNOWN, decide
from hostmesh.worker.streams.passes import name_function, stream_of
from hostmesh.worker.streams.stream import Stream


def generator_stream(
    function: Callable[[], Any], shards: int, batched: bool | None, as_stream: Callable[..., Stream]
) -> Stream:
    """The function is called anew for each pass. What it gives is read as `as_stream` would read it."""
    name = name_function(function)
    if inspect.isgeneratorfunction(function):
        return _iterator_stream(function, shards, batched, name)
    with error_context(name):
        first = function()
        if hasattr(first, "__next__"):
            return _iterator_stream(_Calls(function, first), shards, batched, name)
        found = as_stream(first, shards, batched)
    calls = _Calls(function, first)

    def begin(shard: int, of: int) -> Iterable[Any]:
        return as_stream(calls(), shards, batched).open(shard, of)

    return Stream(begin, shards, found.batched, name, part=found.part)


def _iterator_stream(begin: Callable[[], Any], shards: int, batched: bool | None, name: str) -> Stream:
    in_blocks, check = decide(UNKNOWN, batched, name)
    return stream_of(begin, shards, in_blocks, name, check)


class _Calls:
    """The function, which was called once already to see what it gives: that is the first pass."""

    def __init__(self, function: Callable[[], Any], first: Any) -> None:
        self._function = function
        self._first = [first]

    def __call__(self) -> Any:
        return self._first.pop() if self._first else self._function()
