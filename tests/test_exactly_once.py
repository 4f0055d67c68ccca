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

import hostmesh

def use(spec, tail, epochs, start, stop, loading, out):
    model = 2 if jax.device_count() % 2 == 0 else 1
    mesh = hostmesh.make_mesh(data=-1, model=model, span_processes=True)
    loader = hostmesh.Loader(spec, mesh, 48, seed=3, epochs=int(epochs), tail=tail, loading=loading)
    loader.restore(int(start))
    used = []
    for batch in loader:
        ids = [part for part in batch["id"].addressable_shards if part.replica_id == 0]
        masks = [part for part in batch["mask"].addressable_shards if part.replica_id == 0] if tail == "pad" else None
        for nth, part in enumerate(ids):
            real = np.asarray(masks[nth].data) if masks else np.ones(len(part.data), bool)
            first = (loader.step - 1) * 48 + (part.index[0].start or 0)
            used += [[int(row), int(id)] for row, id in zip(first + np.flatnonzero(real), np.asarray(part.data)[real])]
        if loader.step == int(stop):
            break
    with open(f"{out}.{jax.process_index()}", "w") as file:
        json.dump({"state": loader.state(), "total": len(loader), "used": used}, file)

hostmesh.join()
for words in sys.argv[2:]:
    use(sys.argv[1], *words.split())
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


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_an_epoch_has_every_record_once_and_epochs_that_carry_all_but_part_of_a_batch(
    launch: Launch, script: Script, records: str, tmp_path: Path, processes: int, devices: int
) -> None:
    args = ("--local", str(processes), "--devices", str(devices), script(USE), records)
    done = launch(*args, "pad 1 0 -1 per_process padded", "carry 3 0 -1 per_process carried")
    assert done.returncode == 0, done.stdout + done.stderr
    used, state, total = collect(tmp_path, "padded")
    assert state == total == -(-LENGTH // 48)
    assert Counter(record for _, record in used) == Counter(range(LENGTH))
    used, state, total = collect(tmp_path, "carried")
    assert state == total == 3 * LENGTH // 48
    check_carried(used, 3)


def check_carried(used: list[tuple[int, int]], epochs: int) -> None:
    """Every record once in each epoch, but for fewer than a batch at the very end."""
    records = [record for _, record in used]
    assert 0 <= epochs * LENGTH - len(records) < 48
    for epoch in range(epochs):
        part = records[epoch * LENGTH : (epoch + 1) * LENGTH]
        assert len(part) == len(set(part)) and (len(part) == LENGTH or epoch == epochs - 1)


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
    stop = int(np.random.default_rng().integers(1, 8))  # any step will do; a failure shows it
    for (processes, devices), start, end, out in ((before, 0, stop, "first"), (after, stop, -1, "second")):
        args = ("--local", str(processes), "--devices", str(devices), program)
        done = launch(*args, records, f"{tail} {epochs} {start} {end} {loading} {out}")
        assert done.returncode == 0, done.stdout + done.stderr
    first, state, _ = collect(tmp_path, "first")
    second, _, _ = collect(tmp_path, "second")
    assert state == stop
    if tail == "carry":
        check_carried(first + second, epochs)
        return
    used = [record for _, record in first + second]
    times = Counter(used)
    if tail == "drop":
        assert sum(times.values()) == epochs * (LENGTH // 48) * 48 and max(times.values()) <= epochs, stop
    else:
        assert times == Counter(dict.fromkeys(range(LENGTH), epochs)), stop
    for epoch in range(epochs):
        steps = LENGTH // 48 if tail == "drop" else -(-LENGTH // 48)
        size = min(LENGTH, steps * 48)
        part = used[epoch * size : (epoch + 1) * size]
        assert len(part) == len(set(part)), (stop, epoch)
