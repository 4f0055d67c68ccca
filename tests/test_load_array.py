"""Arrays that are no batch: every strategy gives the same one, reads what it says, and names what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh
from hostmesh.worker.errors import DataError

VALUES = np.arange(12 * 20, dtype=np.float32).reshape(12, 20)
STRATEGIES = ("per_device", "per_process", "global", "reshard")


def sharding(*spec: Any, shape: tuple[int, int] = (2, 2)) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()[: shape[0] * shape[1]]).reshape(shape), ("x", "y")), P(*spec))


def aligned(part: Any) -> Any:
    """Memory that a CPU device would share."""
    memory = np.empty(part.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + part.nbytes].view(part.dtype).reshape(part.shape)


class Reads:
    """A function that keeps what it was asked for, and gives its one buffer again and again."""

    def __init__(self, values: Any = VALUES) -> None:
        self.values = values
        self.indices: list[tuple[slice, ...]] = []
        self.buffer = np.empty(0, values.dtype)

    def __call__(self, index: tuple[slice, ...]) -> Any:
        self.indices.append(index)
        part = self.values[index]
        self.buffer = self.buffer if self.buffer.shape == part.shape else aligned(part)
        self.buffer[...] = part
        return self.buffer

    @property
    def numbers(self) -> int:
        return sum(self.values[index].size for index in self.indices)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("spec", [("x",), (None, "y"), ("x", "y"), ("y", "x"), (("x", "y"),), ()], ids=str)
def test_every_strategy_gives_the_same_array(strategy: str, spec: tuple[Any, ...]) -> None:
    reads, wanted = Reads(), sharding(*spec)
    array = hostmesh.load_array(reads, wanted, VALUES.shape, strategy=strategy)
    assert array.sharding == wanted and array.dtype == np.float32
    np.testing.assert_array_equal(array, VALUES)
    reads.buffer[...] = -1  # nothing of it is shared with the devices
    np.testing.assert_array_equal(array, VALUES)
    if strategy == "per_device":
        distinct = {str(index) for index in array.sharding.devices_indices_map(VALUES.shape).values()}
        assert len(reads.indices) == len(distinct) and reads.numbers == VALUES.size
    else:
        assert len(reads.indices) == 1 and reads.numbers == VALUES.size


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (2, 3, 8)], ids=str)
def test_shapes_that_no_axis_divides_are_loaded_too(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    for strategy in STRATEGIES:
        array = hostmesh.load_array(Reads(values), sharding(), shape, strategy=strategy)
        np.testing.assert_array_equal(array, values)


def test_arrays_that_can_be_sliced_need_no_function(tmp_path: Path) -> None:
    np.save(tmp_path / "values.npy", VALUES)
    mapped = np.load(tmp_path / "values.npy", mmap_mode="r+")
    array = hostmesh.load_array(mapped, sharding("x", "y"))
    mapped[:] = 0
    np.testing.assert_array_equal(array, VALUES)
    h5py = pytest.importorskip("h5py", reason="comes with TensorFlow")
    with h5py.File(tmp_path / "values.h5", "w") as file:
        file["values"] = VALUES
        np.testing.assert_array_equal(hostmesh.load_array(file["values"], sharding("x", "y")), VALUES)


def test_dtypes_are_those_of_the_device() -> None:
    double = hostmesh.load_array(Reads(VALUES.astype(np.float64)), sharding("x"), VALUES.shape)
    assert double.dtype == jnp.float32
    brain = hostmesh.load_array(Reads(VALUES.astype(jnp.bfloat16)), sharding("x"), VALUES.shape, jnp.bfloat16)
    assert brain.dtype == jnp.bfloat16 and brain[1, 1] == 21


def fails(read: Any, message: str, spec: Any = ("x", "y"), shape: Any = VALUES.shape, **options: Any) -> None:
    with pytest.raises(ValueError, match=message):
        hostmesh.load_array(read, sharding(*spec), shape, **options)


def test_what_is_wrong_is_named_with_its_part_and_device() -> None:
    def broken(index: tuple[slice, ...]) -> Any:
        if index[1].start == 10:
            raise OSError("bad sector")
        return VALUES[index]

    where = r"load an array: \[0:6, 10:20\] for device cpu:1"
    fails(broken, rf"{where} at .*test_load_array.py:\d+ in broken: OSError: bad sector")
    fails(lambda index: VALUES, r"\[0:6, 0:10\] for .*: read gave the shape \(12, 20\); wanted \(6, 10\)")
    fails(Reads(), r"read gave float32; wanted int32", dtype=np.int32)
    mixed = [np.float32, np.float16]
    fails(lambda index: VALUES[index].astype(mixed.pop()), "read gave float32; wanted float16")
    fails(lambda index: VALUES[index].astype(object), "read gave object, which no device holds; wanted numbers")
    large = np.full((4, 4), 1 << 40)
    fails(Reads(large), "read gave values of int64 that int32 cannot hold", shape=(4, 4))
    fails(Reads(), r"axis 0 of the shape \(7, 20\) is cut into 2 parts: wanted a multiple of 2, found 7", shape=(7, 20))
    fails(Reads(), "wants at least 2 axes, found 1", shape=(12,))
    fails(Reads(), "a function read.* wanted shape=", shape=None)
    fails(Reads(), r"a shape wants a number of 1 or more for each axis, found \(12, -1\)", shape=(12, -1))
    fails(VALUES, r"ndarray has the shape \(12, 20\); wanted \(12, 21\)", shape=(12, 21))
    fails("weights", r"found str, wanted a function read\(index\), or an array")
    fails(Reads(), "dtype wants a kind of numbers such as float32; found 'floaty'", dtype="floaty")
    for wrong in (sharding("x").mesh, P("x")):
        with pytest.raises(DataError, match=r"wanted a sharding, as in jax.NamedSharding\(.*; found .*(Mesh|P)\("):
            hostmesh.load_array(VALUES, wrong)  # type: ignore[arg-type]
    fails(Reads(), "strategy wants one of .*; found 'all'", strategy="all")


def test_errors_are_of_one_kind() -> None:
    with pytest.raises(DataError):
        hostmesh.load_array(Reads(), sharding("x"), (7, 20))
