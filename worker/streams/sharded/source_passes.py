"""A source that has a process's own records only, as a stream: each pass in an order of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from hostmesh.worker.mixing.mixture_order import AnyOrder
from hostmesh.worker.sources.base import Source
from hostmesh.worker.streams.stream import Stream

ROWS = 256  # that are read at once


def source_stream(source: Source, order: AnyOrder, in_blocks: bool) -> Stream:
    """Blocks of rows, or records where these are to be collated."""
    passes = [0]  # those that have begun

    def begin(shard: int, of: int) -> _SourcePass:
        passes[0] += 1
        return _SourcePass(source, order, in_blocks, passes)

    def rewind(shard: int) -> None:
        passes[0] = 0

    return Stream(begin, 1, in_blocks, source.name, rewind)


class _SourcePass(Iterator[Any]):
    def __init__(self, source: Source, order: AnyOrder, in_blocks: bool, passes: list[int]) -> None:
        self._source, self._order, self._in_blocks = source, order, in_blocks
        self._passes, self._number = passes, passes[0] - 1
        self._read = 0  # records of this pass
        self._waiting: deque[Any] = deque()

    def __next__(self) -> Any:
        if not self._waiting:
            self._read_more()
        return self._waiting.popleft()

    def get_state(self) -> Any:
        return {"pass": self._number, "given": self._read - len(self._waiting)}

    def set_state(self, state: Any) -> None:
        self._number, self._read = state["pass"], state["given"]
        self._passes[0] = self._number + 1
        self._waiting.clear()

    def _read_more(self) -> None:
        length = len(self._source)
        stop = min(self._read + ROWS, length)
        if stop == self._read:
            raise StopIteration
        ids = self._order.ids(self._number * length + self._read, self._number * length + stop)
        self._waiting += [self._source.read(ids)] if self._in_blocks else self._source.records(ids)
        self._read = stop
