"""A short mark of records: a saved position in one source means nothing in another."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import naming
from hostmesh.worker.loading.rows import Record, leaves
from hostmesh.worker.sources import Source

SAMPLES = 4


def describe_source(source: Source) -> dict[str, Any]:
    """Its length, the kind of its rows, and the content of a few: `varies` if it does from read to read."""
    ids = np.unique(np.arange(SAMPLES) * (len(source) - 1) // (SAMPLES - 1))
    records = [_read(source, record) for record in ids]
    mark = fingerprint_records(records)
    content = mark if mark == fingerprint_records([_read(source, record) for record in ids]) else "varies"
    return {"records": len(source), "rows": _kind(records[0]), "content": content}


def _read(source: Source, record: int) -> Record:
    with naming(f"record {record} of {source.name}"):
        return source.records(np.array([record]))[0]


def fingerprint_records(records: Sequence[Record]) -> str:
    crc = 0
    for record in records:
        for path, leaf in leaves(record):
            array = np.asarray(leaf)
            crc = zlib.crc32(f"{path} {array.dtype.str} {array.shape}".encode(), crc)
            crc = zlib.crc32(_bytes(array), crc)
    return f"{crc:08x}"


def _kind(record: Record) -> str:
    """`image: uint8, label: int32`; shapes may differ from record to record."""
    kinds = {path or "record": np.asarray(leaf).dtype for path, leaf in leaves(record)}
    return ", ".join(f"{path}: {'text' if dtype.kind in 'OSU' else dtype.name}" for path, dtype in kinds.items())


def _bytes(array: NDArray[Any]) -> bytes:
    return str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
