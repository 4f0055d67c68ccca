"""Memory that batches lie in: nobody writes into it while anybody can read it, and then it is used again."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import REPO, clean_env

from hostmesh.worker.assembly.buffers import ALIGNMENT, BufferPool

SHAPE = (256, 784)


def address(array: np.ndarray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.bool_, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(256, 28, 28), (1000, 7), (40_000,), (3, 0), (0,)])
def test_an_owned_copy_is_equal_aligned_and_apart(shape: tuple[int, ...], dtype: Any) -> None:
    array = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
    for view in (array, array[1:], array[::2], array.T):
        found = BufferPool(2).copy(view)
        assert np.array_equal(found, view) and found.dtype == view.dtype
        assert found.__array_interface__["data"][0] % ALIGNMENT == 0
        assert not np.shares_memory(found, view)


def put(array: np.ndarray) -> jax.Array:
    """On a CPU device, which shares the array's memory: else these tests would show nothing."""
    placed = jax.device_put(array, jax.devices()[0])
    assert placed.unsafe_buffer_pointer() == address(array)
    return placed


def give_away(array: np.ndarray) -> jax.Array:
    return jax.jit(jnp.flip, donate_argnums=0)(put(array))


def use_at_once(array: np.ndarray) -> Any:
    """A computation that still runs when everybody has let go of what it reads."""

    @jax.jit
    def slow(placed: jax.Array) -> jax.Array:
        wasted = jax.lax.fori_loop(0, 20, lambda _, part: jnp.tanh(part @ part), jnp.ones((300, 300)))
        return jnp.where(wasted.sum() > -1e9, placed, 0)

    slow(jnp.zeros(SHAPE)).block_until_ready()  # compiled
    return slow(put(array))


# What may be all that is left of a batch.
HOLDERS: dict[str, Callable[[np.ndarray], Any]] = {
    "the array": lambda array: array,
    "a view of a view": lambda array: array.reshape(-1)[1:][:-1].reshape(-1),
    "a memoryview": memoryview,
    "a device": put,
    "a device's memory seen by NumPy": lambda array: np.asarray(put(array)),
    "a view of that": lambda array: np.asarray(put(array))[:],
    "a device's memory by dlpack": lambda array: np.from_dlpack(put(array)),
    "a part of a global array": lambda array: put(array).addressable_shards[0].data,
    "another array on the same memory": lambda array: jax.device_put(put(array), jax.devices()[0], may_alias=True),
    "what a donated array became": give_away,
    "a computation under way": use_at_once,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_somebody_can_read_is_not_written_into(holder: str) -> None:
    memory = BufferPool(4)
    wanted = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    owned = memory.copy(wanted)
    first = address(owned)
    held = HOLDERS[holder](owned)
    del owned
    for value in range(50):
        memory.copy(np.full(SHAPE, value, np.float32))
    found = np.asarray(held).reshape(-1)
    assert found.size and np.isin(found, wanted).all()
    del held, found
    jax.clear_caches()
    gc.collect()
    kept = [memory.copy(wanted) for _ in range(8)]
    assert first in {address(array) for array in kept}  # and is used again when it is over


def test_it_does_not_matter_how_references_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.14 counts one fewer where it only borrows one."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda thing: count(thing) - 2)  # this function is a holder more
    memory = BufferPool(4)
    kept = [memory.copy(np.full(SHAPE, value)) for value in range(4)]
    assert [int(array[0, 0]) for array in kept] == [0, 1, 2, 3]


def test_no_more_is_kept_than_was_asked_for() -> None:
    memory, zeros = BufferPool(2), np.zeros(SHAPE)
    tracemalloc.start()
    try:
        for _ in range(3):
            pieces = [memory.copy(zeros) for _ in range(6)]
            del pieces
        kept = tracemalloc.get_traced_memory()[0] / zeros.nbytes
    finally:
        tracemalloc.stop()
    assert 2 <= kept < 2.1


OBSERVE = """
import ctypes
import os
import sys
import numpy as np
import hostmesh
from hostmesh.worker.identity import Identity

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

def is_mapped():
    before = libc.mallinfo2().hblks
    taken = libc.malloc(31 << 20)
    after = libc.mallinfo2().hblks
    assert taken
    print(after > before, flush=True)  # not freed: glibc would take its size for a hint

is_mapped()
if "launched" in sys.argv:
    os.environ.update(Identity("r", 1, "h", 0, 1, 0, "127.0.0.1:1").to_env(), HOSTMESH_PID=str(os.getpid()))
for batch in hostmesh.Loader({"id": np.arange(64)}, batch_size=8, epochs=1):
    pass
is_mapped()
hostmesh.keep_freed_memory()
is_mapped()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
@pytest.mark.parametrize("process", ["alone", "launched"])
@pytest.mark.slow
def test_a_loader_leaves_the_c_librarys_memory_alone_unless_told(process: str) -> None:
    """From the size on that mallopt moves, glibc maps memory of its own for each request: that can be seen."""
    command = [sys.executable, "-c", OBSERVE, process]
    env = clean_env({"JAX_PLATFORMS": "cpu"})
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["True", str(process == "alone"), "False"], done.stderr
