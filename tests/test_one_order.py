"""The global batch at a step is the same array for every topology, mesh, loading strategy and after every restore, and
an epoch holds every record once: one start of each topology shows both.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import Launch, Script
from used_records import BATCH, LENGTH, USE, check_carried, collect, write_records

# Rows of three kinds: an image that `map` changes at random, a sequence that is cut along both axes, and an id.
LOADERS = """
import itertools
import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

import hostmesh

LENGTH, BATCH, STEPS = 101, 16, 14

def rows(ids):
    return {
        "image": (ids[:, None, None] * 7 + np.arange(6).reshape(2, 3)).astype(np.uint8),
        "tokens": (ids[:, None] * 100 + np.arange(8)).astype(np.int32),
        "id": ids.astype(np.int32),
    }

class Source:
    name = "rows"
    def __len__(self):
        return LENGTH
    def read(self, ids):
        return rows(ids)

def change(block, ids, rng):
    flip = rng.random() < 0.5
    noise = rng.normal((2, 3)).astype(np.float32)
    image = np.where(flip[:, None, None], block["image"][:, :, ::-1], block["image"]).astype(np.float32) + noise
    return {**block, "image": image, "shift": rng.integers(0, 100).astype(np.int32), "seen": ids.astype(np.int32)}

def make(mesh, loading, prefetch, device_prefetch):
    cut = P("data", "model") if "model" in mesh.axis_names else P("data")
    whole = P("data")
    spec = {"image": whole, "tokens": cut, "id": whole, "shift": P(), "seen": whole}
    return hostmesh.Loader(
        Source(), mesh, BATCH, spec=spec, seed=5, steps=STEPS, map=change, loading=loading,
        prefetch=prefetch, device_prefetch=device_prefetch,
    )

def collated(records, ids, rng):
    shift = rng.integers(0, 100, (8,))
    tokens = [record["tokens"] + part for record, part in zip(records, shift)]
    return {"tokens": np.stack(tokens).astype(np.int32), "drawn": rng.normal().astype(np.float32)}

def make_collated(mesh, loading):
    return hostmesh.Loader(Source(), mesh, BATCH, seed=5, steps=STEPS, collate=collated, loading=loading)

"""

# Compares each device's part of every batch with whole ones.
COMPARE = """
def compare(step, batch, wanted):
    for name, array in batch.items():
        for shard in array.addressable_shards:
            found, part = np.asarray(shard.data), wanted[f"{step}/{name}"][shard.index]
            assert found.dtype == part.dtype and np.array_equal(found, part), (step, name, shard.device, found, part)

hostmesh.join()
devices, processes = jax.device_count(), jax.process_count()
wanted = np.load(sys.argv[1])
wanted = {name: wanted[name] for name in wanted.files}
meshes = {"data": hostmesh.make_mesh(data=-1)}
for model in (2, 4):
    if devices % model == 0:
        within = jax.local_device_count() % model == 0
        meshes[f"model {model}"] = hostmesh.make_mesh(data=-1, model=model, span_processes=not within)
if processes > 1 and devices > processes:
    # Replicas across processes although they would fit inside one.
    ordered = np.array(jax.devices()).reshape(processes, -1).T
    meshes["across"] = jax.sharding.Mesh(ordered.reshape(-1, processes), ("data", "model"))
tiers = itertools.cycle([(2, 1), (0, 0), (2, 0), (1, 2), (0, 1)])
# At the first step, at the last one and at two others: each loading goes on from another one in each mesh.
starts = [0, STEPS - 1, *np.random.default_rng([processes, devices]).integers(1, STEPS, 2).tolist()]
checked = 0
for number, (name, mesh) in enumerate(meshes.items()):
    for nth, loading in enumerate(("per_process", "per_device", "global", "reshard")):
        loader = make(mesh, loading, *next(tiers))
        for batch in loader:
            compare(loader.step - 1, batch, wanted)
            checked += 1
        assert loader.state() == STEPS
        loader = make_collated(mesh, loading)
        loader.restore(STEPS - 2)
        for batch in loader:
            compare(f"c{loader.step - 1}", batch, wanted)
        start = starts[(nth + number) % len(starts)]
        again = make(mesh, loading, *next(tiers))
        again.restore(start)
        for _ in range(min(3, STEPS - start)):
            compare(again.step, next(again), wanted)
        again.close()
if jax.process_index() == 0:
    print("meshes", ",".join(meshes), "checked", checked)
"""


# After the same start: epochs of records from files, as PROGRAM ROWS SOURCE [TAIL EPOCHS …]
EPOCHS = """
for words in sys.argv[3:]:
    use(sys.argv[2], *words.split())
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole batches, as one device of this process gets them."""
    here: dict[str, Any] = {}
    exec(LOADERS, here)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    plain, collated = here["make"](mesh, "per_process", 0, 0), here["make_collated"](mesh, "per_process")
    whole = {f"{k}/{name}": array for k, batch in enumerate(plain) for name, array in batch.items()}
    whole |= {f"c{k}/{name}": array for k, batch in enumerate(collated) for name, array in batch.items()}
    path = tmp_path_factory.mktemp("reference") / "batches.npz"
    np.savez(path, **whole)
    return path


TOPOLOGIES = [
    (1, 1),
    (1, 2),
    (1, 4),
    (2, 1),
    pytest.param(2, 2, marks=pytest.mark.newest),
    (2, 4),
    (4, 1),
    (4, 2),
    pytest.param(4, 4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("processes", "devices"), TOPOLOGIES)
@pytest.mark.quick("2-2")
def test_every_topology_mesh_and_loading_gives_the_same_arrays_and_each_record_once_an_epoch(
    launch: Launch, script: Script, reference: Path, tmp_path: Path, processes: int, devices: int
) -> None:
    program = script(LOADERS + COMPARE + USE + EPOCHS)
    epochs = ("pad 1 0 -1 per_process padded", "carry 3 0 -1 per_process carried")
    topology = ("--local", str(processes), "--devices", str(devices))
    done = launch(*topology, program, str(reference), write_records(tmp_path), *epochs, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    meshes = 1 + (processes * devices % 2 == 0) + (processes * devices % 4 == 0) + (processes > 1 and devices > 1)
    assert f"checked {meshes * 4 * 14}" in done.stdout

    used, state, total = collect(tmp_path, "padded")
    assert state == total == -(-LENGTH // BATCH)
    assert Counter(record for _, record in used) == Counter(range(LENGTH))
    used, state, total = collect(tmp_path, "carried")
    assert state == total == 3 * LENGTH // BATCH
    check_carried(used, 3)
