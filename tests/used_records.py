"""Records that carry their own number, a program that notes which of them it used, and what must be so of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

LENGTH = 211  # a prime: no batch size divides it
BATCH = 48
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
"""


def write_records(folder: Path) -> str:
    """Three ArrayRecord files, as a source."""
    random = np.random.default_rng(0)
    for number, ids in enumerate(np.array_split(np.arange(LENGTH), [50, 51])):
        writer = ArrayRecordWriter(str(folder / f"part-{number}.array_record"), "group_size:1")
        for record in ids:
            writer.write(np.int32(record).tobytes() + random.bytes(5))
        writer.close()
    return f"arrayrecord:{folder}/part-*.array_record?{FIELDS}"


def collect(folder: Path, out: str) -> tuple[list[tuple[int, int]], int, int]:
    """(row, id) in the order of rows, over all processes; where they stopped; how many steps there are."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"{out}.*")]
    used = sorted(tuple(pair) for part in found for pair in part["used"])
    assert len({part["state"] for part in found}) == 1
    return used, found[0]["state"], found[0]["total"]


def check_carried(used: list[tuple[int, int]], epochs: int) -> None:
    """Every record once in each epoch, but for fewer than a batch at the very end."""
    records = [record for _, record in used]
    assert 0 <= epochs * LENGTH - len(records) < BATCH
    for epoch in range(epochs):
        part = records[epoch * LENGTH : (epoch + 1) * LENGTH]
        assert len(part) == len(set(part)) and (len(part) == LENGTH or epoch == epochs - 1)
