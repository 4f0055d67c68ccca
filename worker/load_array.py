"""One global array that is no batch, such as weights or a large image: each process reads the parts it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import DTypeLike

from hostmesh.worker.assembly.array_parts import (
    Part,
    PartReader,
    bounding_box,
    even_parts,
    find_parts,
    name_part,
    whole,
)
from hostmesh.worker.assembly.shardings import describe_sharding
from hostmesh.worker.distributed import require_joined
from hostmesh.worker.errors import DataError, DisagreementError
from hostmesh.worker.loading.choices import STRATEGIES, require_choice
from hostmesh.worker.placement import Placement, Shape
from hostmesh.worker.process.coordination import exchange, name_processes, require_same, share_failure

Read: TypeAlias = Callable[[tuple[slice, ...]], Any]
ByDevice: TypeAlias = Mapping[Any, Part]

LOAD = "load an array"
# Seconds that a process waits for one that reads longer.
READING_TIMEOUT = 24 * 3600.0


def load_array(
    read: Read | Any,
    sharding: Sharding,
    shape: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    strategy: str = "per_device",
    verify: bool = True,
) -> jax.Array:
    """A global array whose parts are read by the processes that need them. All processes of the sharding call it.

    - `read(index)` gets a tuple of slices and returns that part as a NumPy array. Or an array that can be sliced: a
      `np.memmap`, a dataset of h5py or zarr; then its shape need not be given.
    - `dtype` is what `read` must give; by default what its first part has.
    - `strategy`: `per_device` reads each distinct part of this process's devices, one after the other, so that no more
      is read than needed and one part is held at a time; `per_process` reads the smallest box around all of them at
      once; `global` reads everything; `reshard` reads an equal share of the whole, and the devices exchange parts.
      All give the same array.
    - `verify`: compare what several processes have read of the same part. With False they do not.
    """
    require_joined(LOAD)
    if not isinstance(sharding, Sharding):
        how = "jax.NamedSharding(mesh, PartitionSpec('data'))"
        raise DataError(f"{LOAD}: wanted a sharding, as in {how}; found {sharding!r}")
    devices: list[Any] = list(sharding.device_set)
    # A process that has no device in the sharding need not call this, so there is no waiting for one.
    is_everywhere = {device.process_index for device in devices} == set(range(jax.process_count()))
    with share_failure(LOAD, READING_TIMEOUT) if is_everywhere else nullcontext():
        require_choice("strategy", strategy, STRATEGIES)
        reader, size = _open(read, shape, dtype)
        parts = _place(sharding, size)
        holders = _find_holders(parts)
        spread = even_parts(sharding, size) if strategy == "reshard" and size else None
        if verify and is_everywhere and spread is None:
            reader.shared = frozenset(part for part, processes in holders.items() if len(processes) > 1)
        arrays = _read_own(reader, strategy, parts, size) if spread is None else spread.read(reader, size)
    if is_everywhere:
        described: dict[str, Any] = {"shape": list(size), "dtype": reader.dtype.name, "strategy": strategy}
        require_same(LOAD, {**described, "sharding": describe_sharding(sharding)})
    if spread is not None:
        return spread.exchange(arrays, sharding, size)
    if reader.shared:
        _require_same_replicas(holders, reader)
    return jax.make_array_from_single_device_arrays(size, sharding, arrays)


def _read_own(reader: PartReader, strategy: str, parts: ByDevice, shape: Shape) -> list[jax.Array]:
    own = {device: part for device, part in parts.items() if device.process_index == jax.process_index()}
    if strategy == "per_process":
        return reader.read_box(bounding_box(own.values()), own)
    return reader.read_box(whole(shape), own) if strategy == "global" else reader.read_each(own)


def _open(read: Any, shape: Sequence[int] | None, dtype: DTypeLike | None) -> tuple[PartReader, Shape]:
    wanted = None if dtype is None else _check_dtype(dtype)
    if hasattr(read, "shape") and hasattr(read, "__getitem__"):
        size = tuple(int(length) for length in read.shape)
        if shape is not None and tuple(shape) != size:
            raise DataError(f"{LOAD}: {type(read).__name__} has the shape {size}; wanted {tuple(shape)}")
        return PartReader(lambda index: read[index], wanted), size
    if not callable(read):
        wants = "wanted a function read(index), or an array that can be sliced"
        raise DataError(f"{LOAD}: found {type(read).__name__}, {wants}")
    if shape is None:
        raise DataError(f"{LOAD}: a function read(index) has no shape; wanted shape=")
    return PartReader(read, wanted), _check_shape(shape)


def _check_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise DataError(f"{LOAD}: dtype wants a kind of numbers such as float32; found {dtype!r}") from None
    return found


def _check_shape(shape: Sequence[int]) -> Shape:
    try:
        found: tuple[Any, ...] = tuple(shape)
    except TypeError:
        found = (None,)
    if not all(isinstance(length, (int, np.integer)) and length > 0 for length in found):
        raise DataError(f"{LOAD}: a shape wants a number of 1 or more for each axis, found {shape!r}")
    return tuple(int(length) for length in found)


def _place(sharding: Sharding, shape: Shape) -> dict[Any, Part]:
    """The part of every device, also those of other processes."""
    if not sharding.addressable_devices:
        raise DataError(f"{LOAD}: process {jax.process_index()} has no device in the sharding; wanted at least one")
    if not shape:
        return {device: () for device in sharding.device_set}
    try:
        Placement.of(sharding, shape)  # its messages name the axis and the number that would fit
    except ValueError as error:
        raise DataError(f"{LOAD}: {error}") from error
    return find_parts(sharding, shape)


def _find_holders(parts: ByDevice) -> dict[Part, list[int]]:
    """The processes that hold each part."""
    holders: defaultdict[Part, set[int]] = defaultdict(set)
    for device, part in parts.items():
        holders[part].add(device.process_index)
    return {part: sorted(processes) for part, processes in holders.items()}


def _require_same_replicas(holders: Mapping[Part, Sequence[int]], reader: PartReader) -> None:
    """jax takes replicas that differ between processes, and computes with both."""
    mine = {name_part(part): fingerprint for part, fingerprint in reader.fingerprints.items()}
    found = exchange(f"{LOAD} with replicas", mine)
    for part in sorted(reader.shared):
        by_content: defaultdict[str, list[int]] = defaultdict(list)
        for process in holders[part]:
            by_content[found[process][name_part(part)]].append(process)
        if len(by_content) > 1:
            apart = " and ".join(map(name_processes, by_content.values()))
            raise DisagreementError(f"{LOAD}: {apart} read different values of {name_part(part)}, which they all hold")
