"""A mixture over several processes: the same batches for every topology, loading and restore, one filter for all, and
an audit that finds no record twice in an epoch of its part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Launch, Script

from hostmesh.worker.mixing.mixture_order import MixtureOrder

# Each process looks only at its share of the records for the filter, and notes that; one filter fails on one process.
# As PROGRAM START: every loading goes on from there, and the first one to the end.
PROGRAM = """
import sys
import jax, numpy as np, hostmesh
from hostmesh.worker.errors import DataError, DisagreementError

hostmesh.join()
me, mesh = jax.process_index(), hostmesh.make_mesh(data=-1)
start, batches = int(sys.argv[1]), {}

def numbered(length, base):
    return {"id": np.arange(base, base + length, dtype=np.int32)}

looked_at = []
def is_kept(record):
    looked_at.append(int(record["id"]))
    return record["id"] % 3 == 0 or record["id"] == 301 + me  # processes differ, but only one looks at each

def mixture():
    kept = hostmesh.open_source(numbered(123, 300)).filter(is_kept)
    sources = {"a": numbered(100, 0), "b": numbered(61, 100), "c": kept}
    return hostmesh.mix({"a": 0.5, "b": 0.3, "c": 0.2}, sources=sources)

mixed = mixture()
print("looked at", len(looked_at), "of", len(set(looked_at)), "kept", mixed.parts.lengths[2])
for loading in ("per_process", "per_device", "global", "reshard"):
    loader = hostmesh.Loader(mixed, mesh, 16, seed=3, epochs=7, loading=loading)
    loader.restore(start)
    for batch in loader:
        for part in batch["id"].addressable_shards:
            found = batches.setdefault(loader.step - 1, np.full(16, -1))[part.index[0]]
            is_same = np.array_equal(found, part.data)
            assert loading == "per_process" or is_same, (loading, loader.step, found, part.data)
            found[:] = part.data
        if loading != "per_process" and loader.step >= start + 3 or loader.step == start + 30:
            break
    if loading == "per_process":
        assert loader.state() == loader.step
    loader.close()
for step, rows in batches.items():
    print("batch", step, *rows)

def fails(record):
    if record["id"] == 0:
        raise RuntimeError("a bad record")
    return True

try:
    hostmesh.open_source(numbered(50, 0)).filter(fails)
except (DataError, DisagreementError) as error:
    print("failed |", error)
hostmesh.flush_report()
"""

TOPOLOGIES = [(2, 2), (1, 2), (4, 1)]


@pytest.mark.parametrize("topologies", [TOPOLOGIES[:1], TOPOLOGIES], ids=["one", "many"])
@pytest.mark.quick("one")
def test_a_mixture_is_the_same_for_all_processes_and_goes_on_with_others(
    launch: Launch, script: Script, tmp_path: Path, topologies: list[tuple[int, int]]
) -> None:
    program, found, kept = script(PROGRAM), {}, 0
    for number, (processes, devices) in enumerate(topologies):
        done = launch("--local", str(processes), "--devices", str(devices), program, str(number * 30))
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.partition("] ")[2] or line for line in done.stdout.splitlines()]
        looked = [line.split() for line in lines if "looked at" in line]
        assert len(looked) == processes and sum(int(words[words.index("at") + 1]) for words in looked) == 123
        assert len({words[-1] for words in looked}) == 1  # all keep the same, also where they would not alone
        kept = int(looked[0][-1])
        collect(lines, found)
        failed = [line for line in lines if "failed |" in line]
        assert len(failed) == processes and all("record 0" in line and "a bad record" in line for line in failed)
        check_audit(tmp_path, first=number * 30 + 1)
    check_batches(found, kept, len(topologies))


def collect(lines: list[str], found: dict[int, np.ndarray]) -> None:
    for line in lines:
        if "batch " in line:
            step, *rows = map(int, line.partition("batch ")[2].split())
            whole = found.setdefault(step, np.full(16, -1))
            own = np.array(rows) >= 0
            assert (whole[own] < 0).all() or np.array_equal(whole[own], np.array(rows)[own])
            whole[own] = np.array(rows)[own]


def check_batches(found: dict[int, np.ndarray], kept: int, starts: int) -> None:
    """Against the order, computed here; the kept records are numbered 161, 162, … in it."""
    assert sorted(found) == list(range(30 if starts == 1 else max(found) + 1)) and len(found) > 30 * (starts - 1)
    order = MixtureOrder((100, 61, kept), (5, 3, 2), seed=3)
    ids = order.ids(0, 16 * len(found)).reshape(-1, 16)
    values = np.stack([found[step] for step in range(len(found))])
    assert np.array_equal(values[ids < 161], ids[ids < 161]) and (values[ids >= 161] >= 300).all()
    for record in range(161, 161 + kept):  # one value for each kept record, wherever it comes
        assert len(np.unique(values[ids == record])) <= 1


def check_audit(folder: Path, first: int) -> None:
    path = max(folder.glob("runs/*/result.json"), key=lambda path: path.stat().st_mtime)
    audit = json.loads(path.read_text())["audit"]
    each = audit.get("loaders", [audit])[0]
    assert (each["exact"], each["first_step"], each["parts"]) == (True, first, 3), audit


@pytest.mark.slow
def test_the_built_in_job_trains_on_a_mixture(launch: Launch, tmp_path: Path) -> None:
    digits = np.load(Path(__file__).parent.parent / "worker" / "sources" / "digits.npz")
    np.savez(tmp_path / "more.npz", image=digits["images"], label=digits["labels"].astype(np.int32))
    done = launch("--local", "2", "--source", "mix:digits:train=0.7,npz:more.npz=0.3", "--steps", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained 30 steps" in done.stdout
