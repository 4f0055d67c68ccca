"""Several threads or data processes read for a loader: the same rows, named errors, and nothing left behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import worked_rows
from conftest import Launch, Script, await_true, busyness, clean_env, is_alive
from jax.sharding import PartitionSpec as P
from worked_rows import LENGTH, Missing17, Rows, SharedBuffer, SharedFile

import hostmesh
from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.errors import DataError
from hostmesh.worker.identity import LOCAL_PROCESSES
from hostmesh.worker.reading import cpu_quota, trial
from hostmesh.worker.reading.choice import WorkerChoice, choose_workers
from hostmesh.worker.reading.data_processes.shipping import pack, unpack
from hostmesh.worker.reading.trial import Verdict

WORKERS: list[dict[str, Any]] = [{"workers": 1}, {"workers": 4}, {"processes": 2}]
OPTIONS: list[dict[str, Any]] = [
    {"map": worked_rows.shake},
    {"collate": worked_rows.pad, "tail": "pad", "loading": "per_device"},
    {"map": worked_rows.shake, "loading": "reshard", "tail": "drop"},
    {"map": worked_rows.shake, "loading": "global", "prefetch": 0, "device_prefetch": 0},
]


@pytest.fixture(autouse=True)
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container that the tests run in has a limit of its own."""
    monkeypatch.setattr(cpu_quota, "find_quota", lambda: None)


def names(found: Any) -> str:
    return "-".join(f"{key}_{value}" for key, value in found.items()) if isinstance(found, dict) else str(found)


def contents(loader: hostmesh.Loader) -> list[Any]:
    return [jax.tree.map(lambda array: np.asarray(array).tolist(), batch) for batch in loader]


def children() -> set[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
    return {int(pid) for pid in found.split() if "reading.data_process" in command_line(int(pid))}


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def folder_of(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


@pytest.mark.parametrize("workers", WORKERS, ids=names)
@pytest.mark.parametrize("options", OPTIONS, ids=["map", "collate", "reshard", "nothing ahead"])
def test_batches_do_not_depend_on_who_reads_them(workers: dict[str, Any], options: dict[str, Any]) -> None:
    alone = contents(hostmesh.Loader(Rows(), batch_size=16, epochs=2, workers=0, **options))
    loader = hostmesh.Loader(Rows(), batch_size=16, epochs=2, **workers, **options)
    assert contents(loader) == alone
    loader.restore(5)
    assert contents(loader) == alone[5:]


def test_threads_are_chosen_where_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    slow, quick = Rows(1e-3), {"id": np.arange(LENGTH)}
    loader = hostmesh.Loader(slow, batch_size=16, steps=40)
    assert contents(loader) == contents(hostmesh.Loader(Rows(), batch_size=16, steps=40, workers=0))
    assert loader._spread._trial.verdict is Verdict.SEVERAL
    loader = hostmesh.Loader(quick, batch_size=16, steps=40)
    list(loader)
    assert loader._spread._trial.verdict is not Verdict.SEVERAL


def test_of_a_loader_whose_steps_are_quick_no_times_are_taken_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(trial, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(trial, "MAX_QUICK", 20)
    loader = hostmesh.Loader({"id": np.arange(LENGTH)}, batch_size=16, steps=40)
    list(loader)
    assert loader._spread._trial.verdict is Verdict.ONE_THREAD


def test_threads_that_do_not_pay_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(trial, "STEPS_BETWEEN", 0)
    lock, spent = threading.Lock(), 0.0
    monkeypatch.setattr(trial, "perf_counter", lambda: spent)

    def one_at_a_time(block: Any) -> Any:
        nonlocal spent
        with lock:
            spent += 1e-3 * len(block["id"])
        return block

    loader = hostmesh.Loader(Rows(), batch_size=16, steps=40, map=one_at_a_time)
    list(loader)
    assert loader._spread._trial.verdict is Verdict.ONE_THREAD


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: {"source": Rows(), "map": SharedBuffer()}, "keeps something between calls"),
        (lambda _: {"source": Rows(), "map": worked_rows.less_mean}, "depends on the other rows"),
        (lambda folder: {"source": SharedFile(folder / "records")}, "an open file"),
        (lambda _: {"source": Rows(), "map": worked_rows.own_noise}, "differ each time they are read"),
    ],
    ids=["buffer", "mean", "file", "noise"],
)
def test_what_is_not_made_for_threads_is_read_by_one(
    make: Any, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    loader = hostmesh.Loader(**make(tmp_path), batch_size=16, steps=10)
    list(loader)
    assert loader._spread._trial.verdict is Verdict.ONE_THREAD
    assert reason in capfd.readouterr().err
    asked = hostmesh.Loader(**make(tmp_path), batch_size=16, steps=10, workers=4)
    if "differ each time" in reason:  # it cannot be checked, and was asked for
        assert len(list(asked)) == 10
    else:
        with pytest.raises(DataError, match=rf"{reason}.*wanted workers=0, or processes=N"):
            list(asked)


@pytest.mark.parametrize("workers", WORKERS[1:], ids=names)
@pytest.mark.parametrize(
    ("source", "function", "message"),
    [
        (Rows(), worked_rows.fail_at_17, r"step 1: map at \S*worked_rows\.py:\d+ in fail_at_17: KeyError: 'caption'"),
        (Missing17(), None, r"step 1: record 17 of Missing17 at \S*worked_rows\.py:\d+ in __getitem__: FileNotFound"),
        (Rows(), worked_rows.grow_at_17, r"step 1: image is float32\[\d+, 5\]; wanted float32\[\d+, 4, 3\]"),
        (Rows(), worked_rows.rename_at_17, r"step 1: rows have the fields id, picture; wanted id, image"),
    ],
    ids=["map", "record", "shape", "fields"],
)
def test_what_fails_in_one_worker_is_named(workers: dict[str, Any], source: Any, function: Any, message: str) -> None:
    loader = hostmesh.Loader(source, batch_size=16, shuffle=False, map=function, **workers)
    assert len(np.asarray(next(loader)["id"])) == 16
    with pytest.raises(DataError, match=message):
        next(loader)


@pytest.mark.parametrize(
    ("function", "how"), [(worked_rows.die_at_17, "was killed by SIGKILL"), (worked_rows.leave_at_17, "exit code 3")]
)
def test_a_data_process_that_dies_is_named(function: Any, how: str) -> None:
    loader = hostmesh.Loader(Rows(), batch_size=16, shuffle=False, map=function, processes=2)
    next(loader)
    began = time.monotonic()
    with pytest.raises(DataError, match=rf"step 1: data process \d \(pid \d+\) .*{how} at records \d+ to \d+ of Rows"):
        next(loader)
    assert time.monotonic() - began < 2 * busyness()
    loader.close()
    assert children() == set()


def test_an_idle_data_process_that_was_killed_is_told_at_the_next_step() -> None:
    loader = hostmesh.Loader(Rows(), batch_size=16, processes=2, prefetch=0, device_prefetch=0)
    for _ in range(3):
        next(loader)
    os.kill(min(children()), signal.SIGKILL)
    with pytest.raises(DataError, match="was killed by SIGKILL"):
        for _ in range(3):
            next(loader)
    loader.close()


def test_no_data_process_and_no_memory_outlives_its_loader() -> None:
    files = len(os.listdir("/proc/self/fd"))
    loader = hostmesh.Loader(Rows(), batch_size=16, processes=2)
    kept = next(loader)["id"]
    for _ in range(10):
        next(loader)
    assert len(children()) == 2
    values = np.asarray(kept).tolist()
    del loader
    gc.collect()
    assert children() == set()
    assert np.asarray(kept).tolist() == values  # its memory is still there
    del kept
    gc.collect()
    await_true(lambda: len(os.listdir("/proc/self/fd")) <= files, 20, "all files to be closed")


OWNER = """
import hostmesh, os, time, sys
from worked_rows import Rows
hostmesh.join()
loader = hostmesh.Loader(Rows(), batch_size=16, processes=2)
def slow(block):
    return block
for _ in range(3):
    next(loader)
print("ready", flush=True)
time.sleep(1000)
"""


def test_data_processes_end_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    env = clean_env({"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)})
    owner = subprocess.Popen([sys.executable, "-c", OWNER], env=env, stdout=subprocess.PIPE, cwd=tmp_path)
    assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(owner.pid)], capture_output=True, text=True).stdout
    below = [int(pid) for pid in found.split()]
    assert len(below) == 2
    owner.kill()
    owner.wait()
    owner.stdout.close()
    await_true(lambda: not any(map(is_alive, below)), 20, "the data processes to end")


def test_arrays_are_shared_with_data_processes_and_mapped_files_are_mapped_again(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.arange(300_000).reshape(100, 3000))
    mapped = hostmesh.open_source(f"npy:{tmp_path / 'images.npy'}")
    packed = pack(mapped, "it")
    assert len(packed.data) < 10_000 and sum(packed.sizes) < 1000
    assert unpack(packed.data, packed.write(), packed.sizes).read(np.array([7]))[0, 0] == 21_000
    large = {"image": np.ones((100, 3000))}
    loader = hostmesh.Loader(large, batch_size=20, processes=1)
    packed = pack(loader.source, "it")
    assert len(packed.data) < 10_000 and sum(packed.sizes) >= large["image"].nbytes


def test_a_source_that_cannot_be_packed_is_told() -> None:
    class Locked(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    loader = hostmesh.Loader(Locked(), batch_size=16, processes=2)
    with pytest.raises(DataError, match=r"Locked with its map and collate cannot be given to data processes: .*pickle"):
        next(loader)


def test_rows_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches read ahead, one on the devices, one more that workers are at, and the one that was taken."""
    allocated = 0
    allocate = Layout.allocate

    def count(layout: Layout, length: int = 0) -> Any:
        nonlocal allocated
        allocated += 1
        return allocate(layout, length)

    monkeypatch.setattr(Layout, "allocate", count)
    loader = hostmesh.Loader(Rows(1e-4), batch_size=16, workers=4, prefetch=2, device_prefetch=1)
    for _ in range(6):
        next(loader)
    time.sleep(0.3)  # nothing to await: no more may be begun
    assert allocated <= 6 + 4
    loader.close()


def test_waiting_is_told_by_its_cause() -> None:
    def think(block: Any) -> Any:
        time.sleep(0.02)
        return block

    reads = hostmesh.Loader(Rows(1e-3), batch_size=16, steps=10, workers=0)
    list(reads)
    maps = hostmesh.Loader(Rows(), batch_size=16, steps=10, map=think, workers=0)
    list(maps)
    for loader, cause in ((reads, "reading"), (maps, "mapping")):
        found = loader.waited_for
        assert max(found, key=lambda name: found[name]) == cause
        assert sum(found.values()) == pytest.approx(loader.waited, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers wants a number of 0 or more; found -1"),
        ({"workers": True}, "workers wants a number of 0 or more; found True"),
        ({"workers": "threads"}, "workers wants a number of threads, or 'processes'; found 'threads'"),
        ({"workers": 100_000}, r"workers wants at most \d+ on a host with \d+ cores; found 100000"),
        ({"processes": 100_000}, r"processes wants at most \d+ on a host with \d+ cores; found 100000"),
        ({"workers": 2, "processes": 2}, "wanted workers or processes, not both"),
    ],
)
def test_a_wrong_number_of_workers_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hostmesh.Loader(Rows(), batch_size=16, **options)


@pytest.mark.parametrize("name", ["map", "collate"])
def test_a_function_by_its_name_is_refused_when_the_loader_is_made(name: str) -> None:
    with pytest.raises(
        DataError, match=rf"{name} wants a function, found 'train:prep'; a name is for the command line"
    ):
        hostmesh.Loader(Rows(), batch_size=16, **{name: "train:prep"})


def test_processes_of_one_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(96)))
    assert choose_workers(None, 0) == WorkerChoice(threads=32)
    monkeypatch.setenv(LOCAL_PROCESSES, "8")
    assert choose_workers(None, 0) == WorkerChoice(threads=12)
    assert choose_workers("processes", 0) == WorkerChoice(processes=12)
    assert choose_workers(3, 0) == WorkerChoice(threads=3, is_asked=True)
    assert choose_workers(0, 0) == WorkerChoice(is_asked=True)
    monkeypatch.setenv(LOCAL_PROCESSES, "96")
    assert choose_workers(None, 0) == WorkerChoice()


def test_containers_that_only_jax_knows_are_refused_for_data_processes() -> None:
    only_in_jax = lambda block: jax.tree_util.Partial(print, block["id"])  # noqa: E731
    loader = hostmesh.Loader(Rows(), batch_size=16, map=only_in_jax, processes=1)
    with pytest.raises(DataError, match="wants rows made of dicts, tuples and lists"):
        next(loader)


def test_specs_of_several_axes_and_named_tuples_reach_data_processes() -> None:
    mesh = hostmesh.make_mesh(data=-1, seq=2)
    spec = {"id": P("data"), "image": P("data", "seq")}
    options: dict[str, Any] = {"spec": spec, "batch_size": 16, "steps": 4}
    assert contents(hostmesh.Loader(Rows(), mesh, processes=2, **options)) == contents(
        hostmesh.Loader(Rows(), mesh, workers=0, **options)
    )


STUCK = """
import hostmesh, jax, time, numpy as np
hostmesh.join()

def prepare(block):
    if 17 in block["id"]:
        time.sleep(1000)
    return block

source = {"id": np.arange(64)}
loader = hostmesh.Loader(source, batch_size=8, shuffle=False, map=prepare, processes=2)
total = jax.jit(lambda batch: batch["id"].sum())
for batch in loader:
    float(total(batch))
"""


def test_a_map_that_never_returns_in_a_data_process_is_named(launch: Launch, script: Script, tmp_path: Path) -> None:
    done = launch("--local", "2", "--devices", "1", "--hang-timeout", "8", script(STUCK))
    assert done.returncode == 124
    # Once of many times it was only said that nothing moves, and that nobody could be singled out.
    named = r"process 0 on \S+ is loading step 3 from arrays \(record 1[67]\) at \S+:7 in prepare"
    assert re.search(named, done.stderr) or "nothing has moved" in done.stderr, done.stderr
    assert not any(
        "reading.data_process" in command_line(int(pid)) and str(tmp_path) in folder_of(pid) for pid in pids()
    )


@pytest.mark.parametrize("ahead", [{}, {"prefetch": 0, "device_prefetch": 0}], ids=["ahead", "nothing ahead"])
def test_rows_that_depend_on_their_block_are_refused_for_data_processes(ahead: dict[str, int]) -> None:
    loader = hostmesh.Loader(Rows(), batch_size=16, map=worked_rows.less_mean, processes=2, **ahead)
    with pytest.raises(DataError, match=r"step 0: Rows: rows .* differ .* depends on the other rows of its block.*=0$"):
        next(loader)
    loader.close()
    assert children() == set()
    unlike = hostmesh.Loader(Rows(), batch_size=16, steps=4, map=worked_rows.own_noise, processes=2)
    assert len(list(unlike)) == 4  # it cannot be checked, and was asked for
