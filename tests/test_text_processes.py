"""Text in several processes: lengths measured in parts, packed rows, and lengths that all agree on, in one start."""

from __future__ import annotations

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
    def __init__(self):
        self.sizes = np.random.default_rng(0).geometric(0.2, 301).clip(1, 32)
        self.reads = 0
    def __len__(self):
        return len(self.sizes)
    def __getitem__(self, n):
        self.reads += 1
        return {"tokens": (np.arange(self.sizes[n]) + 100 * n).astype(np.int32)}

class Measured(Documents):
    def lengths(self, ids):
        return self.sizes[ids]

def records(shard, shards):
    documents = Documents()
    return (documents[n] for n in range(shard, len(documents), shards))

def noisy(block, ids, rng):
    return {**block, "noise": rng.random(block["tokens"].shape[1:]).astype(np.float32)}

PADDED = {"lengths": (8, 16, 32), "map": noisy}
CASES = {
    "packed": (lambda: hostmesh.pack(Documents(), 64, seed=2), {}),
    "windows": (lambda: hostmesh.windows(Measured(), 64, next=1), {}),
    "known": (Measured, PADDED),
    "agreed": (Documents, PADDED),
    "stream": (lambda: hostmesh.Stream(records, shards=4, name="tape"), PADDED),
}

def make(case, mesh, loading):
    source, options = CASES[case]
    return hostmesh.Loader(source(), mesh, 8, seed=1, epochs=1, tail="pad", loading=loading, **options)
"""

COMPARE = """
def compare(loader, batch, wanted):
    for name, array in batch.items():
        whole = wanted[f"{case}/{loader.step - 1}/{name}"]
        assert array.shape == whole.shape, (case, loader.step, name, array.shape, whole.shape)
        for shard in array.addressable_shards:
            assert np.array_equal(shard.data, whole[shard.index]), (case, loader.step, name)

hostmesh.join()
documents = Documents()
hostmesh.pack(documents, 64)
assert documents.reads <= 1 + -(-301 // jax.process_count()), documents.reads  # each process read its part
found = np.load(sys.argv[1])
wanted = {name: found[name] for name in found.files}
mesh = hostmesh.make_mesh(data=-1)
step = jax.jit(lambda batch: batch["tokens"].sum())
for case in CASES:
    for loading, start in (("per_process", 0), ("reshard", 3)):
        loader = make(case, mesh, loading)
        loader.restore(start)
        for batch in loader:
            compare(loader, batch, wanted)
            step(batch)
        assert f"{case}/{loader.step - 1}/tokens" in wanted and f"{case}/{loader.step}/tokens" not in wanted
assert step._cache_size() <= 2 + 3, step._cache_size()  # packed rows, windows, and three lengths
print("all the same")
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole batches, as one device of this process gets them."""
    here: dict[str, Any] = {}
    exec(LOADERS, here)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    whole = {
        f"{case}/{step}/{name}": np.asarray(array)
        for case in here["CASES"]
        for step, batch in enumerate(here["make"](case, mesh, "per_process"))
        for name, array in batch.items()
    }
    for case in ("known", "agreed"):
        assert len({whole[f"{case}/{step}/tokens"].shape for step in range(38)}) == 3
    path = tmp_path_factory.mktemp("reference") / "batches.npz"
    np.savez(path, **whole)
    return path


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1), (2, 1)])
@pytest.mark.quick("4-1")
def test_every_topology_gives_the_same_rows_of_the_same_lengths(
    launch: Launch, script: Script, reference: Path, processes: int, devices: int
) -> None:
    topology = ("--local", str(processes), "--devices", str(devices))
    done = launch(*topology, script(LOADERS + COMPARE), str(reference))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all the same") == processes
