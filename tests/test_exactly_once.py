"""Each record is used once per epoch, also when a run stops and goes on with other processes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import Launch, Script
from used_records import BATCH, LENGTH, USE, check_carried, collect, write_records

PROGRAM = f"""
{USE}
hostmesh.join()
for words in sys.argv[2:]:
    use(sys.argv[1], *words.split())
"""

# tail, epochs, loading: one start of a topology runs them all.
CASES = [
    ("carry", 3, "per_process"),
    ("carry", 3, "per_device"),
    ("pad", 2, "reshard"),
    ("pad", 2, "global"),
    ("drop", 2, "per_process"),
]

TOPOLOGIES = [
    ((2, 1), (1, 2)),
    pytest.param((2, 2), (4, 1), marks=pytest.mark.newest),
    pytest.param((4, 2), (1, 2), marks=pytest.mark.slow),
    pytest.param((1, 4), (2, 2), marks=pytest.mark.slow),
    pytest.param((2, 1), (4, 2), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("before", "after"), TOPOLOGIES)
@pytest.mark.quick("before0-after0")
def test_stopped_and_continued_by_other_processes_uses_each_record_once_an_epoch(
    launch: Launch, script: Script, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    program, records = script(PROGRAM), write_records(tmp_path)
    stops = np.random.default_rng().integers(1, 8, len(CASES)).tolist()  # any step will do; a failure shows it
    first = [f"{tail} {epochs} 0 {stop} {loading} first{k}" for k, ((tail, epochs, loading), stop) in cases(stops)]
    second = [f"{tail} {epochs} {stop} -1 {loading} second{k}" for k, ((tail, epochs, loading), stop) in cases(stops)]
    for (processes, devices), uses in ((before, first), (after, second)):
        done = launch("--local", str(processes), "--devices", str(devices), program, records, *uses)
        assert done.returncode == 0, done.stdout + done.stderr
    check_audits(tmp_path, stops)
    for k, ((tail, epochs, loading), stop) in cases(stops):
        used, state, _ = collect(tmp_path, f"first{k}")
        assert state == stop, (tail, loading)
        check(used + collect(tmp_path, f"second{k}")[0], tail, epochs, (tail, loading, stop))


def check_audits(folder: Path, stops: list[int]) -> None:
    """The launcher's own account of both runs, one for each loader."""
    results = sorted(folder.glob("runs/*/result.json"), key=lambda path: path.stat().st_mtime)
    first, second = (json.loads(path.read_text())["audit"]["loaders"] for path in results)
    assert [(each["exact"], each["steps"]) for each in first] == [(True, stop) for stop in stops], first
    assert [(each["exact"], each["first_step"]) for each in second] == [(True, stop + 1) for stop in stops], second


def cases(stops: list[int]) -> list[tuple[int, tuple[tuple[str, int, str], int]]]:
    return list(enumerate(zip(CASES, stops, strict=True)))


def check(pairs: list[tuple[int, int]], tail: str, epochs: int, case: object) -> None:
    """What both runs used together."""
    if tail == "carry":
        check_carried(pairs, epochs)
        return
    used = [record for _, record in pairs]
    times = Counter(used)
    if tail == "drop":
        assert sum(times.values()) == epochs * (LENGTH // BATCH) * BATCH and max(times.values()) <= epochs, case
    else:
        assert times == Counter(dict.fromkeys(range(LENGTH), epochs)), case
    for epoch in range(epochs):
        steps = LENGTH // BATCH if tail == "drop" else -(-LENGTH // BATCH)
        size = min(LENGTH, steps * BATCH)
        part = used[epoch * size : (epoch + 1) * size]
        assert len(part) == len(set(part)), (case, epoch)
