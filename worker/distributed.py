"""Joining the other processes, and leaving them: in order after success, at once after a failure."""

from __future__ import annotations

import atexit
import functools
import os
import random
import socket
import sys
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hostmesh.worker.errors import WorkerError
from hostmesh.worker.identity import PID, Identity
from hostmesh.worker.preemption import let_ctrl_c_end
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.recording.record import Phase
from hostmesh.worker.recording.recorder import RECORDER, phase

if TYPE_CHECKING:
    from hostmesh.worker.recording.programs import Programs

CLUSTERS = "jax._src.clusters"
DISTRIBUTED = "jax._src.distributed"
COMPILER = "jax._src.compiler"
STAGES = "jax._src.stages"
# Seconds that jax itself gets for joining when finding the coordinator has taken all other time.
MIN_TIMEOUT = 1
MIN_THREADS = 8
THREADS_PER_DEVICE = 4
# Looking for the coordinator: seconds between two tries of one process, and what all processes together may do.
MIN_PAUSE, MAX_PAUSE = 0.005, 0.5
TRIES_A_SECOND_BY_ALL = 2000
JITTER = 0.25
RANDOM = random.Random()  # a separate one, so that a script that seeds `random` gets the numbers it expects
CONNECT_TIMEOUT = 1.0

is_prepared = False
has_joined = False  # this process: the others of its run, or a cluster that the script made itself


def join(initialization_timeout: int = 300) -> Identity | None:
    """Join the other processes of the run: jax.distributed.initialize with this process's identity, which is returned.

    Call it before anything that uses jax's devices. It does nothing when the process is alone or has joined already;
    outside of `launch` it returns None.
    """
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
            initialization_timeout=initialization_timeout,
        )
    return identity


def prepare_jax() -> None:
    """Make `jax.distributed.initialize()` without arguments work, now or whenever jax gets imported."""
    global is_prepared
    if is_prepared:  # by sitecustomize or by the nursery
        return
    is_prepared = True
    RECORDER.open()
    adapters = {
        CLUSTERS: _add_cluster_type,
        DISTRIBUTED: _announce_joining,
        COMPILER: _take_part_in_compiling,
        STAGES: lambda module: _reports().watch_calls(module),
        "jax": _check_at_exit,
    }
    for name, adapt in adapters.items():
        if name in sys.modules:
            adapt(sys.modules[name])
        else:
            sys.meta_path.insert(0, _AfterImport(name, adapt))


def require_joined(what: str) -> None:
    """Raises where `what` needs the devices of all processes: alone, each would do the whole job, and succeed."""
    import jax

    identity = identity_of_itself()
    if identity is None or identity.num_processes == 1 or jax.distributed.is_initialized():
        return
    raise WorkerError(
        f"{what}: found process {identity.process_id} of {identity.num_processes} alone, wanted it to have joined the "
        "others; call hostmesh.join(), or jax.distributed.initialize(), before anything that uses jax's devices"
    )


def widen_cpu_pool() -> None:
    """Let XLA make more threads for CPU devices than there are cores; call it before jax makes the devices.

    A collective holds a thread until its peers are there: on two cores, two devices with two collectives each can
    wait for one another for ever.
    """
    given = os.environ.get("JAX_NUM_CPU_DEVICES", "")
    devices = int(given) if given.isdecimal() else 1
    if os.environ.get("JAX_PLATFORMS") == "cpu" and not os.environ.get("NPROC"):
        os.environ["NPROC"] = str(max(os.cpu_count() or 1, MIN_THREADS, THREADS_PER_DEVICE * devices))


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


def identity_of_itself() -> Identity | None:
    """The identity of this very process; None in a program that a process of the run has started."""
    return Identity.from_env() if os.environ.get(PID) == str(os.getpid()) else None


def _check_at_exit(jax: ModuleType) -> None:
    """Registered after jax's own exit handlers, so that it runs before they end the devices."""
    atexit.register(_report_if_alone)
    atexit.register(RECORDER.enter, int(Phase.LEAVING))


def _report_if_alone() -> None:
    identity = identity_of_itself()
    devices = sys.modules.get("jax._src.xla_bridge")
    if identity is None or identity.num_processes == 1 or has_joined or devices is None:
        return
    if getattr(devices, "backends_are_initialized", bool)():
        send_fact("ran_separately", must_arrive=True)


def _take_part_in_compiling(compiler: ModuleType) -> None:
    from hostmesh.worker.compiling.hook import keep_programs

    _reports().watch(compiler)
    keep_programs(compiler)


def _reports() -> Programs:
    from hostmesh.worker.recording.programs import PROGRAM_REPORTS  # 10 ms that a program without jax does without

    return PROGRAM_REPORTS


def _announce_joining(distributed: ModuleType) -> None:
    state = distributed.State
    initialize = state.initialize
    if getattr(initialize, "announces", False):
        return
    import inspect  # jax has done so by now; to others it would cost 10 ms

    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def announced(*args: Any, **kwargs: Any) -> None:
        global has_joined
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        identity = Identity.from_env()
        address = call.arguments["coordinator_address"]
        is_ours = identity is not None and address in (None, identity.coordinator_address)
        with phase("joining"):
            if identity is not None and is_ours:
                send_fact("joining", must_arrive=True)
                _join_ours(call.arguments, identity)
            with let_ctrl_c_end():
                initialize(*call.args, **call.kwargs)
        has_joined = True
        if is_ours:
            send_fact("joined", must_arrive=True)
            _reports().begin()

    announced.announces = True  # type: ignore[attr-defined]
    state.initialize = announced


def _join_ours(arguments: dict[str, Any], identity: Identity) -> None:
    """For a call of initialize: bind the coordinator's own address alone, and take no longer in all than asked."""
    if arguments["coordinator_bind_address"] is None:
        arguments["coordinator_bind_address"] = identity.coordinator_address
    timeout, began = arguments["initialization_timeout"], time.monotonic()
    _await_coordinator(identity, timeout - MIN_TIMEOUT)
    left = timeout - (time.monotonic() - began)
    arguments["initialization_timeout"] = max(MIN_TIMEOUT, int(left))


def _await_coordinator(
    identity: Identity,
    timeout: float,
    answers: Callable[[str, int], bool] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """jax waits a full second after one refused connection; a look every few milliseconds finds process 0 sooner."""
    host, _, port = identity.coordinator_address.rpartition(":")
    answers = answers or _answers
    began = clock()
    while identity.process_id != 0 and (waited := clock() - began) < timeout:
        if answers(host.strip("[]"), int(port)):
            return
        sleep(_pause_before_retry(waited, identity.num_processes) * RANDOM.uniform(1 - JITTER, 1 + JITTER))


def _pause_before_retry(waited: float, num_processes: int) -> float:
    """Back off: a hundredth of the wait so far, up to a limit, and never more tries a second by all than allowed."""
    pause = min(max(MIN_PAUSE, waited / 100), MAX_PAUSE)
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
