"""The record that a process keeps of its step and phase: what is in it, whose it is, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPO, Launch, LiveRun, Script, Start, await_true, busyness

from hostmesh.launcher.agent.observing.record_file import RecordFile
from hostmesh.worker.identity import RECORD_FILE
from hostmesh.worker.recording.record import SIZE, Record, parse_record
from hostmesh.worker.recording.recorder import RECORDER, phase


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordFile]:
    """The record of this very process."""
    made = RecordFile(str(tmp_path / "record"))
    made.make()
    assert made.read() is None  # its process has not begun it
    monkeypatch.setenv(RECORD_FILE, made.path)
    RECORDER.open()
    yield made
    RECORDER.close()


def read(file: RecordFile) -> Record:
    record = file.read()
    assert record is not None
    return record


def test_a_record_tells_step_and_phase(file: RecordFile) -> None:
    assert (read(file).pid, read(file).phase, read(file).is_kept) == (os.getpid(), "starting", False)
    before = RECORDER.begin_loading()
    assert read(file).phase == "loading"
    time.sleep(0.01)
    RECORDER.end_loading(before, 7)
    record = read(file)
    assert (record.step, record.phase, record.is_kept) == (7, "step", True)
    assert 0 < time.monotonic_ns() - record.since < 60e9 and 0.01e9 <= record.loading < 60e9
    RECORDER.note_reading(8, 512)
    RECORDER.name_source("digits:train")
    assert (read(file).read_step, read(file).read_row, read(file).source) == (8, 512, "digits:train")


def test_every_change_is_counted(file: RecordFile) -> None:
    counts = []
    for step in range(3):
        RECORDER.begin_step(step)
        counts.append(read(file).changes)
    assert counts[0] < counts[1] < counts[2]


def test_phases_of_the_users_own_may_be_nested(file: RecordFile) -> None:
    with phase("evaluating"):
        assert read(file).phase == "evaluating"
        with phase("drawing pictures of the Ä"):
            with phase("x" * 1000):
                assert read(file).phase == "x" * 127
            assert read(file).phase == "drawing pictures of the Ä"
            RECORDER.end_loading(RECORDER.begin_loading(), 3)  # a batch for the pictures is no step
            assert (read(file).phase, read(file).step) == ("drawing pictures of the Ä", 0)
        assert read(file).phase == "evaluating"
    assert read(file).phase == "starting"


def test_other_threads_do_not_write_it(file: RecordFile) -> None:
    def work() -> None:
        with phase("elsewhere"):
            seen.append(read(file).phase)

    seen: list[str] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == ["starting"]


CHILDREN = """
import os, subprocess, sys
from hostmesh.worker.recording.recorder import RECORDER
RECORDER.open()
if len(sys.argv) > 1:
    RECORDER.begin_step(9)
    sys.exit()
RECORDER.begin_step(5)
child = os.fork()
if child == 0:
    RECORDER.begin_step(6)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, __file__, "child"], check=True)
print(os.getpid())
"""


def test_children_do_not_write_their_parents_record(tmp_path: Path) -> None:
    file = RecordFile(str(tmp_path / "record"))
    file.make()
    (tmp_path / "script.py").write_text(CHILDREN)
    env = {**os.environ, RECORD_FILE: file.path, "PYTHONPATH": str(REPO / "src")}
    command = [sys.executable, str(tmp_path / "script.py")]
    parent = subprocess.run(command, check=True, env=env, capture_output=True, text=True)
    assert (read(file).step, read(file).pid) == (5, int(parent.stdout))


@pytest.mark.parametrize("data", [b"", b"\0" * SIZE, b"\xff" * SIZE, b"x"])
def test_what_is_no_record_is_none(data: bytes) -> None:
    assert parse_record(data) is None


def test_a_change_takes_less_than_a_microsecond(file: RecordFile) -> None:
    def step() -> None:
        RECORDER.begin_step(4)

    def own_phase() -> None:
        with phase("evaluating"):
            pass

    for changes, work in ((1, step), (2, own_phase)):
        took = min(timeit.repeat(work, timer=time.thread_time, number=2000, repeat=30)) / 2000 / changes
        assert took < 1e-6 * busyness()


STEPS = """
import os, sys, time
import hostmesh
for step in range(1, 8):
    hostmesh.report(step)
    with hostmesh.phase("thinking"):
        pass
if sys.argv[1] == "raise" and os.environ["HOSTMESH_PROCESS_ID"] == "1":
    raise ValueError("no more")
print("up", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("more", [(), ("--cold",)], ids=["forked", "cold"])
def test_a_process_that_is_killed_has_left_its_last_step(start: Start, script: Script, more: tuple[str, ...]) -> None:
    run: LiveRun = start("--local", "2", *more, script(STEPS), "sleep")
    await_true(lambda: run.stderr.count("up\n") == 2, 60, "both processes")
    os.kill(run.await_event("process started", process_id=1)["pid"], 9)
    run.launcher.wait(60 * busyness())
    assert "after 7 steps" in run.await_event("run ended")["message"]


def test_a_crash_tells_the_step(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", script(STEPS), "raise")
    assert done.returncode == 1 and "after 7 steps" in done.stdout + done.stderr
