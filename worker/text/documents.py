"""The documents of a source: one field of its records, of varying length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.loading.rows import Ids
from hostmesh.worker.sources import Source, as_source
from hostmesh.worker.specs.spec import unknown
from hostmesh.worker.streams.stream import Stream


@dataclass(frozen=True)
class Documents:
    """All have the dtype of document `first`, the first that is not empty: an empty list has the dtype of no number."""

    source: Source
    field: str
    dtype: np.dtype[Any]
    first: int

    def read(self, ids: Ids, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Of each document the tokens from a start to a stop."""
        if hasattr(self.source, "pieces"):
            found: list[NDArray[Any]] | None = self.source.pieces(self.field, ids, starts, stops)
            # They all have one dtype. Where it is another one, reading the documents names the first of them.
            if found is not None and (not found or found[0].dtype == self.dtype):
                return found
        distinct, nth = np.unique(ids, return_inverse=True)
        tokens = self.read_whole(distinct)
        where = zip(nth.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [tokens[number][start:stop] for number, start, stop in where]

    def read_whole(self, ids: Ids) -> list[NDArray[Any]]:
        records = self.source.records(ids)
        tokens = [
            take_tokens(record, self.field, id_, self.source.name) for record, id_ in zip(records, ids, strict=True)
        ]
        for number, (id_, part) in enumerate(zip(ids, tokens, strict=True)):
            if part.dtype == self.dtype:
                continue
            if len(part):
                wanted = f"wanted {self.dtype} like record {self.first}"
                raise DataError(f"{self.source.name}: record {id_}: {self.field} has dtype {part.dtype}, {wanted}")
            tokens[number] = part.astype(self.dtype)
        return tokens


def open_documents(data: Any, field: str, wanted_by: str) -> Documents:
    source = as_source(data)
    if isinstance(source, Stream):
        raise DataError(f"{wanted_by} wants records that can be read in any order; found the stream {source.name}")
    if hasattr(source, "make_order"):
        raise DataError(
            f"{wanted_by} wants documents by number; found the mixture {source.name}, whose weights are in an order of"
            f" its own: {wanted_by} each part, and mix what comes out"
        )
    if not len(source):
        raise DataError(f"{source.name} has no documents")
    for id_ in range(len(source)):
        tokens = _read_one(source, field, id_)
        if len(tokens):
            break
    return Documents(source, field, tokens.dtype, id_)


def _read_one(source: Source, field: str, id_: int) -> NDArray[Any]:
    with error_context(f"record {id_} of {source.name}"):
        (record,) = source.records(np.array([id_]))
    return take_tokens(record, field, id_, source.name)


def take_tokens(record: Any, field: str, id_: int, name: str) -> NDArray[Any]:
    """The bytes of text are tokens too. A record that is no dict is the document itself."""
    if isinstance(record, dict):
        if field not in record:
            raise DataError(f"{name}: {unknown('field', field, map(str, record))}")
        record = record[field]
    if isinstance(value := _unpack(record), (str, bytes)):
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    tokens = np.asarray(value)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        if not tokens.size and tokens.ndim == 1:
            return tokens.astype(np.int64)  # an empty list has the dtype of no number
        found = f"{tokens.dtype.name} of shape {tokens.shape}"
        raise DataError(f"{name}: record {id_}: {field} wants integers in one axis, or text; found {found}")
    return tokens


def _unpack(value: Any) -> Any:
    """Text in an array of objects, as sources of arrays have it."""
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype == object else value


def measure(tokens: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.array([len(part) for part in tokens], np.int64)
