"""Each record is used once per epoch, whatever the topology, also when a run stops and goes on with other processes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import Launch, Script

LENGTH = 211  # a prime: no batch size divides it
FIELDS = "fields=id:int32,noise:uint8:5"

# Writes down the ids this process's devices got, each row once: from the arrays, so they went through the file.
USE = """
import json
import sys

import jax
import numpy as np

import worker

spec, tail, epochs, start, stop, loading, out = sys.argv[1:]
worker.join()
model = 2 if jax.device_count() % 2 == 0 else 1
mesh = worker.make_mesh(data=-1, model=model, span_processes=True)
loader = worker.Loader(spec, mesh, 24, seed=3, epochs=int(epochs), tail=tail, loading=loading)
loader.restore(int(start))
used = []
for batch in loader:
    ids = [shard for shard in batch["id"].addressable_shards if shard.replica_id == 0]
    masks = [shard for shard in batch["mask"].addressable_shards if shard.replica_id == 0] if "mask" in batch else None
    for nth, shard in enumerate(ids):
        real = np.asarray(masks[nth].data) if masks else np.ones(len(shard.data), bool)
        first = (loader.step - 1) * 24 + (shard.index[0].start or 0)
        used += [[int(row), int(id)] for row, id in zip(first + np.flatnonzero(real), np.asarray(shard.data)[real])]
    if loader.step == int(stop):
        break
with open(f"{out}.{jax.process_index()}", "w") as file:
    json.dump({"state": loader.state(), "total": len(loader), "used": used}, file)
"""


@pytest.fixture
def records(tmp_path: Path) -> str:
    """Records that carry their own number, in three ArrayRecord files."""
    random = np.random.default_rng(0)
    for number, ids in enumerate(np.array_split(np.arange(LENGTH), [50, 51])):
        writer = ArrayRecordWriter(str(tmp_path / f"part-{number}.array_record"), "group_size:1")
        for record in ids:
            writer.write(np.int32(record).tobytes() + random.bytes(5))
        writer.close()
    return f"arrayrecord:{tmp_path}/part-*.array_record?{FIELDS}"


def collect(folder: Path, out: str) -> tuple[list[tuple[int, int]], int, int]:
    """(row, id) in the order of rows, over all processes; where they stopped; how many steps there are."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"{out}.*")]
    used = sorted(tuple(pair) for part in found for pair in part["used"])
    assert len({part["state"] for part in found}) == 1
    return used, found[0]["state"], found[0]["total"]


TOPOLOGIES = [(1, 1), (1, 4), (2, 1), (2, 2), (4, 1), (4, 2)]


@pytest.mark.parametrize(("processes", "devices"), TOPOLOGIES)
def test_a_padded_epoch_has_every_record_once(
    launch: Launch, script: Script, records: str, tmp_path: Path, processes: int, devices: int
) -> None:
    args = ("--local", str(processes), "--devices", str(devices), script(USE))
    done = launch(*args, records, "pad", "1", "0", "-1", "per_process", "out")
    assert done.returncode == 0, done.stdout + done.stderr
    used, state, total = collect(tmp_path, "out")
    assert state == total == -(-LENGTH // 24)
    assert Counter(record for _, record in used) == Counter(range(LENGTH))


@pytest.mark.parametrize(
    ("tail", "epochs", "before", "after", "loading"),
    [
        ("carry", 3, (2, 2), (4, 1), "per_process"),
        ("carry", 3, (4, 2), (1, 2), "per_device"),
        ("pad", 2, (1, 4), (2, 2), "reshard"),
        ("pad", 2, (2, 1), (4, 2), "global"),
        ("drop", 2, (2, 2), (1, 1), "per_process"),
    ],
)
def test_stopped_and_continued_by_other_processes_uses_each_record_once_an_epoch(
    launch: Launch,
    script: Script,
    records: str,
    tmp_path: Path,
    tail: str,
    epochs: int,
    before: tuple[int, int],
    after: tuple[int, int],
    loading: str,
) -> None:
    program = script(USE)
    stop = int(np.random.default_rng().integers(1, 15))  # any step will do; a failure shows it
    for (processes, devices), start, end, out in ((before, 0, stop, "first"), (after, stop, -1, "second")):
        args = ("--local", str(processes), "--devices", str(devices), program)
        done = launch(*args, records, tail, str(epochs), str(start), str(end), loading, out)
        assert done.returncode == 0, done.stdout + done.stderr
    first, state, _ = collect(tmp_path, "first")
    second, _, _ = collect(tmp_path, "second")
    assert state == stop
    used = [record for _, record in first + second]
    if tail == "carry":
        used = used[: epochs * LENGTH]  # the last batch reaches into one more epoch
    times = Counter(used)
    if tail == "drop":
        assert sum(times.values()) == epochs * (LENGTH // 24) * 24 and max(times.values()) <= epochs, stop
    else:
        assert times == Counter(range(LENGTH)) + Counter({record: epochs - 1 for record in range(LENGTH)}), stop
    for epoch in range(epochs):
        steps = LENGTH // 24 if tail == "drop" else -(-LENGTH // 24)
        size = LENGTH if tail == "carry" else min(LENGTH, steps * 24)
        part = used[epoch * size : (epoch + 1) * size]
        assert len(part) == len(set(part)), (stop, epoch)
