"""Whether processes whose streams should differ give some of the same records: hashes of the first ones, compared."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DisagreementError
from hostmesh.worker.guard.hashing import fingerprint
from hostmesh.worker.loading.rows import Record, leaves
from hostmesh.worker.process.coordination import exchange, name_processes
from hostmesh.worker.streams.sharded.groups import RowGroup

Hashes = NDArray[np.uint64]

WHAT = "compare the first records of sharded streams"
# Of one group of processes, and of all together: 8 bytes each, which pass through the coordinator.
MAX_EACH, MAX_IN_ALL = 1 << 12, 1 << 15
# One process may be at work for longer before it takes its batch. One that died is noticed by others than this timeout.
TIMEOUT = 24 * 3600.0

# Records that two groups have in common are an overlap, and not duplicates in the data, where they are at least so
# many, such a share of those compared, and so many times those that each of the two has twice by itself: records that
# are equal by nature are as often equal within a stream as between two.
MIN_COMMON, MIN_SHARE, TIMES_OWN = 32, 0.01, 8


@dataclass(frozen=True)
class Overlap:
    """Between two groups, by their places; `common` pairs of equal records among those compared."""

    groups: tuple[int, int]
    common: int
    compared: int


class OverlapCheck:
    """After 1, 2, 4, 8, … steps all records so far are compared, until there are enough."""

    def __init__(self, groups: Sequence[RowGroup], name: str) -> None:
        self._groups, self._name = groups, name
        self.most = min(MAX_EACH, MAX_IN_ALL // len(groups))
        self._taken = 0
        self._is_over = self.most < MIN_COMMON

    def begin(self) -> None:
        """A new reader has begun."""
        self._taken, self._is_over = 0, self.most < MIN_COMMON

    def note_taken(self, by_step: Sequence[Sequence[int]]) -> None:
        """A step was taken; `by_step` has the hashes of its records and of those before. All processes call this."""
        self._taken += 1
        if self._is_over or self._taken & (self._taken - 1):
            return
        is_first = any(group.processes[0] == jax.process_index() for group in self._groups)
        own = [value for step in by_step[: self._taken] for value in step][: self.most] if is_first else []
        found = exchange(WHAT, base64.b64encode(np.array(own, "<u8").tobytes()).decode(), TIMEOUT)
        hashes = [np.frombuffer(base64.b64decode(found[group.processes[0]]), "<u8") for group in self._groups]
        self._is_over = self._taken >= self.most or all(len(values) == self.most for values in hashes)
        if (overlap := find_overlap(hashes)) is not None:
            self._refuse(overlap)

    def _refuse(self, overlap: Overlap) -> None:
        one, other = (name_processes(self._groups[number].processes) for number in overlap.groups)
        raise DisagreementError(
            f"{self._name}: {one} and {other} give the same records: {overlap.common:,} of the first"
            f" {overlap.compared:,} of each; sharded=True wants streams that have none in common. Shard by process, and"
            " give a shuffle before that a seed that is the same on all processes; or leave out sharded=True and let"
            " the loader shard; where equal records are meant, verify=False"
        )


def find_overlap(hashes: Sequence[Hashes]) -> Overlap | None:
    """The largest of all pairs of groups."""
    owners = np.repeat(np.arange(len(hashes)), [len(values) for values in hashes])
    _, which, seen = np.unique(np.concatenate(hashes), return_inverse=True, return_counts=True)
    is_repeated = seen[which] > 1
    places = np.cumsum(seen > 1) - 1
    counts = np.zeros((len(hashes), int((seen > 1).sum())), np.float32)
    np.add.at(counts, (owners[is_repeated], places[which[is_repeated]]), 1)
    common = counts @ counts.T
    own = (np.diagonal(common) - counts.sum(axis=1)) / 2  # pairs of equal records within a group
    sizes = np.array([len(values) for values in hashes])
    compared = np.minimum(sizes[:, None], sizes)
    wanted = np.maximum(np.maximum(MIN_COMMON, MIN_SHARE * compared), TIMES_OWN * (own[:, None] + own))
    excess = np.triu(np.where(common >= wanted, common, 0), 1)
    if not excess.any():
        return None
    one, other = divmod(int(excess.argmax()), len(hashes))
    return Overlap((one, other), int(excess[one, other]), int(compared[one, other]))


def hash_records(records: Sequence[Record]) -> list[int]:
    """Of each record by itself."""
    return [_hash_record(record) for record in records]


def _hash_record(record: Record) -> int:
    found = " ".join(f"{path} {_hash_leaf(leaf)}" for path, leaf in leaves(record))
    return int(fingerprint(np.frombuffer(found.encode(), np.uint8)), 16)


def _hash_leaf(leaf: Any) -> str:
    try:
        array = np.asarray(leaf)
        return str(array.tolist()) if array.dtype.hasobject or not array.dtype.itemsize else fingerprint(array)
    except Exception:  # `collate` may know what to do with it; such records are all alike here, which proves nothing
        return type(leaf).__name__
