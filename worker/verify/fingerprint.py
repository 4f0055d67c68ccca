"""A fingerprint of records, by which a source is known again: a saved position has no meaning in another one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import error_context
from hostmesh.worker.loading.rows import Record, leaves
from hostmesh.worker.sources import Source
from hostmesh.worker.sources.base import BaseSource

SAMPLES = 4


def describe_source(source: Source) -> dict[str, Any]:
    """Its length, the types of its fields, and a fingerprint of a few records: `varies` if two reads differ.

    A filter is known by the records it keeps, and a mixture by its parts.
    """
    if (own := getattr(source, "describe_data", None)) is not None:
        described: dict[str, Any] = own()
        return described
    ids = np.unique(np.arange(SAMPLES) * (len(source) - 1) // (SAMPLES - 1))
    records = [_read(source, record) for record in ids]
    fingerprint = fingerprint_records(records)
    is_same = fingerprint == fingerprint_records([_read(source, record) for record in ids])
    content = fingerprint if is_same else "varies"
    more = source.identity() if isinstance(source, BaseSource) else {}
    return {"records": len(source), "rows": _describe(records[0]), "content": content, **more}


def _read(source: Source, record: int) -> Record:
    with error_context(f"record {record} of {source.name}"):
        return source.records(np.array([record]))[0]


def fingerprint_records(records: Sequence[Record]) -> str:
    crc = 0
    for record in records:
        for path, leaf in leaves(record):
            array = np.asarray(leaf)
            crc = zlib.crc32(f"{path} {array.dtype.str} {array.shape}".encode(), crc)
            crc = zlib.crc32(_bytes(array), crc)
    return f"{crc:08x}"


def _describe(record: Record) -> str:
    """`image: uint8, label: int32`; shapes may differ from record to record."""
    dtypes = {path or "record": np.asarray(leaf).dtype for path, leaf in leaves(record)}
    return ", ".join(f"{path}: {'text' if dtype.kind in 'OSU' else dtype.name}" for path, dtype in dtypes.items())


def _bytes(array: NDArray[Any]) -> bytes:
    return str(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
