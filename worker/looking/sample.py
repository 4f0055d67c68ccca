"""Some records of a source or stream, read one by one: those that cannot be read are named, the others are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.rows import Record, count_rows, split_block, stack_records
from hostmesh.worker.looking.values import count_bytes, fields_of
from hostmesh.worker.mixing.orders import make_order
from hostmesh.worker.sources import Source
from hostmesh.worker.streams.stream import Stream

# Sampled records, beside the rows that are shown. Fewer where they take so many seconds or bytes.
SPREAD = 256
MAX_SECONDS, MAX_BYTES = 3.0, 256 << 20

Read = Callable[[int], Record]


@dataclass
class Sample:
    """Records by their numbers: `rows` are the first ones, `spread` come from all over the source."""

    rows: dict[int, Record] = field(default_factory=dict)
    spread: dict[int, Record] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0  # that reading took

    @property
    def records(self) -> dict[int, Record]:
        return dict(sorted({**self.spread, **self.rows}.items()))

    @property
    def pace(self) -> float:
        """Seconds a record."""
        return self.seconds / max(1, len(self.records) + len(self.failures))


def sample_source(source: Source, rows: int, map: Callable[..., Any] | None) -> Sample:
    """The first rows, and others in an order that is spread over the source wherever it has to stop."""
    read = _mapped(source, map) if map else lambda id_: source.records(np.array([id_]))[0]
    sample = Sample()
    first, spread = _choose_in_order(source, rows) if hasattr(source, "make_order") else _choose(len(source), rows)
    _read_all(sample, sample.rows, iter(first), read, source.name, limited=False)
    sample.spread.update((id_, sample.rows[id_]) for id_ in first if id_ in sample.rows and id_ in spread)
    others = [id_ for id_ in spread if id_ not in first]
    _read_all(sample, sample.spread, iter(others), read, source.name, limited=True)
    return sample


def _choose(length: int, rows: int) -> tuple[list[int], dict[int, None]]:
    """The first ids, and some of all."""
    spread = np.linspace(0, length - 1, min(SPREAD, length)).astype(np.int64)
    return list(range(min(rows, length))), dict.fromkeys(np.random.default_rng(0).permutation(spread).tolist())


def _choose_in_order(source: Source, rows: int) -> tuple[list[int], dict[int, None]]:
    """Those that a loader of a mixture gets first: so parts are seen by their weights, and where a part is small its
    records come several times."""
    ids = make_order(source, 0, True).ids(0, min(len(source), rows + SPREAD)).tolist()
    return list(dict.fromkeys(ids[:rows])), dict.fromkeys(ids)


def sample_stream(stream: Stream, rows: int, map: Callable[..., Any] | None) -> Sample:
    """The first records of the first shard. After a record that cannot be read there are no others."""
    records = pass_records(stream)
    change = _changer(map) if map else None

    def read(id_: int) -> Record:
        record = next(records)
        return change(record, id_) if change else record

    sample, numbers = Sample(), count()
    _read_all(sample, sample.rows, (next(numbers) for _ in range(rows)), read, stream.name, limited=False, ends=True)
    if not sample.failures and len(sample.rows) == rows:
        rest = (next(numbers) for _ in range(SPREAD))
        _read_all(sample, sample.spread, rest, read, stream.name, limited=True, ends=True)
    sample.spread.update(sample.rows)
    return sample


def pass_records(stream: Stream) -> Iterator[Record]:
    """The records of one pass over the first shard; batches are taken apart."""
    if stream.rewind is not None:
        stream.rewind(0)
    for item in stream.open(0, stream.shards):
        if stream.batched:
            yield from split_block(item, count_rows(item, stream.name))
        else:
            yield item


def _read_all(
    sample: Sample,
    into: dict[int, Record],
    ids: Iterator[int],
    read: Read,
    name: str,
    limited: bool,
    ends: bool = False,
) -> None:
    began, size = time.perf_counter(), 0
    for id_ in ids:
        try:
            into[id_] = read(id_)
            size += sum(count_bytes(value) for _, value in fields_of(into[id_]))
        except StopIteration:
            break
        except Exception as error:
            sample.failures[id_] = str(as_data_error(f"record {id_} of {name}", error))
            if ends:
                break
        if limited and (time.perf_counter() - began > MAX_SECONDS or size > MAX_BYTES):
            break
    sample.seconds += time.perf_counter() - began


def _mapped(source: Source, map: Callable[..., Any]) -> Read:
    apply = _block_changer(map)
    return lambda id_: apply(source.read(np.array([id_])), id_)


def _changer(map: Callable[..., Any]) -> Callable[[Record, int], Record]:
    apply = _block_changer(map)
    return lambda record, id_: apply(stack_records([record], [id_]), id_)


def _block_changer(map: Callable[..., Any]) -> Callable[[Any, int], Record]:
    """Applies `map` as a Loader does, to a block of one row. A record's random numbers are those of its own number."""
    from hostmesh.worker.reading.transforms import Transforms

    transforms = Transforms(map, None, seed=0)

    def apply(block: Any, id_: int) -> Record:
        ids = np.array([id_])
        found = transforms.apply_map(block, ids, 0, ids)
        count_rows(found, "what map returned")
        return split_block(found, 1)[0]

    return apply
