"""From a feed's rows to arrays on devices, ahead of their use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from numpy.typing import NDArray

from hostmesh.worker.errors import blame
from hostmesh.worker.loading.layout import Layout
from hostmesh.worker.loading.prefetch import ReadAhead
from hostmesh.worker.loading.reader import Loaded


class Feed(Protocol):
    def read(self, step: int) -> Loaded: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class OnHost:
    by_part: list[list[NDArray[Any]]]
    has_next: bool


@dataclass(frozen=True)
class OnDevice:
    arrays: list[jax.Array]
    has_next: bool


class Pipeline:
    def __init__(self, feed: Feed, layout: Layout, steps: Iterator[int], prefetch: int, device_prefetch: int) -> None:
        self._feed, self._layout = feed, layout
        self._ahead = ReadAhead(self._read, self._place, steps, prefetch, device_prefetch)

    def take(self) -> OnDevice:
        """Raises StopIteration after the last step."""
        return self._ahead.take()

    def close(self) -> None:
        self._ahead.close()
        self._feed.close()

    def _read(self, step: int) -> OnHost:
        loaded = self._feed.read(step)
        try:
            return OnHost(self._layout.flatten(loaded.blocks, loaded.masks), loaded.has_next)
        except Exception as error:
            raise blame(f"step {step}", error) from error

    def _place(self, batch: OnHost) -> OnDevice:
        return OnDevice(self._layout.assemble(batch.by_part), batch.has_next)
