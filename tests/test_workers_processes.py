"""Sources, mixtures, packed rows and padded rows, read by threads and by data processes, in several processes: the same
batches everywhere, each record once, also after a stop on another topology."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import Launch, Script

LOADERS = """
import sys

import jax
import numpy as np

import hostmesh

class Documents:
    sizes = np.random.default_rng(0).geometric(0.08, 120).clip(1, 32)
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, n):
        return {"id": np.int32(n), "tokens": (np.arange(self.sizes[n]) + 100 * n).astype(np.int32)}
    def lengths(self, ids):
        return self.sizes[ids]

def noisy(block, ids, rng):
    return {**block, "noise": rng.random((3,)).astype(np.float32)}

def only_ids(block):
    return {"id": block["id"]}

FILE = None
CASES = {
    "file": lambda: (f"npz:{FILE}", {"map": noisy}),
    "mixture": lambda: (
        hostmesh.mix(
            {"a": 0.7, "b": 0.3},
            sources={"a": hostmesh.open_source(f"npz:{FILE}").map(only_ids), "b": {"id": np.arange(20, dtype="i4")}},
            stop="all",
        ),
        {"map": noisy},
    ),
    "packed": lambda: (hostmesh.pack(Documents(), 33, seed=2), {"map": noisy}),
    "padded": lambda: (Documents(), {"map": noisy, "lengths": (8, 16, 32)}),
}
WORKERS = {"0": {"workers": 0}, "1": {"workers": 1}, "4": {"workers": 4}, "processes": {"processes": 2}}

def make(case, mesh, loading, workers):
    source, options = CASES[case]()
    return hostmesh.Loader(source, mesh, 8, seed=1, epochs=2, loading=loading, **options, **WORKERS[workers])
"""

COMPARE = """
def compare(case, loader, batch, wanted):
    for name, array in batch.items():
        whole = wanted[f"{case}/{loader.step - 1}/{name}"]
        assert array.shape == whole.shape, (case, loader.step, name, array.shape, whole.shape)
        for shard in array.addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index]), (case, loader.step, name)

hostmesh.join()
FILE = sys.argv[2]
found = np.load(sys.argv[1])
wanted = {name: found[name] for name in found.files}
mesh = hostmesh.make_mesh(data=-1)
stop, begins = int(sys.argv[3]), int(sys.argv[4])
for n, case in enumerate(CASES):
    for k, workers in enumerate(sys.argv[5].split(",")):
        loading = ("per_process", "per_device", "global", "reshard")[(n + k) % 4]
        loader = make(case, mesh, loading, workers)
        loader.restore(begins)
        for batch in loader:
            compare(case, loader, batch, wanted)
            if loader.step == stop:
                break
        loader.state()  # by which the records used so far are told
        loader.close()
        assert loader.step == stop or f"{case}/{loader.step}/noise" not in wanted, (case, loader.step)
print("all the same")
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Whole batches, as one device of this process gets them from one thread; and the file they come from."""
    folder = tmp_path_factory.mktemp("reference")
    np.savez(folder / "rows.npz", id=np.arange(70, dtype=np.int32))
    here: dict[str, Any] = {}
    exec(LOADERS, here)
    here["FILE"] = folder / "rows.npz"
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    whole = {
        f"{case}/{step}/{name}": np.asarray(array)
        for case in here["CASES"]
        for step, batch in enumerate(here["make"](case, mesh, "per_process", "0"))
        for name, array in batch.items()
    }
    np.savez(folder / "batches.npz", **whole)
    return folder / "batches.npz", folder / "rows.npz"


ALL = "0,1,4,processes"
TOPOLOGIES = [((2, 2), (1, 2), "4,processes"), ((4, 1), (2, 1), ALL), ((1, 4), (4, 2), ALL)]


@pytest.mark.parametrize(("before", "after", "workers"), TOPOLOGIES)
@pytest.mark.quick("before0-after0")
def test_workers_change_no_row_of_any_topology(
    launch: Launch,
    script: Script,
    tmp_path: Path,
    reference: tuple[Path, Path],
    before: tuple[int, int],
    after: tuple[int, int],
    workers: str,
) -> None:
    program = script(LOADERS + COMPARE)
    for (processes, devices), stop, begins in ((before, 5, 0), (after, -1, 5)):
        topology = ("--local", str(processes), "--devices", str(devices))
        done = launch(*topology, program, *map(str, reference), str(stop), str(begins), workers)
        assert done.returncode == 0 and "all the same" in done.stdout, done.stdout + done.stderr
    for result in tmp_path.glob("runs/*/result.json"):
        audit = json.loads(result.read_text())["audit"]["loaders"]
        assert len(audit) == 4 * len(workers.split(",")) and all(each["exact"] for each in audit), audit
