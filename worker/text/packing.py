"""Documents packed into rows of one length, as a source: any row at any time, by a plan that is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.choices import require_choice, require_count
from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, require_fit, split_block
from hostmesh.worker.ordering.order import Order
from hostmesh.worker.sources.base import BaseSource
from hostmesh.worker.text.documents import Documents, open_documents
from hostmesh.worker.text.lengths import Lengths, find_lengths
from hostmesh.worker.text.plan import Plan, count_up, plan_rows
from hostmesh.worker.verify.content import Content

TOO_LONG = ("split", "drop", "error")


@dataclass(frozen=True)
class PackedSource(BaseSource):
    """Rows {"tokens", "segment_ids", "positions"}, each of `length` tokens.

    Segments count 1, 2, … in a row, one for each document in it, and 0 is padding. Positions begin at 0 in each.
    """

    name: str
    documents: Documents
    plan: Plan
    length: int
    pad: int
    lengths_of_documents: Lengths
    dropped: int

    def __len__(self) -> int:
        return self.plan.rows

    @property
    def efficiency(self) -> float:
        """The share of tokens in all rows that is no padding."""
        return float(self.plan.pieces.sizes.sum()) / (len(self) * self.length)

    @property
    def content(self) -> Content | None:
        """What is compared between processes: with the same lengths they have the same plan."""
        found = getattr(self.documents.source, "content", None) or Content(())
        return found.with_array("lengths of documents", self.lengths_of_documents)

    def read(self, ids: Ids) -> Block:
        check_ids(ids, len(self), self.name)
        pieces, counts = self.plan.of_rows(ids)
        parts = self.documents.read(pieces.documents, pieces.starts, pieces.starts + pieces.sizes)
        used = np.add.reduceat(np.append(pieces.sizes, 0), np.cumsum(counts) - counts) if len(ids) else counts
        is_token = np.arange(self.length) < used[:, None]
        return {
            "tokens": self._fill(is_token, np.concatenate(parts) if parts else 0, self.documents.dtype, self.pad),
            "segment_ids": self._fill(is_token, np.repeat(count_up(counts) + 1, pieces.sizes), np.dtype(np.int32)),
            "positions": self._fill(is_token, count_up(pieces.sizes), np.dtype(np.int32)),
        }

    def records(self, ids: Ids) -> list[Record]:
        return split_block(self.read(ids), len(ids))

    def _fill(self, is_token: Any, values: Any, dtype: np.dtype[Any], pad: int = 0) -> Any:
        """Every row has its tokens at its beginning, so all of them lie in the order of rows."""
        filled = np.full(is_token.shape, pad, dtype)
        filled[is_token] = values
        return filled


def pack(
    source: Any,
    length: int,
    *,
    field: str = "tokens",
    window: int = 1024,
    seed: int | None = None,
    too_long: str = "split",
    pad: int = 0,
) -> PackedSource:
    """Documents packed into rows of `length` tokens: a source, so that a loader shuffles and resumes it like any other.

    - `source`: whatever a loader takes that has records by number; `field` of a record holds its tokens, or text.
    - Each document goes to the first of `window` open rows that has room for it. With a `seed` documents are packed in
      a shuffled order, so that neighbours in the source are not neighbours in a row.
    - `too_long`: a document of more than `length` tokens is cut in pieces (`split`), left out and counted as `.dropped`
      (`drop`), or an error.
    - `.efficiency` is the share of tokens that is no padding.

    All processes call this together: where the source does not know how long its documents are, each reads a part.
    """
    length, window = require_count("length", length), require_count("window", window)
    require_choice("too_long", too_long, TOO_LONG)
    documents = open_documents(source, field, "pack")
    require_fit("pad", pad, documents.dtype)
    name = documents.source.name
    lengths = find_lengths(documents)
    order = np.arange(len(lengths)) if seed is None else Order(len(lengths), seed).ids(0, len(lengths))
    is_long = lengths > length
    if too_long == "error" and is_long.any():
        first = int(is_long.argmax())
        found = f"record {first} has {lengths[first]:,} tokens, and {is_long.sum() - 1:,} more are longer than a row"
        raise DataError(f"{name}: wanted documents of at most {length:,}: {found}; too_long='split' cuts them")
    if too_long == "drop":
        order = order[~is_long[order]]
    if not lengths[order].any():
        raise DataError(f"{name}: wanted documents with tokens; found none in {len(lengths):,} documents")
    plan = plan_rows(order, lengths[order], length, window)
    dropped = int(is_long.sum()) if too_long == "drop" else 0
    return PackedSource(f"pack of {name}", documents, plan, length, pad, lengths, dropped)
