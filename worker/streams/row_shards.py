"""Which shard of a stream each row of a global batch comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RowShards:
    """For each row of a batch the number of its shard, and its place among the rows of that shard."""

    shard: NDArray[np.int64]
    place: NDArray[np.int64]

    @classmethod
    def of(cls, rows_by_shard: Sequence[NDArray[np.int64]]) -> RowShards:
        """From the rows of each shard, which together are all rows of a batch, each once."""
        count = sum(map(len, rows_by_shard))
        shard, place = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for number, rows in enumerate(rows_by_shard):
            shard[rows], place[rows] = number, np.arange(len(rows))
        return cls(shard, place)

    @classmethod
    def even(cls, batch_size: int, shards: int) -> RowShards:
        """Equally many rows of each shard, those of the first one first."""
        return cls.of(np.split(np.arange(batch_size), shards))

    @property
    def batch_size(self) -> int:
        return len(self.shard)

    def share(self, shard: int) -> int:
        """How many rows of a batch come from this shard."""
        return int(np.count_nonzero(self.shard == shard))
