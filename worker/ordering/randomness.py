"""Random numbers for the rows of a block that depend on the seed and each row's global position only."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.ordering.order import mix_words

# A change of any of these, or of the arithmetic below, changes every augmentation.
MAP, COLLATE = 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B  # so that the draws of one are independent of those of the other
ROW_STRIDE = np.uint64(0x9E3779B97F4A7C15)
DRAW_STRIDE = 0xD1B54A32D192ED03
WORD = (1 << 64) - 1
SIGNIFICANT = np.uint64(11)  # a double holds 53 bits: the topmost of a word's 64


class RowRandom:
    """Each method gives one array, its first axis the rows: the same for a row in whichever block it comes.

    Draws differ from call to call; the n-th call gives a row the same numbers in every process.
    """

    def __init__(self, seed: int, positions: NDArray[np.int64], purpose: int = MAP) -> None:
        self._rows = mix_words(positions.astype(np.uint64) * ROW_STRIDE + np.uint64((seed ^ purpose) & WORD))
        self._draws = 0

    def random(self, shape: tuple[int, ...] = ()) -> NDArray[np.float64]:
        """Uniform in [0, 1)."""
        return (self._words(shape) >> SIGNIFICANT).astype(np.float64) * 2.0**-53

    def integers(self, low: int, high: int, shape: tuple[int, ...] = ()) -> NDArray[np.int64]:
        """Uniform in low, …, high - 1."""
        if not low < high <= low + (1 << 52):
            raise ValueError(f"integers wants low < high, at most 2**52 apart; found {low} and {high}")
        return low + (self.random(shape) * (high - low)).astype(np.int64)

    def normal(self, shape: tuple[int, ...] = ()) -> NDArray[np.float64]:
        """Standard normal."""
        radius: NDArray[np.float64] = np.sqrt(-2.0 * np.log1p(-self.random(shape)))
        angle: NDArray[np.float64] = np.cos(2 * math.pi * self.random(shape))
        return radius * angle

    def generators(self) -> Iterator[np.random.Generator]:
        """One generator for each row, for whatever the other methods lack; a row costs some 15 µs."""
        for word in self._words(()):
            yield np.random.Generator(np.random.PCG64(int(word)))

    def _words(self, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        self._draws += 1
        elements = np.arange(math.prod(shape), dtype=np.uint64).reshape(1, *shape) + np.uint64(self._draws << 40)
        rows = self._rows.reshape(-1, *(1,) * len(shape))
        return mix_words(mix_words(elements * np.uint64(DRAW_STRIDE)) ^ rows)
