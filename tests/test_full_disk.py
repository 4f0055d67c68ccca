"""A full disk on the launcher's side: verdict and exit code come through, and what could not be written is a note."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Launch, Script, Start

from hostmesh.launcher.output.events import EventLog
from hostmesh.launcher.output.logs import MAX_SPILL, ProcessLog
from hostmesh.launcher.output.run_folder import Run

CULPRIT = """
import os, time
print("said before")
if os.environ["HOSTMESH_PROCESS_ID"] == "1": os._exit(7)
time.sleep(99)
"""
CHATTY = """
import os, time
while not os.path.exists("go"): time.sleep(0.01)
for k in range(3000): print("x" * 99)
print("the last line")
if os.environ["HOSTMESH_PROCESS_ID"] == "1": os._exit(7)
time.sleep(99)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, which root can have."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with pytest.raises(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_disk_that_is_full_from_the_start_loses_no_verdict(launch: Launch, script: Script, small_disk: Path) -> None:
    fill(small_disk)
    done = launch("--runs", "disk/runs", "--local", "2", script(CULPRIT))
    assert done.returncode == 7, done.stderr
    assert "launch: the run failed: process 1 on localhost exited with 7" in done.stderr
    assert "Traceback" not in done.stderr
    for name in ("plan.json", "events.jsonl", "result.json", "logs/process-"):
        assert done.stderr.count(name) == 1, done.stderr  # a note each, and no wall
    assert "said before" in done.stdout  # the screen does without the file
    assert not list(small_disk.glob("runs/*/*.partial"))


def test_a_disk_that_fills_up_loses_no_verdict(start: Start, script: Script, small_disk: Path) -> None:
    run = start("--runs", "disk/runs", "--local", "2", script(CHATTY))
    run.await_event("process started", 2)
    (run.folder / "go").touch()
    assert run.wait() == 7
    assert "launch: the run failed: process 1 on localhost exited with 7" in run.stderr
    assert "the last line" in run.stderr
    assert "bytes of output of 2 processes could not be written" in run.stderr


def test_files_that_cannot_grow_lose_no_verdict(start: Start, script: Script) -> None:
    """A limit on the launcher's files stands in for a full disk, without root."""
    run = start("--local", "2", script(CHATTY))
    run.await_event("process started", 2)
    resource.prlimit(run.launcher.pid, resource.RLIMIT_FSIZE, (0, 0))
    (run.folder / "go").touch()
    assert run.wait() == 7
    # The file that takes its stderr cannot grow either; stdout is a pipe.
    assert run.await_event("run ended")["message"].startswith("the run failed: process 1 on localhost exited with 7")
    assert "1" in run.await_event("output dropped")["bytes"]
    assert not (run.run_folder / "result.json").exists() and not list(run.run_folder.glob("*.partial"))


def test_a_log_folder_that_is_deleted_during_the_run_is_told(start: Start, script: Script) -> None:
    run = start("--local", "2", script(CHATTY))
    run.await_event("process started", 2)
    shutil.rmtree(run.run_folder / "logs")
    (run.folder / "go").touch()
    assert run.wait() == 7
    assert "logs is gone: somebody deleted it during the run" in run.stderr


def test_a_log_that_cannot_be_opened_still_reaches_the_screen(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "missing" / "log", ["hunter2"])
    log.write(b"key=hunt")
    log.write(b"er2 done\n")
    log.close()
    assert log.error is not None and (log.size, log.dropped) == (0, len(b"key=[redacted] done\n"))
    assert log.take_spill(1 << 20) == b"key=[redacted] done\n" and log.reach == log.dropped


def test_what_a_stalled_screen_does_not_take_stays_bounded(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "missing" / "log", [])
    for _ in range(100):
        log.write(bytes(64 << 10))
    assert log.dropped == 100 * (64 << 10) and log.reach == MAX_SPILL


def test_events_go_on_after_a_disk_had_no_room(tmp_path: Path) -> None:
    notes: list[str] = []
    run = Run.create(tmp_path)
    events = EventLog(run, note=notes.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        events.add("first")
        events.add("second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    events.add("third")
    events.close()
    assert len(notes) == 1 and "events.jsonl cannot be written: File too large" in notes[0]
    assert run.events.read_text().splitlines()[-1].endswith('"event": "third"}')
