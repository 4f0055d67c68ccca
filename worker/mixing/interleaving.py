"""One period of a mixture: which part comes at each of its positions, and how often a part came before; pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PERIODS_KEPT = 16


@dataclass(frozen=True, eq=False)
class Period:
    """`parts[p]` is the part at position p; `places[i]` are the positions of part i, in ascending order."""

    parts: NDArray[np.int64]
    places: tuple[NDArray[np.int64], ...]

    def count_before(self, position: int) -> list[int]:
        """How often each part comes in the positions 0 to `position` of all periods, one after another."""
        periods, rest = divmod(position, len(self.parts))
        return [periods * len(places) + int(np.searchsorted(places, rest)) for places in self.places]

    def place_of(self, part: int, draw: int) -> int:
        """The position at which a part comes for the n-th time, n counted from 0."""
        places = self.places[part]
        periods, rest = divmod(draw, len(places))
        return periods * len(self.parts) + int(places[rest])


@lru_cache(PERIODS_KEPT)
def interleave(counts: tuple[int, ...]) -> Period:
    """A period in which part i comes counts[i] times, spread so evenly that it never is a whole record off its weight.

    With a share of w, the n-th record of a part (n from 1) must come among positions floor((n-1)/w) to ceil(n/w) - 1:
    sooner, the part would be a record ahead of its weight, later a record behind. Of the records that may come now the
    one that must come soonest is taken. This earliest-deadline order meets all deadlines whenever any order does, and
    here one does because the shares add up to 1.
    """
    length = sum(counts)
    releases, deadlines, parts = _windows(counts, length)
    waiting: list[tuple[int, int]] = []
    order, next_one = np.empty(length, np.int64), 0
    for position in range(length):
        while next_one < length and releases[next_one] <= position:
            heapq.heappush(waiting, (deadlines[next_one], parts[next_one]))
            next_one += 1
        order[position] = heapq.heappop(waiting)[1]
    return Period(order, tuple(np.flatnonzero(order == part) for part in range(len(counts))))


def _windows(counts: Sequence[int], length: int) -> tuple[list[int], list[int], list[int]]:
    """Of every record of a period: the first position it may have, the first it may not have any more, and its part."""
    nth = np.concatenate([np.arange(count) for count in counts])
    of_part = np.repeat(np.array(counts), counts)
    parts = np.repeat(np.arange(len(counts)), counts)
    releases = nth * length // of_part
    deadlines = -(-(nth + 1) * length // of_part)
    by_release = np.argsort(releases, kind="stable")
    return releases[by_release].tolist(), deadlines[by_release].tolist(), parts[by_release].tolist()
