"""A mesh of devices in which each process holds one regular block, and each model replica stays inside a process."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from hostmesh.worker.distributed import require_joined
from hostmesh.worker.process.words import count


def make_mesh(
    *,
    span_processes: bool = False,
    batch_axes: Sequence[str] = ("data",),
    devices: Sequence[Any] | None = None,
    **axes: int,
) -> Mesh:
    """A mesh with the named axes, from slowest to fastest; the size of one of them may be -1, which is inferred.

    The axes in `batch_axes` (or else the first axis) split the batch; the others make one model
    replica. A replica over several processes makes them load the same rows, so it has to be asked for.
    """
    require_joined("make a mesh")
    blocks = _by_process(jax.devices() if devices is None else devices)
    sizes = _sizes(axes, blocks.shape)
    batch = [name for name in sizes if name in batch_axes] or [next(iter(sizes))]
    if not span_processes:
        _check_replicas(sizes, batch, each=blocks.shape[1])
    grid = _process_grid(sizes, batch, len(blocks))
    return Mesh(_arranged(blocks, sizes, grid), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def _by_process(devices: Sequence[Any]) -> np.ndarray:
    """One row of devices for each process."""
    rows: defaultdict[int, list[Any]] = defaultdict(list)
    for device in sorted(devices, key=lambda device: (device.process_index, device.id)):
        rows[device.process_index].append(device)
    if len({len(row) for row in rows.values()}) != 1:
        found = ", ".join(f"process {process}: {len(row)}" for process, row in rows.items())
        raise ValueError(f"a mesh wants equally many devices of each process, found {found or 'none'}")
    return np.array(list(rows.values()), dtype=object)


def _sizes(axes: Mapping[str, int], shape: tuple[int, ...]) -> dict[str, int]:
    if not axes:
        raise ValueError("a mesh wants at least one axis, for example make_mesh(data=-1)")
    for name, size in axes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or (size < 1 and size != -1):
            raise ValueError(f"axis {name} wants a size of 1 or more, or -1 for what is left; found {size!r}")
    inferred = [name for name, size in axes.items() if size == -1]
    if len(inferred) > 1:
        raise ValueError(f"one axis at most may be -1, found {len(inferred)}: {', '.join(inferred)}")
    total, given = math.prod(shape), math.prod(size for size in axes.values() if size != -1)
    if total % given or (not inferred and total != given):
        wanted = f"a multiple of {given}" if inferred else f"{given}"
        raise ValueError(f"{_shown(axes)} wants {wanted} devices, found {total} ({_shown_processes(shape)})")
    return {name: total // given if size == -1 else size for name, size in axes.items()}


def _check_replicas(sizes: Mapping[str, int], batch: Sequence[str], each: int) -> None:
    model = {name: size for name, size in sizes.items() if name not in batch}
    replica = math.prod(model.values())
    if each % replica:
        raise ValueError(
            f"a model replica of {replica} devices ({_shown(model)}) would span processes, which have {each} each:"
            f" wanted a divisor of {each}, or span_processes=True; only batch axes ({', '.join(batch)}) span unasked"
        )


def _process_grid(sizes: Mapping[str, int], batch: Sequence[str], processes: int) -> list[int]:
    """Among how many processes each axis is split: the batch axes first, then the others, as far as it takes."""
    grid = dict.fromkeys(sizes, 1)
    for name in [*batch, *(name for name in sizes if name not in batch)]:
        grid[name] = math.gcd(sizes[name], processes)
        processes //= grid[name]
    return list(grid.values())


def _arranged(blocks: np.ndarray, sizes: Mapping[str, int], grid: Sequence[int]) -> np.ndarray:
    local = [size // parts for size, parts in zip(sizes.values(), grid, strict=True)]
    ordered = np.array([_block(list(block), local) for block in blocks], dtype=object)
    # From (process axes…, local axes…) to each process axis just before its local axis.
    pairs = np.arange(2 * len(grid)).reshape(2, -1).T.ravel()
    return ordered.reshape(*grid, *local).transpose(pairs).reshape(*sizes.values())


def _block(devices: list[Any], shape: Sequence[int]) -> np.ndarray:
    if devices[0].platform == "tpu":
        try:
            return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        except (AssertionError, NotImplementedError):
            pass  # The devices are no full box of their torus; any order is right, if not the fastest.
    return np.array(devices, dtype=object).reshape(shape)


def _shown(axes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in axes.items())


def _shown_processes(shape: tuple[int, ...]) -> str:
    processes, devices = shape
    return f"{count(processes, 'process')} of {devices}"
