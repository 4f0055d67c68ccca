"""Joining the other processes, and leaving them: in order after success, at once after a failure."""

from __future__ import annotations

import atexit
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from worker.facts import send_fact
from worker.identity import Identity

CLUSTERS = "jax._src.clusters"
DISTRIBUTED = "jax._src.distributed"
JAX_PATIENCE = 300
LEAST_THREADS = 8
THREADS_PER_DEVICE = 4
# Looking for the coordinator: seconds between two tries of one process, and what all processes together may do.
LEAST_PAUSE, MOST_PAUSE = 0.005, 0.5
TRIES_A_SECOND_BY_ALL = 2000
JITTER = 0.25
RANDOM = random.Random()  # of our own: a script that has seeded the common one must get what it expects
CONNECT_TIMEOUT = 1.0


def join(initialization_timeout: int = 300) -> Identity | None:
    """Call jax.distributed.initialize with this process's identity; does nothing when alone or joined already."""
    identity = Identity.from_env()
    if identity is None or identity.num_processes == 1:
        return identity
    prepare_jax()
    import jax

    if not jax.distributed.is_initialized():
        jax.distributed.initialize(
            coordinator_address=identity.coordinator_address,
            num_processes=identity.num_processes,
            process_id=identity.process_id,
            coordinator_bind_address=identity.coordinator_address,
            initialization_timeout=initialization_timeout,
        )
    return identity


def prepare_jax() -> None:
    """Make `jax.distributed.initialize()` without arguments work, now or whenever jax gets imported."""
    for name, adapt in {CLUSTERS: _add_cluster_type, DISTRIBUTED: _announce_joining}.items():
        if name in sys.modules:
            adapt(sys.modules[name])
        elif not any(isinstance(f, _AfterImport) and f.name == name for f in sys.meta_path):
            sys.meta_path.insert(0, _AfterImport(name, adapt))


def widen_cpu_pool() -> None:
    """Let XLA make more threads for CPU devices than there are cores; call it before jax makes the devices.

    A collective holds a thread until its peers are there: on two cores, two devices with two collectives each can
    wait for one another for ever.
    """
    given = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    devices = int(given) if given.isdecimal() else 1
    if os.environ.get("JAX_PLATFORMS") == "cpu" and not os.environ.get("NPROC"):
        os.environ["NPROC"] = str(max(os.cpu_count() or 1, LEAST_THREADS, THREADS_PER_DEVICE * devices))


def forget_jax() -> None:
    """Drop jax's exit handlers, which wait for the other processes and for the device."""
    for module, handler in (("jax._src.api", "clean_up"), ("jax._src.dispatch", "wait_for_tokens")):
        if module in sys.modules:
            atexit.unregister(getattr(sys.modules[module], handler, None) or forget_jax)


def _add_cluster_type(clusters: ModuleType) -> None:
    if any(kind.name == "hostmesh" for kind in clusters.ClusterEnv._cluster_types):
        return

    class HostmeshCluster(clusters.ClusterEnv):  # type: ignore[name-defined, misc]
        name = "hostmesh"

        @classmethod
        def is_env_present(cls) -> bool:
            return Identity.from_env() is not None

        @classmethod
        def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
            return _identity().coordinator_address

        @classmethod
        def get_process_count(cls) -> int:
            return _identity().num_processes

        @classmethod
        def get_process_id(cls) -> int:
            return _identity().process_id

    # jax takes the first type that is present: under SLURM_* variables an appended one would lose.
    kinds = clusters.ClusterEnv._cluster_types
    kinds.insert(0, kinds.pop(kinds.index(HostmeshCluster)))


def _identity() -> Identity:
    identity = Identity.from_env()
    assert identity is not None
    return identity


def _announce_joining(distributed: ModuleType) -> None:
    state = distributed.State
    initialize = state.initialize
    if getattr(initialize, "announces", False):
        return

    def announced(self: Any, coordinator_address: str | None = None, *args: Any, **kwargs: Any) -> None:
        send_fact("joining")
        identity = Identity.from_env()
        if identity is not None and coordinator_address in (None, identity.coordinator_address):
            _await_coordinator(identity, kwargs.get("initialization_timeout", JAX_PATIENCE))
        initialize(self, coordinator_address, *args, **kwargs)
        send_fact("joined")

    announced.announces = True  # type: ignore[attr-defined]
    state.initialize = announced


def _await_coordinator(
    identity: Identity,
    patience: float,
    answers: Callable[[str, int], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """jax waits a full second after one refused connection; a look every few milliseconds finds process 0 sooner."""
    host, _, port = identity.coordinator_address.rpartition(":")
    answers = answers or _answers
    began = clock()
    while identity.process_id != 0 and (waited := clock() - began) < patience:
        if answers(host.strip("[]"), int(port)):
            return
        sleep(_pause_before_retry(waited, identity.num_processes) * RANDOM.uniform(1 - JITTER, 1 + JITTER))


def _pause_before_retry(waited: float, num_processes: int) -> float:
    """Back off: a hundredth of the wait so far, up to a limit, and never more tries a second by all than allowed."""
    pause = min(max(LEAST_PAUSE, waited / 100), MOST_PAUSE)
    return max(pause, num_processes / TRIES_A_SECOND_BY_ALL)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
    except OSError:
        return False
    return True


class _AfterImport(MetaPathFinder):
    """Calls `adapt(module)` right after the named module has been imported."""

    def __init__(self, name: str, adapt: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.adapt = adapt

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = next(filter(None, (f.find_spec(name, path, target) for f in sys.meta_path)), None)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_adapt(module: ModuleType) -> None:
                execute(module)
                self.adapt(module)

            loader.exec_module = execute_and_adapt  # type: ignore[method-assign]
        return spec
