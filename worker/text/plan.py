"""Which documents, or pieces of long ones, make which row: first-fit, computed from the lengths alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.process.progress import Progress

Numbers = NDArray[np.int64]
TELL_EVERY = 1 << 16  # pieces


@dataclass(frozen=True)
class Pieces:
    """Neighbouring tokens of documents: where in its document each begins, and how many it has."""

    documents: Numbers
    starts: Numbers
    sizes: Numbers

    def take(self, which: Numbers) -> Pieces:
        return Pieces(self.documents[which], self.starts[which], self.sizes[which])


@dataclass(frozen=True)
class Plan:
    """The pieces of row r are those from `firsts[r]` up to `firsts[r + 1]`."""

    pieces: Pieces
    firsts: Numbers

    @property
    def rows(self) -> int:
        return len(self.firsts) - 1

    def of_rows(self, rows: Numbers) -> tuple[Pieces, Numbers]:
        """The pieces of these rows one after another, and how many each row has."""
        firsts, counts = self.firsts[rows], self.firsts[rows + 1] - self.firsts[rows]
        return self.pieces.take(np.repeat(firsts, counts) + count_up(counts)), counts


def plan_rows(documents: Numbers, lengths: Numbers, length: int, window: int) -> Plan:
    """`documents` are in the order in which they are packed; `lengths` are theirs. Rows are in the order of their first
    pieces."""
    pieces = cut_documents(documents, lengths, length)
    row_of = np.empty(len(pieces.sizes), np.int64)
    is_whole = pieces.sizes == length
    whole, others = np.flatnonzero(is_whole), np.flatnonzero(~is_whole)
    row_of[others] = first_fit(pieces.sizes[others], length, window)
    row_of[whole] = np.arange(len(whole)) + row_of[others].max(initial=-1) + 1
    _, first, number = np.unique(row_of, return_index=True, return_inverse=True)
    by_first_piece = np.argsort(np.argsort(first))
    row_of = by_first_piece[number]
    order = np.argsort(row_of, kind="stable")
    return Plan(pieces.take(order), np.append(0, np.cumsum(np.bincount(row_of))))


def cut_documents(documents: Numbers, lengths: Numbers, length: int) -> Pieces:
    """A document longer than a row becomes rows of its own and a rest; one without a token becomes nothing."""
    counts = -(-lengths // length)
    starts = count_up(counts) * length
    return Pieces(np.repeat(documents, counts), starts, np.minimum(np.repeat(lengths, counts) - starts, length))


def count_up(counts: Numbers) -> Numbers:
    """0, 1, 2, … anew for each count: [2, 3] gives [0, 1, 0, 1, 2]."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def first_fit(sizes: Numbers, length: int, window: int) -> Numbers:
    """Each piece goes to the oldest open row with room for it, or opens one; of more than `window` the oldest closes.

    A comparison of all open rows at once takes a microsecond or two.
    """
    progress = Progress(len(sizes), "packing documents")
    # The space in each row: there are not more rows than pieces. `opened` is one that is not begun yet, so one fits.
    space = np.full(len(sizes) + 1, length, np.int32)
    least = int(sizes.min(initial=length))
    row_of, oldest, opened = [], 0, 0
    open_rows = space[:1]
    for number, size in enumerate(sizes.tolist()):
        row = oldest + int((open_rows >= size).argmax())
        space[row] -= size
        row_of.append(row)
        if row in (opened, oldest):
            opened += row == opened
            oldest = max(oldest, opened - window)
            while oldest < opened and space[oldest] < least:
                oldest += 1
            open_rows = space[oldest : opened + 1]
        if number % TELL_EVERY == 1:
            progress.reached(number)
    return np.array(row_of, np.int64)
