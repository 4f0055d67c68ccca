"""Agents of real processes are killed or stopped: the run goes on, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, LiveRun, Script, Start, await_true, is_alive, processes_of

# In its first attempt it waits to be ended.
WAITING = """
import os, time
print("attempt", os.environ["HOSTMESH_ATTEMPT"], "of", os.environ["HOSTMESH_NUM_PROCESSES"], "up", flush=True)
if os.environ["HOSTMESH_ATTEMPT"] == "1":
    time.sleep(1000)
"""


def begin(start: Start, script: Script, folder: Path, hosts: str) -> tuple[LiveRun, dict[str, int]]:
    """A run on several hosts that are all this machine, whose processes are up; and the agents by host."""
    (folder / "hosts.yaml").write_text(f"transport: local\nenv: {{JAX_PLATFORMS: cpu}}\n{hosts}")
    run = start("--hosts", str(folder / "hosts.yaml"), "--cold", script(WAITING))
    await_true(lambda: run.stderr.count("up\n") == 2, HANGS, "two processes")
    return run, {event["host"]: event["agent_pid"] for event in events_of(run, "host connected")}


def events_of(run: LiveRun, name: str) -> list[dict[str, Any]]:
    lines = (run.run_folder / "events.jsonl").read_text().splitlines(keepends=True)
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in events if event["event"] == name]


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.quick("a")
def test_a_spare_takes_over_when_an_agent_is_killed(start: Start, script: Script, tmp_path: Path, victim: str) -> None:
    run, agents = begin(start, script, tmp_path, "hosts: [a, b, c]\nspares: 1\n")
    os.kill(agents[victim], signal.SIGKILL)
    assert run.wait(HANGS) == 0, run.stderr
    assert f"launch: c takes the place of {victim}" in run.stderr
    assert run.stderr.count("attempt 2 of 2 up") == 2
    assert [each["outcome"] for each in run.result["attempts"]] == ["host lost", "succeeded"]
    assert not processes_of(run.id)


def test_a_run_shrinks_when_an_agent_is_killed(start: Start, script: Script, tmp_path: Path) -> None:
    run, agents = begin(start, script, tmp_path, "hosts: [a, b]\nmin_hosts: 1\nrejoin: 0\n")
    os.kill(agents["a"], signal.SIGKILL)
    assert run.wait(HANGS) == 0, run.stderr
    assert run.stderr.count("attempt 2 of 1 up") == 1
    assert not processes_of(run.id)


def test_what_a_stopped_agent_has_started_is_ended_by_the_next(start: Start, script: Script, tmp_path: Path) -> None:
    """It is out of reach, as that of a host whose network is cut off; its processes may hold devices."""
    run, agents = begin(start, script, tmp_path, "hosts: [a, b]\nlease: 2\nrestarts: 1\n")
    first = [event["pid"] for event in events_of(run, "process started") if event["host"] == "b"]
    os.kill(agents["b"], signal.SIGSTOP)
    assert run.wait(HANGS) == 0, run.stderr
    assert run.stderr.count("attempt 2 of 2 up") == 2
    assert first and not any(map(is_alive, [*first, agents["b"]]))
    assert not processes_of(run.id)
