"""Promise 4: the rows of each process and each device are those that the sharding says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import Launch, Script, clean_env
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hostmesh.worker.placement import Group, Placement

P = PartitionSpec


@dataclass(frozen=True)
class FakeDevice:
    id: int
    process_index: int


def sharding(processes: Sequence[int], mesh_shape: Sequence[int], *spec: Any) -> NamedSharding:
    """Over a mesh with axes x, y, z, whose devices belong to these processes in row-major order."""
    devices = np.array([FakeDevice(k, process) for k, process in enumerate(processes)], dtype=object)
    return NamedSharding(Mesh(devices.reshape(mesh_shape), tuple("xyz"[: len(mesh_shape)])), P(*spec))


def placements(of: NamedSharding, shape: tuple[int, ...]) -> list[Placement]:
    count = 1 + max(device.process_index for device in of.device_set)
    return [Placement.of(of, shape, process, count) for process in range(count)]


FOUR_BY_TWO = (0, 0, 1, 1, 2, 2, 3, 3)
TWO_BY_FOUR = (0, 0, 0, 0, 1, 1, 1, 1)
ALL = range(64)
QUARTERS = [range(0, 16), range(16, 32), range(32, 48), range(48, 64)]
HALVES = [range(0, 32), range(32, 64)]

# The layouts of JAX's guide on distributed data loading, for an array of shape (64, 128).
GUIDE = {
    "columns over all devices": (sharding(FOUR_BY_TWO, [8], None, "x"), [[ALL]] * 4, [(0, 1, 2, 3)]),
    "columns over devices in another order": (
        sharding((0, 1, 2, 3, 0, 1, 2, 3), [8], None, "x"),
        [[ALL]] * 4,
        [(0, 1, 2, 3)],
    ),
    "two axes, two processes in each half": (
        sharding(FOUR_BY_TWO, [2, 4], "x", "y"),
        [[HALVES[0]], [HALVES[0]], [HALVES[1]], [HALVES[1]]],
        [(0, 1), (2, 3)],
    ),
    "two axes, a process in each quarter": (
        sharding(FOUR_BY_TWO, [4, 2], "x", "y"),
        [[rows] for rows in QUARTERS],
        [(0,), (1,), (2,), (3,)],
    ),
    "two axes, processes across": (
        sharding((0, 1, 2, 3, 0, 1, 2, 3), [2, 4], "x", "y"),
        [[ALL]] * 4,
        [(0, 1, 2, 3)],
    ),
    "full replication": (sharding(FOUR_BY_TWO, [8]), [[ALL]] * 4, [(0, 1, 2, 3)]),
    "partial replication, a copy in each process": (
        sharding(FOUR_BY_TWO, [4, 2], "y"),
        [[ALL]] * 4,
        [(0, 1, 2, 3)],
    ),
    "partial replication, copies over two processes": (
        sharding(FOUR_BY_TWO, [2, 4], "x"),
        [[HALVES[0]], [HALVES[0]], [HALVES[1]], [HALVES[1]]],
        [(0, 1), (2, 3)],
    ),
    "pure data parallelism": (
        sharding(FOUR_BY_TWO, [8], "x"),
        [[rows] for rows in QUARTERS],
        [(0,), (1,), (2,), (3,)],
    ),
    "data parallelism with the batches rearranged": (
        sharding((2, 0, 3, 1, 1, 2, 0, 3), [8], "x"),
        [
            [range(8, 16), range(48, 56)],
            [range(24, 40)],
            [range(0, 8), range(40, 48)],
            [range(16, 24), range(56, 64)],
        ],
        [(0,), (1,), (2,), (3,)],
    ),
    "model parallelism within a process": (
        sharding(TWO_BY_FOUR, [4, 2], "x"),
        [[rows] for rows in HALVES],
        [(0,), (1,)],
    ),
    "model parallelism across processes": (
        sharding((0, 2, 0, 2, 1, 3, 1, 3), [4, 2], "x"),
        [[HALVES[0]], [HALVES[1]], [HALVES[0]], [HALVES[1]]],
        [(0, 2), (1, 3)],
    ),
}


@pytest.mark.parametrize(("of", "runs", "groups"), GUIDE.values(), ids=GUIDE.keys())
def test_layouts_of_the_jax_guide(of: NamedSharding, runs: list[list[range]], groups: list[tuple[int, ...]]) -> None:
    found = placements(of, (64, 128))
    assert [list(placement.row_runs) for placement in found] == runs
    assert [group.processes for group in found[0].groups] == groups
    check(of, (64, 128))


def check(of: NamedSharding, shape: tuple[int, ...]) -> None:
    """Every part of every placement against the sharding itself, row by row."""
    world = np.arange(np.prod(shape)).reshape(shape)
    indices = of.devices_indices_map(shape)
    rows = np.arange(shape[0])
    found = placements(of, shape)
    wanted = [
        sorted({row for device, index in indices.items() if device.process_index == k for row in rows[index[0]]})
        for k in range(len(found))
    ]
    for process, placement in enumerate(found):
        assert placement.rows.dtype == np.int64
        assert placement.rows.tolist() == wanted[process]
        assert [row for run in placement.row_runs for row in run] == wanted[process]
        assert all(a.stop < b.start for a, b in zip(placement.row_runs, placement.row_runs[1:], strict=False))
        assert placement.group == tuple(k for k, other in enumerate(wanted) if other == wanted[process])
        assert placement.groups == found[0].groups
        assert set(placement.device_rows) == {device for device in indices if device.process_index == process}
        block = world[placement.rows]
        for device, index in placement.device_rows.items():
            assert np.array_equal(block[index], world[indices[device]])
    members = [process for group in found[0].groups for process in group.processes]
    assert sorted(members) == list(range(len(found)))
    assert all(group.rows.tolist() == wanted[group.processes[0]] for group in found[0].groups)


SPECS = [(), ("x",), ("y",), ("z",), (("x", "y"),), (("z", "x"),), (("x", "y", "z"),), (None, "x"), ("x", "y")]
SPECS += [("y", "x"), ("z", ("x", "y")), (("x", "z"), "y"), (None, None, "x"), ("x", None, "y"), ("x", "y", "z")]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("mesh_shape", [(2, 2, 2), (4, 1, 2), (1, 3, 4)], ids=str)
def test_any_order_of_devices_is_followed(spec: tuple[Any, ...], mesh_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(spec))
    devices = int(np.prod(mesh_shape))
    for processes in (1, 2, 4):
        belongs = np.repeat(np.arange(processes), devices // processes)
        for _ in range(3):
            check(sharding(belongs.tolist(), mesh_shape, *spec), (24, 12, 12))
            rng.shuffle(belongs)


def test_replicas_within_a_process_are_loaded_once() -> None:
    placement = placements(sharding(TWO_BY_FOUR, [4, 2], "x"), (8, 3))[1]
    assert placement.rows.tolist() == [4, 5, 6, 7]
    assert [index[0] for index in placement.device_rows.values()] == [slice(0, 2)] * 2 + [slice(2, 4)] * 2


def test_batch_by_sequence_gives_each_device_its_columns_of_the_local_rows() -> None:
    placement = placements(sharding(FOUR_BY_TWO, [4, 2], "x", "y"), (8, 6))[3]
    assert placement.rows.tolist() == [6, 7]
    assert list(placement.device_rows.values()) == [(slice(0, 2), slice(0, 3)), (slice(0, 2), slice(3, 6))]


def test_rows_are_not_laid_out_to_be_known() -> None:
    placement = placements(sharding(FOUR_BY_TWO, [8], "x"), (2**40,))[2]
    assert placement.row_runs == (range(2**39, 2**39 + 2**38),)


def test_a_process_without_devices_loads_nothing() -> None:
    of = sharding((0, 0, 2, 2), [4], "x")
    idle = Placement.of(of, (8,), 1, 4)
    assert idle.row_runs == () and idle.rows.tolist() == [] and idle.rows.dtype == np.int64
    assert idle.group == (1, 3) and idle.device_rows == {}
    assert idle.groups == (Group((0,), (range(0, 4),)), Group((1, 3), ()), Group((2,), (range(4, 8),)))


def test_any_object_with_an_index_map_will_do() -> None:
    class Rows:
        def devices_indices_map(self, shape: tuple[int, ...]) -> dict[FakeDevice, tuple[slice, ...]]:
            return {FakeDevice(0, 0): (slice(None, 2), slice(None)), FakeDevice(1, 1): (slice(2, None), slice(None))}

    assert [Placement.of(Rows(), [5, 2], k, 2).rows.tolist() for k in (0, 1)] == [[0, 1], [2, 3, 4]]


def test_parts_that_overlap_are_loaded_once() -> None:
    class Rows:
        def devices_indices_map(self, shape: tuple[int, ...]) -> dict[FakeDevice, tuple[slice, ...]]:
            return {
                FakeDevice(0, 0): (slice(2, 4),),
                FakeDevice(1, 0): (slice(1, 6),),
                FakeDevice(2, 0): (slice(5, 8),),
            }

    placement = Placement.of(Rows(), (9,), 0, 1)
    assert placement.row_runs == (range(1, 8),)
    assert list(placement.device_rows.values()) == [(slice(1, 3),), (slice(0, 5),), (slice(4, 7),)]


@pytest.mark.parametrize(
    ("of", "shape", "said"),
    [
        (
            sharding(FOUR_BY_TWO, [8], "x"),
            (10, 4),
            "axis 0 of the shape (10, 4) is cut into 8 parts: wanted a multiple of 8, found 10",
        ),
        (
            sharding(FOUR_BY_TWO, [4, 2], "x", "y"),
            (8, 3),
            "axis 1 of the shape (8, 3) is cut into 2 parts: wanted a multiple of 2, found 3",
        ),
        (sharding(FOUR_BY_TWO, [4, 2], ("y", "x")), (4,), "cut into 8 parts: wanted a multiple of 8, found 4"),
        (sharding(FOUR_BY_TWO, [8]), (), "wants a shape whose first axis counts rows, at least one; found ()"),
        (sharding(FOUR_BY_TWO, [8]), (0, 3), "at least one; found (0, 3)"),
        (sharding(FOUR_BY_TWO, [4, 2], "x", "y"), (8,), "wants at least 2 axes, found 1 in the shape (8,)"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_the_numbers(of: NamedSharding, shape: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Placement.of(of, shape, 0, 4)


def test_processes_that_do_not_exist_are_refused() -> None:
    of = sharding(FOUR_BY_TWO, [8], "x")
    with pytest.raises(ValueError, match="found process_index 4, wanted 0 to 3"):
        Placement.of(of, (8,), 4, 4)
    with pytest.raises(ValueError, match="is of process 2, wanted 0 to 1"):
        Placement.of(of, (8,), 0, 2)


def test_rows_and_order_are_found_without_jax() -> None:
    text = "import hostmesh, sys; hostmesh.Order, hostmesh.Placement; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], env=clean_env(), check=True)


REAL = """
import json
import numpy as np
import hostmesh
hostmesh.join()
import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from hostmesh.worker.placement import Placement

shape = (16, 8)
world = np.arange(128).reshape(shape)
devices = np.array(jax.devices())
meshes = {
    "plain": devices.reshape(-1, 2),
    "across": devices.reshape(2, -1).T,
    "shuffled": np.random.default_rng(5).permutation(devices).reshape(-1, 2),
}
said = {}
for name, layout in meshes.items():
    mesh = Mesh(layout, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    for spec in [P("data"), P("model"), P(("data", "model")), P(), P(None, "data"), P("data", "model")]:
        sharding = NamedSharding(mesh, spec)
        placement = Placement.of(sharding, shape)
        asked = []
        def give(index):
            asked.append(index)
            return world[index]
        wanted = jax.make_array_from_callback(shape, sharding, give)
        asked_rows = sorted({row for index in asked for row in range(16)[index[0]]})
        assert asked_rows == placement.rows.tolist(), (name, spec, asked, placement)
        block = world[placement.rows]
        parts = [jax.device_put(block[index], device) for device, index in placement.device_rows.items()]
        made = jax.make_array_from_single_device_arrays(shape, sharding, parts)
        for ours, theirs in zip(made.addressable_shards, wanted.addressable_shards, strict=True):
            assert ours.device == theirs.device and ours.index == theirs.index
            assert np.array_equal(ours.data, theirs.data), (name, spec, ours.device)
        groups = [[group.processes, group.rows.tolist()] for group in placement.groups]
        said[f"{name} {spec}"] = [placement.rows.tolist(), placement.group, groups]
print("RESULT", json.dumps([jax.process_index(), said]), flush=True)
"""


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.slow
def test_real_processes_load_what_jax_asks_for(launch: Launch, script: Script, processes: int) -> None:
    done = launch("--local", str(processes), "--devices", "2", script(REAL))
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(json.loads(line) for line in re.findall(r"RESULT (.*)", done.stdout))
    assert sorted(said) == list(range(processes))
    for layout in said[0]:
        rows, group, groups = zip(*(said[k][layout] for k in range(processes)), strict=True)
        assert set().union(*rows) == set(range(16)), layout
        assert all(shared == groups[0] for shared in groups), layout
        assert [[list(members), rows[members[0]]] for members in sorted(set(map(tuple, group)))] == groups[0], layout
