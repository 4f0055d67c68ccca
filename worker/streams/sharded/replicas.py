"""Whether processes that hold the same rows give the same records: their fingerprints, compared at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from hostmesh.worker.errors import DisagreementError
from hostmesh.worker.process.coordination import name_processes
from hostmesh.worker.streams.has_next import one_device_each
from hostmesh.worker.streams.sharded.groups import RowGroup
from hostmesh.worker.streams.stream_rows import group_by

UNKNOWN = -1  # the fingerprint of records that could not be read
BITS = 0x7FFFFFFF


class ReplicaCheck:
    """All processes send a fingerprint of the records of the next step, and look at all of them when its turn comes.

    That is one collective a step. Records that differ are found before they are in a batch.
    """

    def __init__(self, groups: Sequence[RowGroup], sharding: Sharding, name: str) -> None:
        self._groups, self._name = groups, name
        self._one_each = one_device_each(sharding)
        everywhere = NamedSharding(self._one_each.mesh, PartitionSpec())
        self._gather = jax.jit(lambda values: values, out_shardings=everywhere)
        self._gathered: Any = None

    def send(self, fingerprint: str | None) -> None:
        """A collective; every process calls it once a step."""
        value = np.array([UNKNOWN if fingerprint is None else int(fingerprint, 16) & BITS], np.int32)
        processes = self._one_each.num_devices
        self._gathered = self._gather(jax.make_array_from_callback((processes,), self._one_each, lambda _: value))

    def check(self) -> None:
        """Of the records that were sent last."""
        if self._gathered is None:
            return
        found = np.asarray(self._gathered.addressable_data(0)).tolist()
        # A process that could not read them says so itself, at their turn.
        known = [str(value) if value != UNKNOWN else "" for value in found]
        require_same_in_groups(self._groups, known, self._name)


def require_same_in_groups(groups: Sequence[RowGroup], fingerprints: Sequence[str], name: str) -> None:
    """`fingerprints` has one for each process; an empty one is not compared."""
    for group in groups:
        known = [process for process in group.processes if fingerprints[process]]
        holders = group_by([fingerprints[process] for process in known], known)
        if len(holders) > 1:
            apart = " and ".join(map(name_processes, holders.values()))
            raise DisagreementError(
                f"{name}: {apart} hold the same rows of a batch and give different records: a computation would use"
                " both without a word. Shard by group, as docs/loading.md shows, so that these processes read the same;"
                " or give the loader loading='reshard', and every process gives rows of its own"
            )
