"""The order of a mixture: (seed, position) -> part and record, computed where it is read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.mixing.interleaving import Period, interleave
from hostmesh.worker.ordering.order import BLOCK, BLOCKS_KEPT, Order, slice_blocks

# A change of this, or of the arithmetic below, changes every mixture: saved positions would lose their meaning.
PURPOSE = b"hostmesh part 1"
# Draws of a part that are computed at once, because NumPy's cost per call is that of thousands of them, and all that
# are kept, 8 bytes each.
MIN_CHUNK = 1 << 10
CHUNKS_SIZE = 1 << 21
NO_DRAWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class MixtureOrder:
    """Which record stands at the global positions 0, 1, 2, … of a mixture.

    Part i comes `counts[i]` times in every period. Its n-th record is the n-th of an order of its own, over its
    `lengths[i]` records: in each epoch of the part each of its records comes once. Ids number the records of all parts
    one after another.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        _ = self.orders  # they check lengths and seed

    @classmethod
    def of_steps(cls, described: dict[str, Any], seed: int, shuffle: bool) -> MixtureOrder:
        """From what `describe` gave, after it was JSON."""
        return cls(tuple(described["lengths"]), tuple(described["counts"]), seed, shuffle)

    def describe(self) -> dict[str, list[int]]:
        """All that makes this order, beside seed and shuffle."""
        return {"lengths": list(self.lengths), "counts": list(self.counts)}

    @cached_property
    def orders(self) -> tuple[Order, ...]:
        """That of each part."""
        seeds = [derive_seed(self.seed, part) for part in range(len(self.lengths))]
        return tuple(Order(length, seed, self.shuffle) for length, seed in zip(self.lengths, seeds, strict=True))

    @property
    def period(self) -> Period:
        return interleave(self.counts)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The id of the first record of each part."""
        return np.cumsum([0, *self.lengths[:-1]], dtype=np.int64)

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """The record ids at positions start to stop."""
        return slice_blocks(lambda number: _block(self, number), start, stop)

    def compute(self, start: int, stop: int) -> NDArray[np.int64]:
        period = self.period
        parts = period.parts.take(np.arange(start, stop) % len(period.parts))
        draws = zip(period.count_before(start), period.count_before(stop), strict=True)
        ids = np.empty(stop - start, np.int64)
        # Part after part, each with the positions at which it comes.
        ids[np.argsort(parts, kind="stable")] = np.concatenate(
            [self._draw(part, first, last) + self.starts[part] for part, (first, last) in enumerate(draws)]
        )
        return ids

    def _draw(self, part: int, first: int, last: int) -> NDArray[np.int64]:
        """The records of a part from its draw number `first` on, in the part's own numbering."""
        found = []
        while first < last:
            number = first // self._chunk
            base = number * self._chunk
            until = min(last, base + self._chunk)
            found.append(self._chunk_of(part, number)[first - base : until - base])
            first = until
        return found[0] if len(found) == 1 else np.concatenate([NO_DRAWS, *found])

    def _chunk_of(self, part: int, number: int) -> NDArray[np.int64]:
        """Of each part the draws around those that were asked for last are kept. Threads may compute them twice."""
        kept = self._kept.get(part)
        if kept is None or kept[0] != number:
            base = number * self._chunk
            kept = self._kept[part] = number, self.orders[part].compute(base, base + self._chunk)
        return kept[1]

    @cached_property
    def _chunk(self) -> int:
        return max(MIN_CHUNK, min(BLOCK, CHUNKS_SIZE // len(self.lengths)))

    @cached_property
    def _kept(self) -> dict[int, tuple[int, NDArray[np.int64]]]:
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what is kept."""
        return MixtureOrder, (self.lengths, self.counts, self.seed, self.shuffle)


AnyOrder: TypeAlias = Order | MixtureOrder


@lru_cache(BLOCKS_KEPT)
def _block(order: MixtureOrder, number: int) -> NDArray[np.int64]:
    return order.compute(number * BLOCK, (number + 1) * BLOCK)


def derive_seed(seed: int, part: int) -> int:
    """Another seed for each part: parts of equal length, or of the same source, are shuffled differently."""
    digest = hashlib.blake2b(f"{seed} {part}".encode(), digest_size=8, person=PURPOSE).digest()
    return int.from_bytes(digest, "little")
