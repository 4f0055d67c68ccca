"""What data processes take of a system, and what they do where it gives less, or ends them."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import worked_rows
from conftest import await_true, busyness
from test_workers import children, contents, names
from worked_rows import Rows

import hostmesh
from hostmesh.worker.assembly.buffers import Buffer, FreeList
from hostmesh.worker.errors import DataError
from hostmesh.worker.reading.data_processes import shared_memory
from hostmesh.worker.reading.data_processes.messages import Done
from hostmesh.worker.reading.data_processes.process import answer
from hostmesh.worker.reading.data_processes.shared_memory import SharedMemory


@pytest.fixture
def limit_files() -> Iterator[Any]:
    """Sets how many files may be open beside those that are."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(more: int) -> None:
        opened = set(map(int, os.listdir("/proc/self/fd")))
        free = [number for number in range(len(opened) + more + 1) if number not in opened]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_data_processes_serve_a_process_with_many_open_files(limit_files: Any) -> None:
    limit_files(2000)
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        loader = hostmesh.Loader(Rows(), batch_size=16, epochs=1, processes=1)
        assert contents(loader) == contents(hostmesh.Loader(Rows(), batch_size=16, epochs=1, workers=0))
    finally:
        for file in opened:
            os.close(file)


def test_neither_columns_nor_kept_batches_take_files(limit_files: Any) -> None:
    source = {f"column {number}": np.arange(64) + number for number in range(300)}
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    options: dict[str, Any] = {"mesh": mesh, "batch_size": 8, "epochs": 2, "verify": False}
    wanted = [jax.tree.map(np.asarray, batch) for batch in hostmesh.Loader(source, workers=0, **options)]
    limit_files(60)
    kept = list(hostmesh.Loader(source, processes=2, **options))
    assert len(kept) == 16
    for batch, other in zip(kept, wanted, strict=True):
        assert all(np.array_equal(batch[name], other[name]) for name in source)


def test_a_data_process_that_cannot_be_started_is_no_dead_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ETOOMANYREFS, "Too many references: cannot splice")

    monkeypatch.setattr(socket, "send_fds", refuse)
    loader = hostmesh.Loader(Rows(), batch_size=16, processes=2)
    with pytest.raises(DataError, match=r"data process 0 of 2 cannot be started: \[Errno 109\] Too many references"):
        next(loader)
    assert children() == set()


def test_processes_want_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(DataError, match=r"processes= needs Linux; use workers=N$"):
        hostmesh.Loader(Rows(), batch_size=16, processes=2)
    assert len(list(hostmesh.Loader(Rows(), batch_size=16, epochs=1, workers=2))) == 7


def test_memory_goes_back_to_the_system_with_its_last_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SMALLEST_EXTENT", 1 << 20)
    memory = SharedMemory()
    sizes = [1, 4096, 5000, 1 << 20, 3 << 20, 1 << 22]
    buffers = [memory.allocate(size) for size in sizes]
    views = [buffer.memory[:size] for buffer, size in zip(buffers, sizes, strict=True)]
    for number, view in enumerate(views):
        view[:] = number + 1
    assert all((view == number + 1).all() for number, view in enumerate(views))
    assert all(buffer.interface["data"][0] % 64 == 0 for buffer in buffers)
    numbers, extents = [buffer.number for buffer in buffers], memory.extents
    assert len(set(numbers)) == len(sizes) and 1 < len(extents) <= 5
    assert os.fstat(memory.file).st_blocks * 512 >= sum(sizes)
    del buffers, views, view
    assert os.fstat(memory.file).st_blocks == 0
    again = [memory.allocate(size) for size in reversed(sizes)]
    assert {buffer.number for buffer in again} == set(numbers)
    assert memory.extents == extents


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2}, {"processes": 1}], ids=names)
@pytest.mark.parametrize("tail", ["carry", "pad"])
def test_no_more_batches_are_in_memory_than_are_read_ahead(
    options: dict[str, Any], tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the help of Python's search for garbage, which comes once in many steps: batches may be large."""
    in_use: list[int] = []

    def acquire(self: FreeList, size: int) -> Buffer:
        buffer = acquire_buffer(self, size)
        in_use.append(len(self._in_use))
        return buffer

    acquire_buffer = FreeList.acquire
    monkeypatch.setattr(FreeList, "acquire", acquire)
    loader = hostmesh.Loader({"x": np.zeros((320, 4))}, batch_size=8, prefetch=2, tail=tail, epochs=1, **options)
    gc.collect()
    gc.disable()
    try:
        for batch in loader:
            jax.block_until_ready(batch)
    finally:
        gc.enable()
    loader.close()
    assert len(in_use) >= 40
    # Read ahead, on the devices, in use, and the one that workers are at.
    assert max(in_use) <= 2 + 1 + 2 + 1


def test_a_death_is_told_though_a_process_that_it_started_lives_on(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    function = worked_rows.ForkAt17(note)
    loader = hostmesh.Loader(Rows(), batch_size=16, shuffle=False, map=function, processes=2)
    next(loader)
    began = time.monotonic()
    try:
        with pytest.raises(DataError, match=r"step 1: data process \d \(pid \d+\) was killed by SIGKILL"):
            next(loader)
        assert time.monotonic() - began < 5 * busyness()
        loader.close()
        assert children() == set()
    finally:
        with suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int(note.read_text()), signal.SIGKILL)


def test_data_processes_leave_sigterm_to_their_owner() -> None:
    loader = hostmesh.Loader(Rows(), batch_size=16, epochs=2, processes=2)
    found = [jax.tree.map(lambda array: np.asarray(array).tolist(), next(loader)) for _ in range(3)]
    for pid in children():
        os.kill(pid, signal.SIGTERM)
    assert found + contents(loader) == contents(hostmesh.Loader(Rows(), batch_size=16, epochs=2, workers=0))
    loader.close()
    await_true(lambda: not children(), 20, "data processes to end with their owner")


def test_what_a_map_starts_is_ended_by_sigterm() -> None:
    loader = hostmesh.Loader(Rows(), batch_size=16, steps=2, map=worked_rows.end_others, processes=1)
    for batch in loader:
        assert (np.asarray(batch["codes"]) == -signal.SIGTERM).all()


def test_data_processes_do_without_jax() -> None:
    program = "import hostmesh.worker.reading.data_processes.process, sys; sys.exit('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0


def test_an_answer_that_nobody_waits_for_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        answer(ours, Done())


def list_ids(loader: hostmesh.Loader) -> list[int]:
    return sorted(int(n) for batch in loader for n in np.asarray(batch["id"]))


def test_data_processes_are_kept_for_the_next_pass() -> None:
    loader = hostmesh.Loader({"id": np.arange(32)}, batch_size=8, epochs=1, processes=2)
    assert list_ids(loader) == list(range(32))
    first = children()
    assert len(first) == 2
    for _ in range(2):
        assert list_ids(loader) == list(range(32))
        assert children() == first
    loader.restore(2)
    assert len(list_ids(loader)) == 16 and children() == first
    loader.close()
    assert children() == set()
    assert list_ids(loader) == list(range(32)) and len(children()) == 2
    del loader
    await_true(lambda: not children(), 20, "data processes to end with their loader")


class Shifted:
    """A `map` of which a user changes something between passes."""

    by = 0

    def __call__(self, block: Any) -> Any:
        return {"id": block["id"] + self.by}


def test_data_processes_are_started_anew_where_what_they_were_given_has_changed() -> None:
    source, shift = {"id": np.arange(32)}, Shifted()
    loader = hostmesh.Loader(source, batch_size=8, epochs=1, map=shift, processes=1, verify=False)
    assert list_ids(loader) == list(range(32))
    source["id"][:] += 100
    assert list_ids(loader) == list(range(100, 132))
    shift.by = 1000
    assert list_ids(loader) == list(range(1100, 1132))
    (last,) = children()
    os.kill(last, signal.SIGKILL)
    os.waitid(os.P_PID, last, os.WEXITED | os.WNOWAIT)  # all of its threads have ended
    assert list_ids(loader) == list(range(1100, 1132))
    loader.close()


def test_too_few_files_for_data_processes_are_told(limit_files: Any) -> None:
    loader = hostmesh.Loader(Rows(), batch_size=16, processes=4)
    limit_files(6)
    with pytest.raises(
        DataError, match=r"cannot be (given|started)|no \d+ bytes of shared memory.*Too many open files"
    ):
        next(loader)
    limit_files(500)
    loader.close()
    assert children() == set()
