"""Which rows of a global array each process must load, from its sharding alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape: TypeAlias = tuple[int, ...]
Index: TypeAlias = tuple[slice, ...]
Runs: TypeAlias = tuple[range, ...]


class Device(Hashable, Protocol):
    @property
    def process_index(self) -> int: ...


class Sharding(Protocol):
    """What is used of a jax sharding. When the shape does not fit, `num_devices` is used too."""

    def devices_indices_map(self, global_shape: Shape, /) -> Mapping[Any, Index]: ...


@dataclass(frozen=True)
class Group:
    """All processes that load exactly these rows."""

    processes: tuple[int, ...]
    row_runs: Runs

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        return np.concatenate([np.arange(0), *(np.arange(run.start, run.stop) for run in self.row_runs)])


@dataclass(frozen=True)
class Placement:
    """The rows of a global array that one process loads, and the processes that load the same.

    A process loads the rows of `row_runs` in that order into one block. `device_rows` says which part of that block
    each of its devices wants: `block[device_rows[device]]`, where the first slice counts local rows and the others
    are those of the global index.
    """

    process_index: int
    groups: tuple[Group, ...]
    device_rows: Mapping[Any, Index]

    @classmethod
    def of(
        cls,
        sharding: Sharding,
        global_shape: Sequence[int],
        process_index: int | None = None,
        num_processes: int | None = None,
    ) -> Placement:
        """Of this process, unless another is named; a process without a device in the sharding loads no rows."""
        process_index, num_processes = _processes(process_index, num_processes)
        indices = _indices(sharding, tuple(global_shape))
        runs = _runs_by_process(indices, num_processes)
        own = {device: index for device, index in indices.items() if device.process_index == process_index}
        parts = {device: (_local(runs[process_index], rows), *rest) for device, (rows, *rest) in own.items()}
        return cls(process_index, _groups(runs), parts)

    @property
    def row_runs(self) -> Runs:
        return self._group.row_runs

    @property
    def rows(self) -> NDArray[np.int64]:
        return self._group.rows

    @property
    def group(self) -> tuple[int, ...]:
        return self._group.processes

    @cached_property
    def _group(self) -> Group:
        return next(group for group in self.groups if self.process_index in group.processes)


def _processes(process_index: int | None, num_processes: int | None) -> tuple[int, int]:
    if process_index is None or num_processes is None:
        import jax

        process_index = jax.process_index() if process_index is None else process_index
        num_processes = jax.process_count() if num_processes is None else num_processes
    if not 0 <= process_index < num_processes:
        raise ValueError(f"found process_index {process_index}, wanted 0 to {num_processes - 1}")
    return process_index, num_processes


def _indices(sharding: Sharding, shape: Shape) -> dict[Device, Index]:
    """Each device's part of the global array, without None in its slices."""
    if not shape or shape[0] < 1:
        raise ValueError(f"a placement wants a shape whose first axis counts rows, at least one; found {shape}")
    rank = len(getattr(sharding, "spec", ()))
    if rank > len(shape):
        raise ValueError(f"the sharding wants at least {rank} axes, found {len(shape)} in the shape {shape}")
    try:
        indices = sharding.devices_indices_map(shape)
    except ValueError as error:
        raise ValueError(_misfit(sharding, shape) or str(error)) from error
    return {
        device: tuple(slice(*part.indices(size)[:2]) for part, size in zip(index, shape, strict=True))
        for device, index in indices.items()
    }


def _misfit(sharding: Any, shape: Shape) -> str:
    # Every axis is cut into a divisor of the number of devices, so this shape always fits and shows the cuts.
    probe = sharding.devices_indices_map((sharding.num_devices,) * len(shape))
    cuts = [len({part.start for part in parts}) for parts in zip(*probe.values(), strict=True)]
    return "; ".join(
        f"axis {axis} of the shape {shape} is cut into {cut} parts: wanted a multiple of {cut}, found {size}"
        for axis, (size, cut) in enumerate(zip(shape, cuts, strict=True))
        if size % cut
    )


def _runs_by_process(indices: Mapping[Device, Index], num_processes: int) -> list[Runs]:
    parts: list[list[slice]] = [[] for _ in range(num_processes)]
    for device, (rows, *_) in indices.items():
        if device.process_index >= num_processes:
            raise ValueError(f"{device} is of process {device.process_index}, wanted 0 to {num_processes - 1}")
        parts[device.process_index].append(rows)
    return [_joined(part) for part in parts]


def _joined(parts: Iterable[slice]) -> Runs:
    """Sorted, without repetition, and what touches in one run."""
    runs: list[range] = []
    for start, stop in sorted((part.start, part.stop) for part in parts):
        if runs and start <= runs[-1].stop:
            runs[-1] = range(runs[-1].start, max(stop, runs[-1].stop))
        else:
            runs.append(range(start, stop))
    return tuple(runs)


def _groups(runs_by_process: Sequence[Runs]) -> tuple[Group, ...]:
    """In the order of their first processes."""
    members: defaultdict[Runs, list[int]] = defaultdict(list)
    for process, runs in enumerate(runs_by_process):
        members[runs].append(process)
    return tuple(Group(tuple(processes), runs) for runs, processes in members.items())


def _local(runs: Runs, rows: slice) -> slice:
    """Where these global rows lie in the block of the runs."""
    before = 0
    for run in runs:
        if rows.start in run:
            return slice(before + rows.start - run.start, before + rows.stop - run.start)
        before += len(run)
    raise AssertionError(f"{rows} is in none of {runs}")
