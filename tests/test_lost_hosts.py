"""Lost hosts: a run waits for them, takes spares, shrinks and grows back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch
from fake_agent import End, FakeAgent
from stories import Story

from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.going_on.restarts import Attempt, Budgets, GiveUp, GoOn, decide_restart, find_avoided

LOST = Verdict("host lost", 69, "the run failed: b lost its agent", host="b")
FAILED = Verdict("failed", 137, "the run failed: process 2 was killed", 2, "b")

Tell = Callable[..., Story]


@pytest.fixture
def story(tmp_path: Path) -> Tell:
    def begin(count: int = 2, *agents: FakeAgent, **settings: Any) -> Story:
        agents = agents or tuple(FakeAgent() for _ in range(count))
        return Story(tmp_path, agents, **{"restarts": 3, **settings})

    return begin


def end_well(told: Story, at: float) -> None:
    """Whatever runs then."""
    told.at(at, lambda: [agent.say(*agent.end_all(0)) for agent in told.agents])


def spawned(told: Story, agent: FakeAgent) -> list[tuple[int, str, str]]:
    """Which processes an agent has started: id, attempt, and of how many."""
    orders = [command for command in agent.heard if isinstance(command, wire.Spawn)]
    names = ("HOSTMESH_ATTEMPT", "HOSTMESH_NUM_PROCESSES")
    return [(order.process_id, *(order.env[name] for name in names)) for order in orders]


def outcomes(told: Story) -> list[str]:
    result = json.loads(told.record.result.read_text())
    return [attempt["outcome"] for attempt in result["attempts"]]


def test_a_host_that_comes_back_takes_part_again(story: Tell) -> None:
    told = story()
    told.later[1] = [again] = [FakeAgent()]
    told.say_at(3, 1, End())
    end_well(told, 10)
    assert told.run().exit_code == 0, told.shown
    assert outcomes(told) == ["host lost", "succeeded"]
    assert spawned(told, again) == [(2, "2", "4"), (3, "2", "4")]
    assert [each.listen for each in told.commands(0, wire.Reserve)] == [True, True]  # b has to try it again
    assert "launch: attempt 2: b lost its agent; starting again" in told.shown


def test_the_host_of_process_0_comes_back(story: Tell) -> None:
    told = story()
    told.later[0] = [again] = [FakeAgent()]
    told.say_at(3, 0, End())
    end_well(told, 10)
    assert told.run().exit_code == 0, told.shown
    assert spawned(told, again) == [(0, "2", "4"), (1, "2", "4")]
    assert len(told.commands(1, wire.Reach)) == 2


def test_a_host_that_cannot_be_reached_at_first_is_tried_again(story: Tell) -> None:
    told = story()
    again = FakeAgent()
    told.later[1] = [FakeAgent(hello=[Unreachable("no route to host")]), again]
    told.say_at(3, 1, End())
    end_well(told, 30)
    assert told.run().exit_code == 0, told.shown
    assert len(spawned(told, again)) == 2


@pytest.mark.parametrize(("settings", "least", "most"), [({}, 60, 75), ({"rejoin": 5.0}, 5, 20)])
def test_a_host_that_does_not_come_back_ends_the_run(
    story: Tell, settings: dict[str, Any], least: float, most: float
) -> None:
    told = story(**settings)
    told.say_at(3, 1, End())
    assert told.run().exit_code == 69
    assert "b was waited for and did not come back:\n    connection refused" in told.shown
    assert least < told.inbox.seconds < most


def test_ctrl_c_ends_the_wait_for_a_host(story: Tell) -> None:
    told = story()
    told.say_at(3, 1, End())
    told.interrupt_at(20, signal.SIGINT)
    assert told.run().exit_code == 130
    assert told.inbox.seconds < 30


def test_a_spare_takes_the_place_of_a_lost_host_at_once(story: Tell) -> None:
    told = story(3, spares=1)
    told.say_at(3, 0, End())
    end_well(told, 8)
    assert told.run().exit_code == 0, told.shown
    assert spawned(told, told.agents[2]) == [(0, "2", "4"), (1, "2", "4")]
    assert spawned(told, told.agents[1]) == [(2, "1", "4"), (3, "1", "4"), (2, "2", "4"), (3, "2", "4")]
    assert "launch: c takes the place of a" in told.shown
    assert told.commands(2, wire.Reserve) and told.commands(1, wire.Reach)[-1]
    assert "launch: 4 processes on 2 hosts and 1 spare" in told.shown


def test_a_spare_waits_while_the_lost_host_may_come_back(story: Tell) -> None:
    told = story(3, spares=1, rejoin=20.0)
    told.say_at(3, 1, End())
    end_well(told, 40)
    assert told.run().exit_code == 0, told.shown
    assert spawned(told, told.agents[2]) == [(2, "2", "4"), (3, "2", "4")]
    events = [json.loads(line) for line in told.events.getvalue().splitlines()]
    [seated] = [event for event in events if event["event"] == "hosts seated"]
    assert seated["hosts"] == ["a", "c"]


def test_a_host_that_cannot_be_reached_at_the_start_is_replaced(story: Tell) -> None:
    told = story(3, FakeAgent(hello=[Unreachable("no route to host")]), FakeAgent(), FakeAgent(), spares=1)
    end_well(told, 8)
    assert told.run().exit_code == 0, told.shown
    assert spawned(told, told.agents[2]) == [(0, "1", "4"), (1, "1", "4")]
    assert "launch: c takes the place of a" in told.shown


def test_a_spare_that_cannot_be_reached_is_done_without(story: Tell) -> None:
    told = story(3, FakeAgent(), FakeAgent(), FakeAgent(hello=[Unreachable("no route to host")]), spares=1)
    end_well(told, 8)
    assert told.run().exit_code == 0, told.shown


def test_a_run_shrinks_and_grows_back_at_the_next_save(story: Tell) -> None:
    told = story(3, min_hosts=2, rejoin=2.0)
    told.say_at(3, 1, End())
    told.at(8, lambda: told.later.update({1: [FakeAgent()]}))
    told.say_at(100, 0, wire.Fact("saved", 0, {"step": 40}))
    end_well(told, 120)
    assert told.run().exit_code == 0, told.shown
    assert outcomes(told) == ["host lost", "grown", "succeeded"]
    alone = [(2, "1", "6"), (3, "1", "6")]
    assert spawned(told, told.agents[0])[2:] == [(0, "2", "4"), (1, "2", "4"), (0, "3", "6"), (1, "3", "6")]
    assert spawned(told, told.agents[2])[2:] == [(2, "2", "4"), (3, "2", "4"), (4, "3", "6"), (5, "3", "6")]
    assert [(n, "3", "6") for n, *_ in alone] == spawned(told, told.agents[1])
    assert "launch: going on without b: 2 hosts, 4 processes" in told.shown
    assert "launch: b is there again, and takes part" in told.shown
    assert "b is back; going on from step 40" in told.shown


def test_a_run_that_shrinks_without_its_first_host_has_another_coordinator(story: Tell) -> None:
    told = story(3, min_hosts=2, rejoin=0.0)
    told.say_at(3, 0, End())
    end_well(told, 8)
    assert told.run().exit_code == 0, told.shown
    assert spawned(told, told.agents[1])[2:] == [(0, "2", "4"), (1, "2", "4")]
    assert told.commands(1, wire.Reserve) and len(told.commands(2, wire.Reach)) == 2


def test_a_run_does_not_shrink_below_its_least(story: Tell) -> None:
    told = story(3, min_hosts=2, rejoin=0.0)
    told.say_at(3, 0, End())
    told.say_at(5, 1, End())
    assert told.run().exit_code == 69
    assert len(spawned(told, told.agents[2])) == 4


def test_a_host_that_comes_back_unusable_is_left_out(story: Tell) -> None:
    told = story(3, min_hosts=2, rejoin=5.0)
    told.later[1] = [FakeAgent({wire.PrepareWorkers: lambda *_: [wire.Refused("there is no Python here")]})]
    told.say_at(3, 1, End())
    end_well(told, 30)
    assert told.run().exit_code == 0, told.shown
    assert "launch: going on without b" in told.shown


def test_a_host_that_failed_twice_in_a_row_makes_way_for_a_spare(story: Tell) -> None:
    told = story(3, spares=1)
    told.exit_at(3, 2, -9)
    told.exit_at(6, 2, -9)
    end_well(told, 20)
    assert told.run().exit_code == 0, told.shown
    assert spawned(told, told.agents[2]) == [(2, "3", "4"), (3, "3", "4")]


def test_a_lost_host_is_no_failure(story: Tell) -> None:
    """Nor is a failure the loss of a host: with spares alone it ends the run."""
    told = story(3, spares=1, restarts=0)
    told.say_at(3, 0, End())
    told.exit_at(8, 2, -9)
    assert told.run().exit_code == 137
    assert outcomes(told) == ["host lost", "failed"]


def test_all_hosts_that_were_lost_at_once_come_back(story: Tell) -> None:
    told = story()
    told.later = {0: [FakeAgent()], 1: [FakeAgent()]}
    told.at(3, lambda: [agent.say(End()) for agent in told.agents])
    end_well(told, 12)
    assert told.run().exit_code == 0, told.shown


def test_a_host_lost_during_the_start_comes_back(story: Tell) -> None:
    told = story(2, FakeAgent(), FakeAgent({wire.PrepareWorkers: lambda *_: [End()]}))
    told.later[1] = [FakeAgent()]
    end_well(told, 12)
    assert told.run().exit_code == 0, told.shown


def attempts(*verdicts: Verdict) -> list[Attempt]:
    return [Attempt(number, each, 100.0) for number, each in enumerate(verdicts, 1)]


def test_losses_are_counted_apart() -> None:
    budgets = Budgets(1, 10, losses=2)
    assert decide_restart(attempts(LOST, LOST, FAILED), budgets) == GoOn(0.0)
    assert decide_restart(attempts(LOST, FAILED, LOST), budgets) == GoOn(0.0)
    assert decide_restart(attempts(LOST, LOST, LOST), budgets) == GiveUp("hosts were lost 3 times")


def test_who_is_avoided() -> None:
    other = Verdict("failed", 1, "the run failed", 0, "a")
    preempted = Verdict("preempted", 75, "preempted", host="b")
    assert find_avoided(attempts(LOST, FAILED)) == {"b"}
    assert find_avoided(attempts(LOST)) == find_avoided(attempts(other, FAILED)) == frozenset()
    assert find_avoided(attempts(preempted, FAILED)) == frozenset()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("spares: 2", "spares: found 2, wanted fewer than the 2 hosts: some have to run the processes"),
        ("min_hosts: 3", "min_hosts: found 3, wanted at most 2: the number of hosts"),
        ("spares: 1\nmin_hosts: 2", "min_hosts: found 2, wanted at most 1: the number of hosts beside 1 spare"),
        ("min_hosts: 0", "min_hosts: found 0, wanted from 1"),
        ("restarts: -1", "restarts: found -1, wanted a whole number, 0 or more"),
        ("preemptions: -1", "preemptions: found -1, wanted a whole number, 0 or more"),
        ("spares: -1", "spares: found -1, wanted a whole number, 0 or more"),
        ("rejoin: -1", "rejoin: found -1, wanted 0 seconds (not at all) or more"),
        ("spares: 1\nkeep_going: true", "found both a setting for lost hosts or preemptions and keep_going"),
    ],
)
def test_bad_input(launch: Launch, tmp_path: Path, settings: str, said: str) -> None:
    (tmp_path / "hosts.yaml").write_text(f"transport: local\nhosts: [a, b]\n{settings}\n")
    done = launch("--hosts", str(tmp_path / "hosts.yaml"), "-m", "nothing")
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "runs").exists()
