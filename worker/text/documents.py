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
    source: Source
    field: str
    dtype: np.dtype[Any]

    def read(self, ids: Ids, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Of each document the tokens from a start to a stop."""
        if hasattr(self.source, "pieces"):
            found: list[NDArray[Any]] | None = self.source.pieces(self.field, ids, starts, stops)
            if found is not None:
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
        for id_, part in zip(ids, tokens, strict=True):
            if len(part) and part.dtype != self.dtype:
                wanted = f"wanted {self.dtype} like record 0"
                raise DataError(f"{self.source.name}: record {id_}: {self.field} has dtype {part.dtype}, {wanted}")
        return tokens


def open_documents(data: Any, field: str, wanted_by: str) -> Documents:
    source = as_source(data)
    if isinstance(source, Stream):
        raise DataError(f"{wanted_by} wants records that can be read in any order; found the stream {source.name}")
    if not len(source):
        raise DataError(f"{source.name} has no documents")
    with error_context(f"record 0 of {source.name}"):
        first = source.records(np.zeros(1, np.int64))[0]
    return Documents(source, field, take_tokens(first, field, 0, source.name).dtype)


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
