"""Warnings that a host will be taken away: all processes save at one step, and the run goes on elsewhere or ends."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, Launch, LiveRun, Script, Start, processes_of
from fake_agent import End, FakeAgent
from stories import Story

from hostmesh.launcher.protocol import wire

Tell = Callable[..., Story]
SAVES = wire.Fact("saves_when_stopped", 0, {"seconds": 60})
SAVED = wire.Fact("saved", 0, {"step": 40})
LEAVE = {wire.Signal: lambda agent, _: agent.end_all(75)}


@pytest.fixture
def story(tmp_path: Path) -> Tell:
    def begin(count: int = 2, **settings: Any) -> Story:
        told = Story(tmp_path, [FakeAgent(LEAVE) for _ in range(count)], **settings)
        told.say_at(2, 0, SAVES, SAVED)
        told.say_at(3, 1, wire.Notice("its agent got SIGTERM"))
        return told

    return begin


def test_a_warned_host_makes_all_save_and_the_run_ends_as_preempted(story: Tell) -> None:
    told = story()
    verdict = told.run()
    assert (verdict.exit_code, verdict.host) == (75, "b")
    assert "launch: b will be taken away (its agent got SIGTERM): asked the processes to save" in told.shown
    assert "preempted: b is taken away; saved at step 40" in told.shown
    assert [order.number for host in (0, 1) for order in told.commands(host, wire.Signal)] == [signal.SIGTERM] * 2


def test_a_spare_takes_the_place_of_a_warned_host(story: Tell) -> None:
    told = story(3, restarts=1, spares=1)
    told.at(10, lambda: [agent.say(*agent.end_all(0)) for agent in told.agents])
    assert told.run().exit_code == 0, told.shown
    assert "launch: c takes the place of b" in told.shown
    result = json.loads(told.record.result.read_text())
    assert [each["outcome"] for each in result["attempts"]] == ["preempted", "succeeded"]
    assert len(told.commands(1, wire.Spawn)) == 2 and len(told.commands(2, wire.Spawn)) == 2


def test_a_warned_host_is_waited_for(story: Tell) -> None:
    told = story(2, restarts=1)
    told.later[1] = [FakeAgent()]
    told.at(50, lambda: [agent.say(*agent.end_all(0)) for agent in told.agents])
    assert told.run().exit_code == 0, told.shown
    events = [json.loads(line) for line in told.events.getvalue().splitlines()]
    assert [event["host"] for event in events if event["event"] == "host is connected again"] == ["b"]


def test_a_host_that_goes_before_the_save_is_lost(story: Tell, tmp_path: Path) -> None:
    told = Story(tmp_path, [FakeAgent({wire.Signal: lambda *_: []}), FakeAgent({wire.Signal: lambda *_: []})])
    told.say_at(2, 0, SAVES, SAVED)
    told.say_at(3, 1, wire.Notice("its agent got SIGTERM"))
    told.say_at(5, 1, End())
    assert told.run().exit_code == 69
    assert json.loads(told.record.result.read_text())["saved_step"] == 40


def test_without_anybody_who_saves_the_run_goes_on(tmp_path: Path) -> None:
    told = Story(tmp_path, [FakeAgent(), FakeAgent()])
    told.say_at(3, 1, wire.Notice("its agent got SIGTERM"))
    told.at(6, lambda: [agent.say(*agent.end_all(0)) for agent in told.agents])
    assert told.run().exit_code == 0
    assert "no process saves when asked to: they go on until then" in told.shown


def test_nothing_is_started_on_a_spare_that_was_warned(story: Tell) -> None:
    told = story(3, restarts=1, spares=1)
    told.say_at(2.5, 2, wire.Notice("/run/preempted is there"))
    told.later[1] = [FakeAgent()]
    told.at(60, lambda: [agent.say(*agent.end_all(0)) for agent in told.agents])
    assert told.run().exit_code == 0, told.shown
    assert "launch: c, which runs no process, will be taken away: /run/preempted is there" in told.shown
    assert not told.commands(2, wire.Spawn)


# Real agents. In its first attempt a process runs until it is asked to save.
TRAIN = """
import os, sys
import jax
from jax.experimental import multihost_utils
from hostmesh.worker.process.facts import send_fact
import hostmesh
jax.distributed.initialize()
hostmesh.handle_preemption()
for step in range(1, 10**9 if os.environ["HOSTMESH_ATTEMPT"] == "1" else 3):
    multihost_utils.sync_global_devices(str(step))
    if step == 2:
        send_fact("up", must_arrive=True)
    if hostmesh.preemption_requested(step):
        send_fact("saved", must_arrive=True, step=step)
        sys.exit(75)
"""
HOSTS = "transport: local\nhosts: [a, b]\nenv: {JAX_PLATFORMS: cpu}\n"


def begin(start: Start, script: Script, folder: Path, settings: str) -> LiveRun:
    (folder / "hosts.yaml").write_text(HOSTS + settings)
    run = start("--hosts", str(folder / "hosts.yaml"), script(TRAIN))
    run.await_event("up", count=2)
    return run


def assert_saved_at_one_step(run: LiveRun) -> None:
    lines = (run.run_folder / "events.jsonl").read_text().splitlines()
    saved = [event["detail"]["step"] for event in map(json.loads, lines) if event["event"] == "saved"]
    assert len(saved) == 2 and len(set(saved)) == 1
    assert not processes_of(run.id)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("who", ["agent_pid", "guardian_pid"])
@pytest.mark.quick("guardian_pid-15")  # which hands it on to the agent
def test_a_signal_to_the_agent_of_a_host(
    start: Start, script: Script, tmp_path: Path, number: signal.Signals, who: str
) -> None:
    run = begin(start, script, tmp_path, "restarts: 1\n")
    os.kill(run.await_event("host connected", host="b")[who], number)
    assert run.wait(HANGS) == 0, run.stderr
    assert "launch: b will be taken away (its agent got SIG" in run.stderr
    assert [each["outcome"] for each in run.result["attempts"]] == ["preempted", "succeeded"]
    assert_saved_at_one_step(run)


@pytest.mark.parametrize("watch", ["file: {0}", "command: test -e {0}"])
@pytest.mark.quick("command")
def test_a_file_or_a_command_that_tells_of_it(start: Start, script: Script, tmp_path: Path, watch: str) -> None:
    notice = tmp_path / "notice"
    run = begin(start, script, tmp_path, f"preemption: {{{watch.format(notice)}, every: 0.2}}\n")
    notice.touch()
    assert run.wait(HANGS) == 75, run.stderr
    # Both hosts look at the one file, and either may be the first.
    assert "will be taken away" in run.stderr and re.search("preempted: [ab] is taken away", run.stderr)
    assert_saved_at_one_step(run)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("preemption: {}", "wanted a file, a command, or both"),
        ("preemption: {every: 0, file: x}", "wanted 0.1 seconds or more"),
        ("preemption: yes", "preemption: found"),
    ],
)
def test_bad_input(launch: Launch, tmp_path: Path, settings: str, said: str) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS + settings)
    done = launch("--hosts", str(tmp_path / "hosts.yaml"), "-m", "nothing")
    assert done.returncode == 2 and said in done.stderr
