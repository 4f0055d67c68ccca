"""Whether all processes have another batch: an all-reduce one step ahead, so that nobody waits for its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding


def one_device_each(sharding: Sharding) -> NamedSharding:
    """For an array with one value for each process that has devices in the sharding, in the order of their numbers."""
    devices: list[Any] = list(sharding.device_set)
    firsts = {device.process_index: device for device in sorted(devices, key=lambda device: -device.id)}
    mesh = Mesh(np.array([firsts[process] for process in sorted(firsts)]), "process")
    return NamedSharding(mesh, PartitionSpec("process"))


class GlobalHasNext:
    """There is another batch if all processes have one or, without `need_all`, if any has."""

    def __init__(self, sharding: Sharding, need_all: bool) -> None:
        """The processes are those that have devices in the sharding."""
        self._need_all = need_all
        self._one_each = one_device_each(sharding)
        self._processes = self._one_each.num_devices
        reduce = jnp.min if need_all else jnp.max
        self._reduce = jax.jit(reduce, out_shardings=NamedSharding(self._one_each.mesh, PartitionSpec()))
        self._result: Any = None

    def begin(self, flags: Sequence[bool]) -> None:
        """The first result, from flags of all processes that were exchanged otherwise."""
        self._result = all(flags) if self._need_all else any(flags)

    def reduce(self, has_next: int) -> None:
        """A collective; every process calls it once a step. Any number will do in the place of a flag."""
        if self._processes == 1:
            self._result = int(has_next)
            return
        flag = np.array([has_next], np.int32)
        flags = jax.make_array_from_callback((self._processes,), self._one_each, lambda _: flag)
        self._result = self._reduce(flags)

    def result(self) -> bool:
        return bool(self.value())

    def value(self) -> int:
        """The smallest number of all processes or, without `need_all`, the greatest."""
        result = self._result
        return int(result if isinstance(result, int) else np.asarray(result.addressable_data(0)))
