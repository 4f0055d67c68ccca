"""The records that a predicate keeps: looked for once, by all processes together, each in its share."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.distributed import require_joined
from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.rows import Ids, Record
from hostmesh.worker.process.coordination import exchange, require_same, share_failure
from hostmesh.worker.recording.recorder import phase
from hostmesh.worker.sources.base import Source

# Records that one process, and all together, look at before they exchange what they found: a bit each.
AT_ONCE, AT_ONCE_IN_ALL = 1 << 17, 1 << 22
# Records that are read at once.
BLOCK = 256
# One process may have the records that take longest. One that died is noticed by others than this timeout.
TIMEOUT = 3600.0
WHAT = "filter the records"


def find_kept(source: Source, predicate: Callable[[Record], bool]) -> Ids:
    """The numbers of the records for which it is true, in ascending order: the same on every process.

    All processes call this together. If the predicate or a record fails on one of them, all raise.
    """
    require_joined(WHAT)
    require_same(WHAT, {"records": len(source)})
    rank, processes = _position()
    kept: list[Ids] = []
    at_once = min(AT_ONCE * processes, AT_ONCE_IN_ALL)
    for start in range(0, len(source), at_once):
        count = min(len(source) - start, at_once)
        share = -(-count // processes)
        first, last = (start + min(count, share * nth) for nth in (rank, rank + 1))
        with share_failure(WHAT, TIMEOUT):
            own = _look_at(source, predicate, first, last)
        found = exchange(WHAT, base64.b64encode(np.packbits(own).tobytes()).decode(), TIMEOUT)
        kept.append(start + np.flatnonzero(np.concatenate([_unpack(text, share) for text in found])[:count]))
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def _position() -> tuple[int, int]:
    from jax._src import distributed  # the public API would start the devices

    state = distributed.global_state
    return (0, 1) if state.client is None else (state.process_id, state.num_processes)


def _unpack(text: str, count: int) -> NDArray[np.bool_]:
    """So many bits; those after the end of a share are 0."""
    bits = np.zeros(count, bool)
    found = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:count]
    bits[: len(found)] = found
    return bits


def _look_at(source: Source, predicate: Callable[[Record], bool], first: int, last: int) -> NDArray[np.bool_]:
    kept = np.zeros(last - first, bool)
    for start in range(first, last, BLOCK):
        stop = min(last, start + BLOCK)
        with phase("filtering"):  # entered anew for each block: a run that filters for long does move
            kept[start - first : stop - first] = _look_at_block(source, predicate, np.arange(start, stop))
    return kept


def _look_at_block(source: Source, predicate: Callable[[Record], Any], ids: Ids) -> list[bool]:
    try:
        records = source.records(ids)
    except Exception:
        records = [_read_alone(source, id_) for id_ in ids]  # names the one that fails
    return [_ask(source, predicate, record, id_) for record, id_ in zip(records, ids.tolist(), strict=True)]


def _read_alone(source: Source, id_: int) -> Record:
    try:
        return source.records(np.array([id_]))[0]
    except Exception as error:
        raise as_data_error(f"record {id_} of {source.name}", error) from error


def _ask(source: Source, predicate: Callable[[Record], Any], record: Record, id_: int) -> bool:
    try:
        return bool(predicate(record))
    except Exception as error:
        raise as_data_error(f"filter of {source.name}, record {id_}", error) from error
