"""Whether the processes have another batch: asked one step ahead, so that nobody waits for the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding


class Vote:
    def __init__(self, sharding: Sharding, need_all: bool) -> None:
        """Among the processes that have devices in the sharding."""
        self._need_all = need_all
        devices: list[Any] = list(sharding.device_set)
        firsts = {device.process_index: device for device in sorted(devices, key=lambda device: -device.id)}
        self._processes = len(firsts)
        mesh = Mesh(np.array([firsts[process] for process in sorted(firsts)]), "process")
        self._ballots = NamedSharding(mesh, PartitionSpec("process"))
        count = jnp.min if need_all else jnp.max
        self._count = jax.jit(count, out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._answer: Any = None

    def begin(self, votes: Sequence[bool]) -> None:
        """The first answer, from votes that were exchanged otherwise."""
        self._answer = all(votes) if self._need_all else any(votes)

    def ask(self, has_next: bool) -> None:
        """A collective; every process calls it once a step."""
        if self._processes == 1:
            self._answer = has_next
            return
        ballot = np.array([has_next], np.int32)
        ballots = jax.make_array_from_callback((self._processes,), self._ballots, lambda _: ballot)
        self._answer = self._count(ballots)

    def answer(self) -> bool:
        answer = self._answer
        return bool(answer if isinstance(answer, bool) else np.asarray(answer.addressable_data(0)))
