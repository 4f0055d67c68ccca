"""Parts of a file: what lies together is fetched together, by several threads at once, through the cache."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.remote.caching.cache import NoRoom
from hostmesh.worker.remote.caching.own_cache import own_cache
from hostmesh.worker.remote.fetching import fetch
from hostmesh.worker.remote.pool import run_all
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.opening import find_store
from hostmesh.worker.remote.whole import write_all

BLOCK = 4 << 20
# Of data that do not fit into the cache only what is asked for is fetched; a gap of so many bytes costs less than
# another request.
MAX_GAP = 256 << 10
# Blocks of the cache that a process has mapped. Each takes an open file.
MAX_MAPPED = 64

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Units:
    """Where in a file its units lie, rows or tokens, all of one size. `is_kept` says whether blocks of them are kept in
    the cache: all data of the source fit into it."""

    file: RemoteFile
    offset: int  # of the first
    size: int
    count: int
    is_kept: bool

    @property
    def per_block(self) -> int:
        return max(1, BLOCK // max(1, self.size))


def read_spans(units: Units, starts: Ints, stops: Ints, serve: Callable[[int, memoryview], None]) -> None:
    """For each pair of a start and a stop, in units, its number and its bytes are given to `serve`: in any order, from
    several threads, and where a pair crosses blocks never in pieces."""
    firsts, lasts, which = plan_blocks(units, starts, stops) if units.is_kept else plan_exact(units, starts, stops)
    order = np.argsort(which, kind="stable")
    cuts = np.searchsorted(which[order], np.arange(len(firsts) + 1))

    def use(span: int, data: memoryview) -> None:
        for number in order[cuts[span] : cuts[span + 1]].tolist():
            begin = int(starts[number] - firsts[span]) * units.size
            serve(number, data[begin : begin + int(stops[number] - starts[number]) * units.size])

    missing = []
    for span in range(len(firsts)):
        found = _find_kept(units, int(firsts[span])) if units.is_kept else None
        if found is None:
            missing.append(span)
        else:
            use(span, found)

    def fetch_and_use(span: int) -> None:
        use(span, _fetch_span(units, int(firsts[span]), int(lasts[span])))

    run_all([partial(fetch_and_use, span) for span in missing])


def plan_blocks(units: Units, starts: Ints, stops: Ints) -> tuple[Ints, Ints, Ints]:
    """Spans that are whole blocks, and which of them each pair lies in; no pair crosses a block."""
    blocks, which = np.unique(starts // units.per_block, return_inverse=True)
    firsts = blocks * units.per_block
    return firsts, np.minimum(firsts + units.per_block, units.count), which.reshape(-1)


def plan_exact(units: Units, starts: Ints, stops: Ints) -> tuple[Ints, Ints, Ints]:
    """Neighbours together, as long as their span is no larger than a block."""
    gap, most = MAX_GAP // max(1, units.size), units.per_block
    order = np.argsort(starts, kind="stable")
    firsts: list[int] = []
    lasts: list[int] = []
    which = np.empty(len(starts), np.int64)
    for number, start, stop in zip(order.tolist(), starts[order].tolist(), stops[order].tolist(), strict=True):
        if not firsts or start - lasts[-1] > gap or max(stop, lasts[-1]) - firsts[-1] > most:
            firsts.append(start)
            lasts.append(stop)
        lasts[-1] = max(lasts[-1], stop)
        which[number] = len(firsts) - 1
    return np.array(firsts, np.int64), np.array(lasts, np.int64), which


def cut_at_blocks(units: Units, starts: Ints, stops: Ints) -> tuple[Ints, Ints, Ints]:
    """Pairs of which none crosses a block, and for each the number of the pair that it is a part of."""
    if not units.is_kept:
        return starts, stops, np.arange(len(starts))
    size = units.per_block
    first, last = starts // size, np.maximum(starts, stops - 1) // size
    counts = last - first + 1
    owner = np.repeat(np.arange(len(starts)), counts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    block = np.repeat(first, counts) + nth
    return np.maximum(starts[owner], block * size), np.minimum(stops[owner], (block + 1) * size), owner


def _fetch_span(units: Units, first: int, last: int) -> memoryview:
    start, stop = units.offset + first * units.size, units.offset + last * units.size
    store = find_store(units.file.url)
    if not units.is_kept:
        return memoryview(fetch(store, units.file, start, stop))
    cache, name = own_cache(), units.file.key(start, stop)
    came: bytes | bytearray | None = None

    def fill(part: int) -> None:
        nonlocal came
        came = data = fetch(store, units.file, start, stop)
        write_all(part, data, 0)

    try:
        cache.bring(name, stop - start, fill)
    except NoRoom:  # what is in use leaves none
        return memoryview(fetch(store, units.file, start, stop))
    return memoryview(came) if came is not None else _find_kept(units, first) or _fetch_span(units, first, last)


class MappedBlocks:
    """The blocks that were used last, mapped. A block that is removed meanwhile stays readable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[tuple[int, str], memoryview] = OrderedDict()

    def find(self, name: str, size: int) -> memoryview | None:
        key = os.getpid(), name
        with self._lock:
            if (mapped := self._blocks.get(key)) is not None:
                self._blocks.move_to_end(key)
                return mapped
        if (mapped := self._map(name, size)) is not None:
            with self._lock:
                self._blocks[key] = mapped
                while len(self._blocks) > MAX_MAPPED:
                    self._blocks.popitem(last=False)
        return mapped

    def _map(self, name: str, size: int) -> memoryview | None:
        path = own_cache().find(name)
        if path is None:
            return None
        try:
            with open(path, "rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        except (OSError, ValueError):
            return None
        return mapped if len(mapped) == size else None


MAPPED = MappedBlocks()


def _find_kept(units: Units, first: int) -> memoryview | None:
    last = min(first + units.per_block, units.count)
    start, stop = units.offset + first * units.size, units.offset + last * units.size
    return MAPPED.find(units.file.key(start, stop), stop - start)


def fits_cache(files: Sequence[RemoteFile]) -> bool:
    return sum(file.size for file in files) <= own_cache().limit
