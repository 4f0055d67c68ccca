"""The parts of a global array that a process reads: which they are, reading them, and handing them to devices."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from hostmesh.worker.assembly.shardings import even_sharding
from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.placement import Shape

Part: TypeAlias = tuple[tuple[int, int], ...]  # start and stop of each axis


def find_parts(sharding: Sharding, shape: Shape) -> dict[Any, Part]:
    """The part of each device."""
    return {
        device: tuple(span.indices(size)[:2] for span, size in zip(index, shape, strict=True))
        for device, index in sharding.devices_indices_map(shape).items()
    }


def whole(shape: Shape) -> Part:
    return tuple((0, size) for size in shape)


def bounding_box(parts: Iterable[Part]) -> Part:
    """The smallest part that has all of these in it."""
    axes = zip(*parts, strict=True)
    return tuple((min(start for start, _ in spans), max(stop for _, stop in spans)) for spans in axes)


def name_part(part: Part) -> str:
    """`[0:8, 16:32]`."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in part)}]"


class PartReader:
    """Reads parts, checks them, and puts them on devices. All of them have one dtype."""

    def __init__(self, read: Callable[[tuple[slice, ...]], Any], dtype: np.dtype[Any] | None) -> None:
        """`dtype` is the one that `read` must give; None stands for that of its first part."""
        self._read, self._wanted = read, dtype
        self._device_dtype: np.dtype[Any] | None = None
        self.shared: frozenset[Part] = frozenset()  # the parts whose fingerprints are wanted
        self.fingerprints: dict[Part, str] = {}

    @property
    def dtype(self) -> np.dtype[Any]:
        """As it is on a device."""
        assert self._device_dtype is not None
        return self._device_dtype

    def read_each(self, by_device: Mapping[Any, Part]) -> list[jax.Array]:
        """Each distinct part once, and only one of them in the memory of the host at a time."""
        devices: dict[Part, list[Any]] = {}
        for device, part in by_device.items():
            devices.setdefault(part, []).append(device)
        arrays: dict[Any, jax.Array] = {}
        for part, holders in devices.items():
            block = self.read(part, holders[0])
            arrays |= {device: self._put(block, part, device) for device in holders}
        return [arrays[device] for device in by_device]

    def read_box(self, box: Part, by_device: Mapping[Any, Part]) -> list[jax.Array]:
        """One read of a part that has those of all these devices in it."""
        block = self.read(box, next(iter(by_device)))
        return [self._put(_cut(block, box, part), part, device) for device, part in by_device.items()]

    def read_runs(self, by_device: Mapping[Any, Part], axis: int, shape: Shape) -> list[jax.Array]:
        """Parts that follow one another along an axis are read together. What lies behind the end is filled up."""
        arrays: dict[Any, jax.Array] = {}
        run: dict[Any, Part] = {}
        for device, part in sorted(by_device.items(), key=lambda found: found[1]):
            if run and part[axis][0] != bounding_box(run.values())[axis][1]:
                arrays |= self._read_run(run, axis, shape)
                run = {}
            run[device] = part
        arrays |= self._read_run(run, axis, shape)
        return [arrays[device] for device in by_device]

    def read(self, part: Part, device: Any) -> NDArray[Any]:
        """A part as `read` gave it, in the dtype that it has on a device."""
        with error_context(f"load an array: {name_part(part)} for device {device}"):
            found = self._read(tuple(slice(start, stop) for start, stop in part))
            array = found if isinstance(found, np.ndarray) else np.asarray(found)
            self._check(array, tuple(stop - start for start, stop in part))
            converted = _to_device_dtype(array)
            self._device_dtype = converted.dtype
            return converted

    def _read_run(self, run: Mapping[Any, Part], axis: int, shape: Shape) -> dict[Any, jax.Array]:
        box = bounding_box(run.values())
        start, stop = box[axis]
        last = min(stop, shape[axis])
        # A share that lies behind the end altogether has no values; the last ones stand for its dtype.
        first = min(start, shape[axis] - 1)
        block = self.read((*box[:axis], (first, max(last, first + 1)), *box[axis + 1 :]), next(iter(run)))
        missing = stop - first - block.shape[axis]
        if missing:
            block = np.pad(block, [(0, missing if n == axis else 0) for n in range(block.ndim)])
        filled = (*box[:axis], (first, stop), *box[axis + 1 :])
        return {device: self._put(_cut(block, filled, part), part, device) for device, part in run.items()}

    def _put(self, block: NDArray[Any], part: Part, device: Any) -> jax.Array:
        """A copy: `read` may use its memory again, and CPU devices share what is aligned, whatever `may_alias` says."""
        if part in self.shared and part not in self.fingerprints:
            content: Any = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
            self.fingerprints[part] = f"{zlib.crc32(content):08x}"
        array: jax.Array = jax.device_put(np.array(block, order="C"), device)
        return array.block_until_ready()  # so that the copy of one part is gone before the next is read

    def _check(self, array: NDArray[Any], shape: Shape) -> None:
        if array.shape != shape:
            raise DataError(f"read gave the shape {array.shape}; wanted {shape}")
        self._wanted = self._wanted or array.dtype
        if array.dtype != self._wanted:
            raise DataError(f"read gave {array.dtype.name}; wanted {self._wanted.name}")


@dataclass(frozen=True)
class EvenParts:
    """An equal share of the whole for every device, along one axis whose size is rounded up where it must be."""

    sharding: NamedSharding
    shape: Shape
    axis: int

    def read(self, reader: PartReader, shape: Shape) -> list[jax.Array]:
        """The shares of this process's devices."""
        parts = find_parts(self.sharding, self.shape)
        own = {device: part for device, part in parts.items() if device.process_index == jax.process_index()}
        return reader.read_runs(own, self.axis, shape)

    def exchange(self, arrays: list[jax.Array], target: Sharding, shape: Shape) -> jax.Array:
        """The array in its own sharding: a collective."""
        spread = jax.make_array_from_single_device_arrays(self.shape, self.sharding, arrays)
        cut = tuple(slice(0, size) for size in shape)
        result: jax.Array = jax.jit(lambda array: array[cut], out_shardings=target)(spread)
        return result


def even_parts(sharding: Sharding, shape: Shape) -> EvenParts:
    """Along the first axis that divides evenly, else along the longest one."""
    rows = even_sharding(sharding)
    devices = rows.num_devices
    even = [axis for axis, size in enumerate(shape) if size % devices == 0]
    axis = even[0] if even else max(range(len(shape)), key=lambda axis: shape[axis])
    rounded = -(-shape[axis] // devices) * devices
    spec = PartitionSpec(*(None,) * axis, *rows.spec)
    return EvenParts(NamedSharding(rows.mesh, spec), (*shape[:axis], rounded, *shape[axis + 1 :]), axis)


def _to_device_dtype(array: NDArray[Any]) -> NDArray[Any]:
    """Without 64-bit numbers jax has the shorter ones; a whole number that would change is an error."""
    if array.dtype.kind in "OSUMm" or array.dtype.names:
        raise DataError(f"read gave {array.dtype.name}, which no device holds; wanted numbers")
    wanted = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if wanted == array.dtype:
        return array
    converted = array.astype(wanted)
    if array.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise DataError(f"read gave values of {array.dtype.name} that {wanted.name} cannot hold: set JAX_ENABLE_X64=1")
    return converted


def _cut(block: NDArray[Any], box: Part, part: Part) -> NDArray[Any]:
    """A part of a block that was read for this box."""
    spans = zip(part, box, strict=True)
    found: NDArray[Any] = block[tuple(slice(start - first, stop - first) for (start, stop), (first, _) in spans)]
    return found
