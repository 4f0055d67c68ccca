"""What a process does to itself for each kind of fault that needs no knowledge of steps."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count, repeat
from typing import NamedTuple, NoReturn

from hostmesh.worker.chaos.deafness import deafen
from hostmesh.worker.chaos.network import drop_network, explain_no_network
from hostmesh.worker.identity import FACTS_SOCKET

MIB = 1 << 20
# What is computed to learn how fast this machine is: so many rounds, and more until they take that many seconds.
SAMPLE, SAMPLE_TIME = 10_000, 0.01
# The most rounds that one call of hashlib takes: minutes.
MAX_ROUNDS = (1 << 31) - 1
CLONE_VFORK = 0x4000
CHILD_STACK = 256 << 10
MAX_SECONDS = (1 << 31) - 1


class Fault(NamedTuple):
    """One fault of this process; see launcher/chaos/model.py for what its kinds are called."""

    number: int
    kind: str
    step: int | None = None
    after: float | None = None
    seed: int = 0
    attempt: int = 1
    seconds: float | None = None  # None: for ever
    factor: float = 1.0
    megabytes: int | None = None  # None: until the end

    @property
    def when(self) -> str:
        return f"at step {self.step}" if self.step is not None else f"after {self.after:g} s"


# Ends.


def _kill(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(_: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _abort(_: Fault) -> None:
    _leave_no_core()
    os.abort()


def _segfault(_: Fault) -> None:
    _leave_no_core()
    ctypes.string_at(0)


def _leave_no_core() -> None:
    """A rehearsal fills no disk."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _exit_0(_: Fault) -> None:
    os._exit(0)


def _leave_early(_: Fault) -> NoReturn:
    sys.exit(0)


def _raise(fault: Fault) -> NoReturn:
    raise RuntimeError(f"raised by --chaos {fault.when}")


# Waits.


def _sleep(fault: Fault) -> None:
    time.sleep(MAX_SECONDS if fault.seconds is None else fault.seconds)


def _lock(fault: Fault) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=-1 if fault.seconds is None else fault.seconds)


def _spin(fault: Fault) -> None:
    _compute(lambda rounds: hashlib.pbkdf2_hmac("sha256", b"", b"", rounds), MAX_ROUNDS, fault.seconds)


def _hold_gil(fault: Fault) -> None:
    _compute(lambda rounds: deque(repeat(None, rounds), maxlen=0), sys.maxsize, fault.seconds)


def _compute(call: Callable[[int], object], most: int, seconds: float | None) -> None:
    """In one call of native code, of so many rounds as take that long."""
    if seconds is None:
        while True:
            call(most)
    rounds = SAMPLE
    while (took := _measure(call, rounds)) < SAMPLE_TIME:
        rounds *= 4
    call(min(most, int(rounds * seconds / took)))


def _measure(call: Callable[[int], object], rounds: int) -> float:
    """In processor time, which a busy machine does not stretch."""
    began = time.thread_time()
    call(rounds)
    return time.thread_time() - began


def _python_spin(fault: Fault) -> None:
    until = math.inf if fault.seconds is None else time.monotonic() + fault.seconds
    for _ in count():
        if time.monotonic() >= until:
            return


def _run_program(fault: Fault) -> None:
    subprocess.run(["sleep", "infinity" if fault.seconds is None else f"{fault.seconds:f}"], check=False)


def _read_pipe(fault: Fault) -> None:
    """The pipe is a file, so that it has a path, in the agent's folder, which is removed with the run."""
    path = os.path.join(os.path.dirname(os.environ[FACTS_SOCKET]), f"chaos-{os.getpid()}-{fault.number}")
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)
    if fault.seconds is not None:
        threading.Timer(fault.seconds, os.write, (pipe, b"\n")).start()
    os.read(pipe, 1)
    os.close(pipe)


def _wait_for_disk(fault: Fault) -> None:
    """In the state of a process that waits for a disk: as one waits there for a child made by vfork, which sleeps."""
    libc = ctypes.CDLL(None, use_errno=True)
    stack = ctypes.create_string_buffer(CHILD_STACK)
    top = ctypes.c_void_p((ctypes.addressof(stack) + CHILD_STACK) & ~15)
    seconds = MAX_SECONDS if fault.seconds is None else max(1, round(fault.seconds))
    flags = CLONE_VFORK | signal.SIGCHLD
    child = libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), top, flags, ctypes.c_void_p(seconds))
    if child < 0:
        raise OSError(ctypes.get_errno(), "no child could be made")
    os.waitpid(child, 0)


def _fill_memory(fault: Fault) -> None:
    """The system is asked to end this process first when it runs out, and none of the others."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    try:
        for _ in repeat(None) if fault.megabytes is None else repeat(None, fault.megabytes):
            _filled.append(b"\xff" * MIB)
    except MemoryError:
        _filled.clear()  # whoever tells of it needs some
        raise


_filled: list[bytes] = []


# Computations.


def _compute_otherwise(_: Fault) -> None:
    import jax
    import numpy as np

    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("all",))
    split, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (("all",), ()))
    rows = np.ones((3 * len(devices), 5), np.float32)
    array = jax.make_array_from_callback(rows.shape, split, lambda index: rows[index])

    def another_program(x: jax.Array) -> jax.Array:
        return (x * 3 - 1).sum(axis=0)

    jax.jit(another_program, out_shardings=whole)(array).block_until_ready()


def _explain_not_joined() -> str | None:
    distributed = sys.modules.get("jax._src.distributed")
    is_joined = distributed is not None and distributed.global_state.client is not None
    return None if is_joined else "it has not joined other processes through jax"


def _explain_no_loader() -> str | None:
    return None if "hostmesh.worker.loading.loader" in sys.modules else "it uses no hostmesh.Loader"


def _explain_not_linux() -> str | None:
    return None if sys.platform == "linux" else f"it runs on {sys.platform}, and only Linux has this"


ACTS: dict[str, Callable[[Fault], None]] = {
    "kill": _kill,
    "stop": _stop,
    "abort": _abort,
    "segfault": _segfault,
    "raise": _raise,
    "exit 0": _exit_0,
    "leave early": _leave_early,
    "sleep": _sleep,
    "lock": _lock,
    "spin": _spin,
    "hold gil": _hold_gil,
    "python spin": _python_spin,
    "subprocess": _run_program,
    "read": _read_pipe,
    "disk": _wait_for_disk,
    "deaf": lambda fault: deafen(fault.seconds),
    "fill memory": _fill_memory,
    "another program": _compute_otherwise,
    "drop network": lambda fault: drop_network(fault.seconds),
}
# Any thread can do these. All others are for the main thread, which runs the program.
IN_ANY_THREAD = {"kill", "stop", "abort", "segfault", "exit 0", "deaf", "drop network"}
# Why a fault cannot be done in this process, or None.
OBSTACLES: dict[str, Callable[[], str | None]] = {
    "another program": _explain_not_joined,
    "skip batch": _explain_no_loader,
    "disk": _explain_not_linux,
    "deaf": _explain_not_linux,
    "drop network": explain_no_network,
}
