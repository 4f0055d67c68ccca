"""Which rows of a batch each process gives, when its stream has its own records only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import place_rows
from hostmesh.worker.assembly.shardings import even_sharding
from hostmesh.worker.errors import DataError
from hostmesh.worker.process.coordination import name_processes


@dataclass(frozen=True)
class RowGroup:
    """Processes that hold the same rows, and so must give the same records."""

    processes: tuple[int, ...]
    rows: NDArray[np.int64]


def find_groups(shardings: Sequence[Sharding], batch_size: int, loading: str) -> list[RowGroup]:
    """In the order of their first rows. Together they have each row of a batch once."""
    if loading == "global":
        raise DataError("loading='global' wants all rows in every process; found sharded=True, where each has its own")
    if loading == "reshard":
        shardings = [even_sharding(shardings[0])]
        if batch_size % shardings[0].num_devices:
            wanted = f"a batch_size that is a multiple of the {shardings[0].num_devices} devices"
            raise DataError(f"loading='reshard' with sharded=True wants {wanted}; found {batch_size}")
    members: dict[tuple[int, ...], list[int]] = {}
    for process, rows in enumerate(_rows_by_process(shardings, batch_size)):
        members.setdefault(rows, []).append(process)
    groups = [RowGroup(tuple(processes), np.array(rows)) for rows, processes in sorted(members.items())]
    if sum(len(group.rows) for group in groups) > batch_size:
        _refuse_overlap(groups)
    return groups


def _rows_by_process(shardings: Sequence[Sharding], batch_size: int) -> list[tuple[int, ...]]:
    """The rows that the devices of each process hold, of any array of a batch."""
    rows: list[set[int]] = [set() for _ in range(jax.process_count())]
    for sharding in shardings:
        for group in place_rows(sharding, batch_size).groups:
            for process in group.processes:
                rows[process].update(group.rows.tolist())
    if not all(rows):
        raise DataError(f"process {rows.index(set())} has no device in the mesh; wanted some of every process")
    return [tuple(sorted(found)) for found in rows]


def _refuse_overlap(groups: Sequence[RowGroup]) -> None:
    for number, group in enumerate(groups):
        for other in groups[:number]:
            if common := np.intersect1d(group.rows, other.rows).size:
                found = f"{name_processes(other.processes)} and {name_processes(group.processes)} share {common} rows"
                raise DataError(
                    f"sharded=True wants processes that hold the same rows of a batch, or none in common; found that"
                    f" {found} and hold others besides: loading='reshard' lets every process give its own rows"
                )
