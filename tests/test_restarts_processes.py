"""Attempts of real processes: what was killed is gone, what was saved is gone on from, what is left is told."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, LiveRun, Script, Start, await_true, is_alive, processes_of

# Each process starts one of its own and leaves it behind.
STEPS = """
import os, subprocess, sys
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
import hostmesh
hostmesh.join()
attempt = int(os.environ["HOSTMESH_ATTEMPT"])
child = subprocess.Popen(["sleep", "1000"])
print("attempt", attempt, "child", child.pid, flush=True)
for step in range(1, 9):
    multihost_utils.process_allgather(jnp.ones(3))
    hostmesh.report(step, loss=1.0)
    if attempt == 1 and step == 5 and jax.process_index() == 1:
        os.kill(os.getpid(), 9)
"""


def attempts_of(run: LiveRun) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.result["attempts"]
    return found


def how_started(run: LiveRun) -> list[bool]:
    """Whether each process was warm."""
    events = map(json.loads, (run.run_folder / "events.jsonl").read_text().splitlines())
    return [event["warm"] for event in events if event["event"] == "process started"]


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_killed_process_is_started_again_and_nothing_of_the_first_attempt_is_left(
    start: Start, script: Script, how: list[str]
) -> None:
    run = start("--local", "2", "--restarts", "2", *how, script(STEPS))
    assert run.wait(HANGS) == 0, run.stderr
    assert "attempt 2 of 3: process 1 on localhost was killed by signal 9 (SIGKILL) after 5 steps" in run.stderr
    assert [each["outcome"] for each in attempts_of(run)] == ["failed", "succeeded"]
    children = [int(line.split()[-1]) for line in run.stderr.splitlines() if "child" in line]
    assert len(children) == 4 and not any(map(is_alive, children))
    assert not processes_of(run.id)


WAITING = """
import os, time
print("up", flush=True)
if os.environ["HOSTMESH_ATTEMPT"] == "1":
    time.sleep(1000)
"""


def test_a_nursery_that_dies_is_followed_by_another(start: Start, script: Script) -> None:
    run = start("--local", "2", "--restarts", "1", script(WAITING))
    await_true(lambda: run.stderr.count("] up") == 2, HANGS, "two processes")
    first = run.await_event("process started")["pid"]
    nursery = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(nursery, signal.SIGKILL)
    assert run.wait(HANGS) == 0, run.stderr
    assert how_started(run) == [True] * 4
    assert not processes_of(run.id)


@pytest.mark.slow
def test_of_a_single_process_the_next_attempt_is_warm(start: Start, script: Script) -> None:
    run = start("--local", "1", "--restarts", "1", script(WAITING))
    run.await_event("nursery_ready", timeout=60)
    os.kill(run.await_event("process started")["pid"], signal.SIGKILL)
    assert run.wait(HANGS) == 0, run.stderr
    assert how_started(run) == [False, True]
