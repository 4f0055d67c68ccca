"""Meshes: devices stay with their process, a replica inside one process, and what does not fit is said."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import Launch, Script
from jax.sharding import AxisType, Mesh

from hostmesh.worker.mesh import make_mesh


@dataclass(frozen=True)
class FakeDevice:
    id: int
    process_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0


def fakes(processes: int, each: int) -> list[FakeDevice]:
    return [FakeDevice(k, k // each) for k in range(processes * each)]


def ids(mesh: Mesh) -> list[Any]:
    return np.vectorize(lambda device: device.id)(mesh.devices).tolist()


def replicas(mesh: Mesh, *batch: str) -> list[set[int]]:
    """The processes of each model replica."""
    names = list(mesh.axis_names)
    front = np.moveaxis(mesh.devices, [names.index(name) for name in batch], range(len(batch)))
    count = int(np.prod([mesh.shape[name] for name in batch]))
    return [{device.process_index for device in replica} for replica in front.reshape(count, -1)]


@pytest.mark.parametrize(
    ("processes", "each", "axes", "wanted"),
    [
        (1, 1, {"data": -1}, [0]),
        (1, 1, {"data": -1, "model": 1}, [[0]]),
        (4, 2, {"data": -1}, [0, 1, 2, 3, 4, 5, 6, 7]),
        (4, 2, {"data": 4, "model": -1}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (2, 4, {"data": -1, "model": 2}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (2, 4, {"data": 2, "seq": 2, "model": -1}, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        (2, 4, {"model": 2, "data": -1}, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (2, 4, {"model": 4, "data": -1}, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (2, 2, {"batch": -1, "model": 2}, [[0, 1], [2, 3]]),
        (3, 4, {"data": 6, "model": 2}, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]),
    ],
)
def test_last_axes_vary_fastest_inside_a_process(
    processes: int, each: int, axes: dict[str, int], wanted: list[Any]
) -> None:
    mesh = make_mesh(devices=fakes(processes, each), **axes)
    assert ids(mesh) == wanted
    assert mesh.axis_names == tuple(axes)
    assert mesh.axis_types == (AxisType.Auto,) * len(axes)
    assert all(len(processes) == 1 for processes in replicas(mesh, "data" if "data" in axes else "batch"))


def test_devices_are_sorted_by_process_then_id() -> None:
    devices = [FakeDevice(k, (5 - k) // 2) for k in (3, 0, 5, 1, 4, 2)]
    assert ids(make_mesh(devices=devices, data=-1)) == [4, 5, 2, 3, 0, 1]


@pytest.mark.parametrize(("processes", "each"), [(1, 8), (2, 4), (4, 2), (8, 1), (3, 4), (6, 2), (2, 6)])
def test_every_process_holds_a_regular_block(processes: int, each: int) -> None:
    """Each size of each axis, in each order: a block is a product of ranges, and no replica spans unasked."""
    devices = fakes(processes, each)
    total = len(devices)
    made = 0
    for data in (k for k in range(1, total + 1) if total % k == 0):
        for model in (k for k in range(1, total // data + 1) if total // data % k == 0):
            for names in (("data", "model", "seq"), ("seq", "data", "model"), ("model", "seq", "data")):
                sizes = {"data": data, "model": model, "seq": -1}
                axes = {name: sizes[name] for name in names}
                spans = each % (total // data) != 0
                if spans:
                    with pytest.raises(ValueError, match="would span processes"):
                        make_mesh(devices=devices, **axes)
                mesh = make_mesh(devices=devices, span_processes=spans, **axes)
                assert any(len(found) > 1 for found in replicas(mesh, "data")) == spans
                check_blocks(mesh, processes, each)
                made += 1
    assert made > 20


def check_blocks(mesh: Mesh, processes: int, each: int) -> None:
    owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
    assert sorted(np.vectorize(lambda device: device.id)(mesh.devices).ravel()) == list(range(processes * each))
    for process in range(processes):
        places = np.argwhere(owners == process)
        box = np.ptp(places, axis=0) + 1
        assert np.prod(box) == each, (mesh, process)


def test_a_batch_axis_may_span_processes() -> None:
    mesh = make_mesh(devices=fakes(4, 2), batch_axes=("data", "fsdp"), data=1, fsdp=-1)
    assert ids(mesh) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    mesh = make_mesh(devices=fakes(4, 2), batch_axes=("data", "fsdp"), data=2, fsdp=4)
    assert ids(mesh) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    mesh = make_mesh(devices=fakes(4, 2), batch_axes=("data", "fsdp"), data=2, fsdp=2, model=2)
    assert ids(mesh) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_without_a_batch_axis_the_first_axis_is_it() -> None:
    assert ids(make_mesh(devices=fakes(2, 2), replica=2, model=2)) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="a model replica of 4 devices"):
        make_mesh(devices=fakes(2, 2), replica=1, model=4)


def test_replicas_span_processes_when_asked() -> None:
    mesh = make_mesh(devices=fakes(4, 2), span_processes=True, data=2, model=4)
    assert replicas(mesh, "data") == [{0, 1}, {2, 3}]
    assert ids(mesh) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({}, "a mesh wants at least one axis, for example make_mesh(data=-1)"),
        ({"data": 3}, "data=3 wants 3 devices, found 8 (4 processes of 2)"),
        ({"data": 4}, "data=4 wants 4 devices, found 8 (4 processes of 2)"),
        ({"data": 4, "model": 4}, "data=4, model=4 wants 16 devices, found 8"),
        ({"data": -1, "model": 3}, "data=-1, model=3 wants a multiple of 3 devices, found 8 (4 processes of 2)"),
        ({"data": -1, "model": 16}, "wants a multiple of 16 devices, found 8"),
        ({"data": -1, "model": -1}, "one axis at most may be -1, found 2: data, model"),
        ({"data": 0}, "axis data wants a size of 1 or more, or -1 for what is left; found 0"),
        ({"data": -1, "model": -2}, "axis model wants a size of 1 or more, or -1 for what is left; found -2"),
        ({"data": 8.0}, "found 8.0"),
        ({"data": True}, "found True"),
        ({"data": "8"}, "found '8'"),
        ({"data": None}, "found None"),
        (
            {"data": -1, "model": 4},
            "a model replica of 4 devices (model=4) would span processes, which have 2 each: wanted a divisor of 2, "
            "or span_processes=True; only batch axes (data) span unasked",
        ),
        ({"data": 1, "model": 2, "seq": 4}, "a model replica of 8 devices (model=2, seq=4)"),
    ],
)
def test_axes_that_do_not_fit_are_refused_with_the_numbers(axes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        make_mesh(devices=fakes(4, 2), **axes)


def test_a_replica_no_larger_than_a_process_may_still_span() -> None:
    with pytest.raises(ValueError, match=r"a model replica of 3 devices .* which have 4 each"):
        make_mesh(devices=fakes(3, 4), data=4, model=3)


def test_unequal_processes_are_refused_with_their_counts() -> None:
    with pytest.raises(ValueError, match="equally many devices of each process, found process 0: 2, process 1: 1"):
        make_mesh(devices=fakes(2, 2)[:3], data=-1)
    with pytest.raises(ValueError, match="found none"):
        make_mesh(devices=[], data=-1)


def test_sizes_of_numpy_are_sizes() -> None:
    assert ids(make_mesh(devices=fakes(1, 4), data=np.int64(2), model=-1)) == [[0, 1], [2, 3]]


def tpus(kind: str, *corners: tuple[int, int]) -> list[FakeDevice]:
    """A host of 2 x 2 chips at each of these corners of the torus."""
    chips = [(x + dx, y + dy, 0) for x, y in corners for dy in (0, 1) for dx in (0, 1)]
    return [FakeDevice(k, k // 4, "tpu", kind, coords) for k, coords in enumerate(chips)]


def test_the_chips_of_a_tpu_host_form_a_ring() -> None:
    mesh = make_mesh(devices=tpus("TPU v5 lite", (0, 0)), data=-1)
    ring = [device.coords for device in mesh.devices]
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))


@pytest.mark.parametrize("kind", ["TPU v4", "TPU v5 lite", "TPU v6 lite"])
def test_every_tpu_host_is_arranged_by_itself(kind: str) -> None:
    devices = tpus(kind, (0, 0), (2, 0), (0, 2), (2, 2))
    for axes in ({"data": -1, "model": 2}, {"data": -1, "model": 4}, {"data": 4, "seq": 2, "model": 2}):
        mesh = make_mesh(devices=devices, **axes)
        check_blocks(mesh, 4, 4)
        assert all(len(found) == 1 for found in replicas(mesh, "data"))


def test_chips_with_a_hole_between_them_keep_their_plain_order() -> None:
    assert ids(make_mesh(devices=tpus("TPU v4", (0, 0))[:3], data=-1)) == [0, 1, 2]


REAL = """
import json
import numpy as np
import hostmesh
hostmesh.join()
import jax
from jax.sharding import NamedSharding, PartitionSpec as P
from hostmesh.worker.mesh import make_mesh

def attempt(**axes):
    try:
        mesh = make_mesh(**axes)
    except ValueError as error:
        return str(error)
    rows = NamedSharding(mesh, P(mesh.axis_names[0]))
    batch = jax.make_array_from_callback((8,), rows, lambda index: np.arange(8)[index])
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))(batch)
    assert int(total) == 28
    return np.vectorize(lambda device: device.process_index)(mesh.devices).tolist()

said = [attempt(data=-1), attempt(data=-1, model=1), attempt(data=-1, model=2), attempt(model=2, data=-1)]
said.append(attempt(data=1, model=-1))
said.append(attempt(data=1, model=-1, span_processes=True))
print("RESULT", json.dumps(said), flush=True)
"""


def spanning(replica: int, each: int) -> str:
    return (
        f"a model replica of {replica} devices (model={replica}) would span processes, which have {each} each: "
        f"wanted a divisor of {each}, or span_processes=True; only batch axes (data) span unasked"
    )


ONE_BY_ONE = [
    [0],
    [[0]],
    "data=-1, model=2 wants a multiple of 2 devices, found 1 (1 process of 1)",
    "model=2, data=-1 wants a multiple of 2 devices, found 1 (1 process of 1)",
    [[0]],
    [[0]],
]
TWO_BY_TWO = [
    [0, 0, 1, 1],
    [[0], [0], [1], [1]],
    [[0, 0], [1, 1]],
    [[0, 1], [0, 1]],
    spanning(4, 2),
    [[0, 0, 1, 1]],
]
FOUR_BY_ONE = [
    [0, 1, 2, 3],
    [[0], [1], [2], [3]],
    spanning(2, 1),
    spanning(2, 1),
    spanning(4, 1),
    [[0, 1, 2, 3]],
]
ONE_BY_FOUR = [[0] * 4, [[0]] * 4, [[0, 0]] * 2, [[0, 0]] * 2, [[0] * 4], [[0] * 4]]


@pytest.mark.parametrize(
    ("processes", "each", "wanted"),
    [(1, 1, ONE_BY_ONE), (1, 4, ONE_BY_FOUR), (2, 2, TWO_BY_TWO), (4, 1, FOUR_BY_ONE)],
)
@pytest.mark.quick("2-2")
def test_meshes_of_real_processes(launch: Launch, script: Script, processes: int, each: int, wanted: list[Any]) -> None:
    done = launch("--local", str(processes), "--devices", str(each), script(REAL))
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line) for line in re.findall(r"RESULT (.*)", done.stdout)]
    assert said == [wanted] * processes
