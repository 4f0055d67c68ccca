"""Data that differ between hosts in any record are found, also where no sample looked: before or beside training."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from conftest import LAUNCH, clean_env

from hostmesh.worker.verify import comparison, content
from hostmesh.worker.verify.content import of_arrays, of_files

# One run of all cases, in one worker; on a busy machine.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("comparison")]

# Each process has files of its own; `odd` ones differ in one record, `same` ones are copies. One run has all cases.
CASES = """
import threading
import datasets, jax, numpy as np, hostmesh
from hostmesh.worker.errors import DisagreementError

hostmesh.join()
me, mesh = jax.process_index(), hostmesh.make_mesh(data=-1)

def load(case, source, **options):
    try:
        for batch in hostmesh.Loader(source, mesh, 20, epochs=1, **options):
            pass
    except DisagreementError as error:
        print(case, "|", error)
    else:
        print(case, "|", "fine")

ids = np.arange(400)
odd = np.where(ids == 151, ids + me, ids)
load("arrays", {"id": odd})
load("mapped", f"npy:odd-{me}.npy")
load("records", f"arrayrecord:odd-{me}.array_record?fields=id:int64")
load("hugging face", datasets.Dataset.from_dict({"id": odd}))
load("copies", f"npy:same-{me}.npy")
load("not asked", f"npy:odd-{me}.npy", verify=False)
began = threading.active_count()
loader = hostmesh.Loader("npy:same-0.npy", mesh, 20)
print("one file |", threading.active_count() - began, "threads more")
try:
    for batch in hostmesh.Loader(f"npy:other-{me}.npy", mesh, 20):
        pass
except DisagreementError as error:
    print("endless |", str(error).partition(":")[2][:11])
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the processes said of each case."""
    folder = tmp_path_factory.mktemp("comparison")
    ids = np.arange(400)
    for me in (0, 1):
        odd = np.where(ids == 151, ids + me, ids)
        np.save(folder / f"odd-{me}.npy", odd)
        np.save(folder / f"other-{me}.npy", odd)
        np.save(folder / f"same-{me}.npy", ids)
        writer = ArrayRecordWriter(str(folder / f"odd-{me}.array_record"), "group_size:1")
        for value in odd:
            writer.write(value.tobytes())
        writer.close()
    (folder / "cases.py").write_text(CASES)
    command = [*LAUNCH, "--show", "all", "--local", "2", "cases.py"]
    run = subprocess.run(command, cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    said: dict[str, list[str]] = {}
    for line in sorted(run.stdout.splitlines()):
        if " | " in line:
            case, _, outcome = line.partition("] ")[2].partition(" | ")
            said.setdefault(case, []).append(outcome)
    return said


@pytest.mark.slow
def test_arrays_in_memory_are_compared_before_the_first_batch(found: dict[str, list[str]]) -> None:
    assert len(found["arrays"]) == 2
    for line in found["arrays"]:
        assert line.startswith(
            "wanted the same on all processes to make a loader; found all of id (verify=True): process 0 has"
        )


@pytest.mark.parametrize(
    ("case", "name", "stored"),
    [
        ("mapped", "npy:odd-0.npy", "odd-0.npy"),
        ("records", "arrayrecord:odd-0.array_record", "odd-0.array_record"),
        ("hugging face", "hf:Dataset", "id"),
    ],
)
@pytest.mark.quick("mapped")
def test_files_are_compared_beside_training_and_named_by_all(
    found: dict[str, list[str]], case: str, name: str, stored: str
) -> None:
    assert len(found[case]) == 2 and len(set(found[case])) == 1
    line = found[case][0]
    assert line.startswith(f"{name} is not the same everywhere")
    assert f"found in {stored}: process 0 on localhost: " in line and "; process 1 on localhost: " in line
    assert "verify=False" in line


@pytest.mark.slow
def test_copies_are_fine_and_one_file_is_not_read_at_all(found: dict[str, list[str]]) -> None:
    assert found["copies"] == found["not asked"] == ["fine"] * 2
    assert found["one file"] == ["0 threads more"] * 2


def test_training_that_would_never_end_is_told_too(found: dict[str, list[str]]) -> None:
    assert found["endless"] == ["other-0.npy"] * 2


# From here on alone, in this process.


def marks(arrays: Any) -> dict[str, str]:
    behind = of_arrays(arrays)
    assert behind is not None
    return dict(behind.fingerprints())


def test_a_mark_is_of_the_rows_however_they_lie_in_memory() -> None:
    rows = np.arange(3 * 700_000, dtype=np.int64).reshape(-1, 3)
    wanted = marks({"x": rows})
    assert wanted == marks({"x": np.asfortranarray(rows)}) == marks({"x": np.repeat(rows, 2, axis=0)[::2]})
    for row in (0, 350_001, len(rows) - 1):
        changed = rows.copy()
        changed[row, 2] += 1
        assert marks({"x": changed}) != wanted
    assert marks({"x": rows[:-1]}) != wanted


def test_empty_rows_and_text_have_no_trouble() -> None:
    assert marks({"x": np.zeros((3, 0)), "t": np.array(["a", None, "c"], object)})["x"].startswith("0 bytes")
    assert of_arrays({"t": np.array(["a", "b"], object)}) is None


def test_of_very_much_every_so_many_pieces_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_READ", 3 << 20)
    rows = np.zeros((9, 1 << 20), np.uint8)
    wanted = marks({"x": rows})
    for row in range(9):
        changed = rows.copy()
        changed[row] = 1
        assert (marks({"x": changed}) != wanted) == (row % 3 == 0)


def test_of_many_files_some_at_a_time_are_named_whatever_hosts_call_them() -> None:
    def said(process: int, odd: int) -> dict[str, Any]:
        marks = [[f"/data-{process}/{n}", "odd" if n == odd else "even"] for n in range(200)]
        return {"host": f"gpu-{process}", "processes": [process], "fingerprints": comparison._group(marks)}

    assert comparison._differences("files", [said(0, -1), said(1, -1)]) is None
    problem = comparison._differences("files", [said(0, -1), said(1, 9), said(2, -1)])
    assert problem is not None
    assert "found in /data-0/8 to /data-0/11: process 0 on gpu-0 and process 2 on gpu-2: " in problem


def test_only_the_very_same_file_has_the_same_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"0" * 100)
    os.link(tmp_path / "a", tmp_path / "also a")
    first, other, again = (of_files([str(tmp_path / name)]) for name in ("a", "b", "also a"))
    assert first is not None and other is not None and again is not None
    assert first.location == again.location != other.location and first.location is not None
    assert dict(first.fingerprints())["a"] == dict(other.fingerprints())["b"]
    assert of_files(["gs://bucket/file"]) is None


def test_a_table_in_other_chunks_has_the_same_marks() -> None:
    import datasets

    from hostmesh.worker.sources import as_source

    values = {"x": np.arange(1000), "pair": np.arange(2000).reshape(-1, 2)}
    whole = datasets.Dataset.from_dict(values)
    cut = datasets.concatenate_datasets([whole.select(range(300)), whole.select(range(300, 1000))])
    shuffled = whole.select(np.arange(1000)[::-1])
    found = [dict(as_source(data).content.fingerprints()) for data in (whole, cut, shuffled)]  # type: ignore[union-attr]
    assert found[0] == found[1] != found[2] and set(found[0]) <= {"x", "pair"} and "x" in found[0]
