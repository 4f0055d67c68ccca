"""How fast records are read: by threads, in blocks, in shuffled order, as a Loader reads them; no device is used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.rows import Ids
from hostmesh.worker.looking.sample import pass_records
from hostmesh.worker.mixing.mixture_order import AnyOrder
from hostmesh.worker.mixing.orders import make_order
from hostmesh.worker.sources import Source
from hostmesh.worker.streams.stream import Stream

BLOCK = 64

ReadBlock = Callable[[Ids], object]


@dataclass(frozen=True)
class Speed:
    """Records a second, by the number of threads; `how` they were read, or why they were not."""

    rates: dict[int, float]
    how: str


def default_workers() -> int:
    """The cores that this process may use, and two at least."""
    return max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2)


def measure_source(source: Source, map: Callable[..., Any] | None, workers: int, seconds: float, pace: float) -> Speed:
    """`pace` is how long a record takes: slow ones are read in smaller blocks, so that no turn takes much longer."""
    size = min(len(source), max(1, min(BLOCK, int(seconds / 4 / max(pace, 1e-9)))))
    order = make_order(source, 0, True)
    try:
        read, how = _find_way(source, map, order.ids(0, size))
        rates = {number: _measure(read, order, size, number, seconds) for number in dict.fromkeys((1, workers))}
    except Exception as error:
        return Speed({}, str(as_data_error(source.name, error)))
    return Speed(rates, f"{how} {size} at a time, in shuffled order")


def measure_stream(stream: Stream, seconds: float) -> Speed:
    """One thread: a stream is read in its own order."""
    number, began = 0, time.perf_counter()
    try:
        for _ in pass_records(stream):
            number += 1
            if time.perf_counter() - began > seconds:
                break
    except Exception as error:
        return Speed({}, str(as_data_error(stream.name, error)))
    return Speed({1: number / (time.perf_counter() - began)}, "from the start, in the stream's own order")


def _find_way(source: Source, map: Callable[..., Any] | None, ids: Ids) -> tuple[ReadBlock, str]:
    """Blocks as a Loader reads them. Records that do not stack are read as `collate=` gets them."""
    if map is not None:
        from hostmesh.worker.reading.transforms import Transforms

        transforms = Transforms(map, None, seed=0)
        read: ReadBlock = lambda ids: transforms.apply_map(source.read(ids), ids, 0, ids)  # noqa: E731
        read(ids)
        return read, "read and mapped"
    try:
        source.read(ids)
    except Exception:
        source.records(ids)
        return source.records, "read as `collate=` gets them,"
    return source.read, "read"


def _measure(read: ReadBlock, order: AnyOrder, size: int, workers: int, seconds: float) -> float:
    """All threads take blocks from one order until the time is over."""
    blocks: Iterator[int] = count(0, size)  # next() of it is safe in threads
    began = time.perf_counter()

    def work(_: int) -> int:
        number = 0
        while not number or time.perf_counter() - began < seconds:
            start = next(blocks)
            read(order.ids(start, start + size))
            number += size
        return number

    with ThreadPoolExecutor(workers, "hostmesh look") as pool:
        number = sum(pool.map(work, range(workers)))
    return number / (time.perf_counter() - began)
