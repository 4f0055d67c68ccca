"""How many records of a step a process answers for, and a fingerprint of them that does not depend on their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.ordering.order import STRIDE, Words, mix_words

if TYPE_CHECKING:
    from hostmesh.worker.placement import Placement

# The ids of the records of a step that this process answers for.
Used: TypeAlias = NDArray[np.int64]
# Where the rows that are counted lie in a row set.
Own: TypeAlias = "slice | NDArray[np.int64]"

NOTHING: Used = np.empty(0, np.int64)
WORD = (1 << 64) - 1


def hash_records(steps: Words, ids: NDArray[np.int64]) -> Words:
    """A word for each pair of a step and a record. Multiples of the golden ratio keep such a distance that different
    pairs have different words, as long as steps times records are fewer than 2**62."""
    return mix_words(ids.view(np.uint64) + steps * STRIDE)


def sum_hashes(steps: Sequence[int], used: Sequence[Used]) -> int:
    """Of many steps at once: a call of NumPy costs as much as a thousand records. Steps count from 1."""
    of_steps = np.array(steps, np.uint64)
    if len(used) == 1:
        return int(np.add.reduce(hash_records(of_steps, used[0])))
    of_rows = np.repeat(of_steps, [len(ids) for ids in used])
    return int(np.add.reduce(hash_records(of_rows, np.concatenate(used))))


def take_own(ids: NDArray[np.int64], rows: NDArray[np.int64], own: Own, real: int) -> Used:
    """Of the records that are read for these rows of a batch, of whose rows so many are no padding.

    A process counts only the rows that are its own, so that over all processes each row counts once. It is a copy: what
    reads and maps records may change the ids.
    """
    used = ids[own]
    if len(rows) and rows[-1] >= real:
        used = used[: int(np.searchsorted(rows[own], real))]
    return used.copy()


def find_own_rows(placement: Placement, batch_size: int) -> NDArray[np.int64]:
    """The rows of a batch that this process answers for: of those whose devices get a row the first one does."""
    is_taken = np.zeros(max(batch_size, 1 + max(int(group.rows.max(initial=0)) for group in placement.groups)), bool)
    is_taken[batch_size:] = True  # rows that only make the shares of all devices equal
    for group in placement.groups:
        if group.processes[0] < placement.process_index:
            is_taken[group.rows] = True
    own: NDArray[np.int64] = placement.rows[~is_taken[placement.rows]]
    return own


def place_own_rows(own: NDArray[np.int64], row_sets: Sequence[NDArray[np.int64]]) -> list[Own]:
    """Where they lie in each row set; a row that is in several counts in the first."""
    places: list[Own] = []
    for rows in row_sets:
        found = np.flatnonzero(np.isin(rows, own))
        own = np.setdiff1d(own, rows[found])
        is_run = len(found) > 0 and found[-1] - found[0] + 1 == len(found)
        places.append(slice(int(found[0]), int(found[-1]) + 1) if is_run else found)
    return places


def to_runs(rows: NDArray[np.int64]) -> list[list[int]]:
    """`[[0, 16], [32, 48]]`: starts and stops of ascending rows."""
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(rows, cuts) if len(part)]
