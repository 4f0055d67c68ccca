"""Windows of one length over the documents of a source, taken as one long text: as a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.choices import require_count
from hostmesh.worker.loading.rows import Block, Ids
from hostmesh.worker.sources.base import BlockSource
from hostmesh.worker.text.documents import Documents, open_documents
from hostmesh.worker.text.file_windows import split_targets
from hostmesh.worker.text.lengths import find_lengths
from hostmesh.worker.text.plan import count_up


@dataclass(frozen=True)
class DocumentWindows:
    """`ends` counts the tokens up to the end of each document."""

    documents: Documents
    ends: NDArray[np.int64]
    length: int
    stride: int
    shift: int

    @property
    def count(self) -> int:
        rest = int(self.ends[-1]) - self.length - self.shift
        return 0 if rest < 0 else rest // self.stride + 1

    def read(self, ids: Ids) -> Block:
        starts = ids * self.stride
        stops = starts + self.length + self.shift
        first = np.searchsorted(self.ends, starts, side="right")
        counts = np.searchsorted(self.ends, stops, side="left") + 1 - first
        documents = np.repeat(first, counts) + count_up(counts)
        ends = self.ends[documents]
        begins = np.where(documents > 0, self.ends[documents - 1], 0)
        starts, stops = np.repeat(starts, counts), np.repeat(stops, counts)
        parts = self.documents.read(documents, np.maximum(starts - begins, 0), np.minimum(stops, ends) - begins)
        tokens = np.concatenate([np.empty(0, self.documents.dtype), *parts]).reshape(len(ids), self.length + self.shift)
        return split_targets(tokens, self.length, self.shift)


def windows(
    source: Any, length: int, *, stride: int | None = None, next: int = 0, field: str = "tokens"
) -> BlockSource:
    """Windows of `length` tokens over all documents one after another: a source of rows {"tokens"}.

    Window k begins at token k × `stride`, by default the length. With `next=1` a row also has `targets`, the tokens one
    place further on. Tokens at the very end that fill no window are in none.

    All processes call this together: where the source does not know how long its documents are, each reads a part.
    """
    length, next = require_count("length", length), require_count("next", next, 0)
    stride = length if stride is None else require_count("stride", stride)
    documents = open_documents(source, field, "windows")
    found = DocumentWindows(documents, np.cumsum(find_lengths(documents)), length, stride, next)
    name = documents.source.name
    if not found.count:
        raise DataError(
            f"{name}: no window of {length + next:,} tokens fits; found {found.ends[-1]:,} in all documents"
        )
    return BlockSource(f"windows of {name}", found.count, found.read, getattr(documents.source, "content", None))
