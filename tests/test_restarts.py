"""Attempts: a run that fails goes on by itself, as long as that makes sense."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch
from fake_agent import FakeAgent
from stories import Story

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.going_on.attempts import tell_repeated
from hostmesh.launcher.supervisor.going_on.restarts import Attempt, Budgets, GiveUp, GoOn, decide_restart

KILLED = Verdict("failed", 137, "the run failed: process 1 was killed", 1, kind=kinds.KILLED, last_step=7)
RAISED = Verdict("failed", 1, "the run failed: process 1 exited with 1", 1, kind=kinds.BUG, place="a.py:3", last_step=7)
PREEMPTED = Verdict("preempted", 75, "preempted", kind=kinds.PREEMPTED)


def attempts(*verdicts: Verdict, saved: tuple[int | None, ...] = (), seconds: float = 100.0) -> list[Attempt]:
    steps = saved or (None,) * len(verdicts)
    return [Attempt(n, each, seconds, step) for n, (each, step) in enumerate(zip(verdicts, steps, strict=True), 1)]


def at_step(step: int) -> Verdict:
    return replace(RAISED, last_step=step)


@pytest.mark.parametrize(
    ("history", "why"),
    [
        (attempts(KILLED), None),
        (
            attempts(KILLED, KILLED, KILLED),
            None,
        ),  # it was killed three times at the same step: that is no bug of its own
        (attempts(KILLED, KILLED, KILLED, KILLED), "all 4 attempts are used up"),
        (attempts(at_step(5), at_step(6)), None),
        (attempts(at_step(5), KILLED, at_step(5)), "it failed twice in the same way at step 5"),
        (attempts(KILLED, KILLED, KILLED, saved=(400, 400, 400)), None),
        (attempts(PREEMPTED, PREEMPTED, PREEMPTED, PREEMPTED, KILLED), None),  # preemptions are no failures
        (attempts(*[PREEMPTED] * 30), None),
        (attempts(*[PREEMPTED] * 31), "it was preempted 31 times"),
        (attempts(replace(RAISED, kind=kinds.DISAGREEMENT)), "another attempt would end in the same way"),
        ([replace(attempts(RAISED)[0], is_final=True)], "another attempt would end in the same way"),
        (attempts(Verdict("stopped", 130, "stopped")), ""),
        (attempts(Verdict("succeeded", 0, "fine")), ""),
        (attempts(Verdict("refused", 2, "refused")), ""),
        (attempts(Verdict("hang", 124, "hangs", kind=kinds.HANG)), None),
    ],
)
def test_when_a_run_goes_on(history: list[Attempt], why: str | None) -> None:
    decision = decide_restart(history, Budgets(3, 30))
    assert decision == (GiveUp(why) if why is not None else GoOn(0.0))


def test_attempts_that_save_nothing_new_end_a_run() -> None:
    history = attempts(KILLED, KILLED, KILLED, KILLED, saved=(400, 400, 400, 400))
    assert decide_restart(history, Budgets(9, 90)) == GiveUp("3 attempts in a row saved no new step")
    assert decide_restart(attempts(*[KILLED] * 4, saved=(400, 400, 410, 410)), Budgets(9, 90)) == GoOn(0.0)
    assert decide_restart(attempts(*[KILLED] * 6), Budgets(9, 90)) == GoOn(
        0.0
    )  # of a script that does not tell its saves


def test_attempts_that_go_on_from_a_newer_snapshot_get_somewhere() -> None:
    def resumed(*steps: int | None) -> list[Attempt]:
        failed = attempts(*[KILLED] * len(steps), saved=(400,) * len(steps))
        return [replace(each, resumed_step=step) for each, step in zip(failed, steps, strict=True)]

    assert decide_restart(resumed(None, 411, 423, 430), Budgets(9, 90)) == GoOn(0.0)
    assert decide_restart(resumed(None, 411, 411, 411), Budgets(9, 90)) == GoOn(0.0)
    assert decide_restart(resumed(None, 411, 411, 411, 411), Budgets(9, 90)) == GiveUp(
        "3 attempts in a row saved no new step"
    )
    assert decide_restart(resumed(411, 400, 400, 400), Budgets(9, 90)) == GiveUp(
        "3 attempts in a row saved no new step"
    )


def test_without_restarts_there_are_none() -> None:
    assert decide_restart(attempts(KILLED), Budgets(0, 0)) == GiveUp()


def test_pauses_grow_between_quick_failures() -> None:
    pauses = [decide_restart(attempts(*[KILLED] * count, seconds=2.0), Budgets(99, 99)) for count in range(1, 12)]
    assert [each.pause for each in pauses if isinstance(each, GoOn)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    saved = tuple(range(400, 405))
    assert decide_restart(attempts(*[KILLED] * 5, saved=saved, seconds=2.0), Budgets(99, 99)) == GoOn(0.0)
    slow = [*attempts(*[KILLED] * 5, seconds=2.0), replace(attempts(KILLED)[0], number=6)]
    assert decide_restart(slow, Budgets(99, 99)) == GoOn(0.0)


@pytest.mark.parametrize(
    ("saved", "step", "told"),
    [
        (400, 412, "going on from step 400, 12 steps are done again"),
        (400, 401, "going on from step 400, 1 step is done again"),
        (400, 400, "going on from step 400, no step is done again"),
        (400, None, "going on from step 400, no step is done again"),
        (None, 412, "starting again"),
    ],
)
def test_what_is_done_again(saved: int | None, step: int | None, told: str) -> None:
    assert tell_repeated(Attempt(1, KILLED, 1.0, saved, step)) == told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--restarts", "-1"), "--restarts: found -1, wanted a whole number, 0 or more"),
        (("--restarts", "x"), "--restarts: found x, wanted a whole number, 0 or more"),
        (("--restarts", "1", "--keep-going"), "found both restarts and keep_going"),
    ],
)
def test_bad_input(launch: Launch, options: tuple[str, ...], said: str) -> None:
    done = launch("--local", "2", *options, "-m", "nothing")
    assert done.returncode == 2 and said in done.stderr


# Stories: two hosts of two processes each.

Tell = Callable[..., Story]


@pytest.fixture
def story(tmp_path: Path) -> Tell:
    def begin(*agents: FakeAgent, **settings: Any) -> Story:
        return Story(tmp_path, agents or (FakeAgent(), FakeAgent()), **{"restarts": 3, **settings})

    return begin


def result_of(told: Story) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.record.result.read_text())
    return found


def end_well(told: Story, at: float) -> None:
    for process_id in range(4):
        told.exit_at(at, process_id, 0)


@pytest.mark.parametrize(
    ("step", "source", "told_so"),
    [
        (411, "memory", "launch: attempt 2 goes on from step 411, kept in memory; 1 step is done again"),
        (390, "disk", "launch: attempt 2 goes on from step 390, saved on disk; 22 steps are done again"),
        (400, "disk", None),
        (None, None, None),  # it starts again
    ],
)
def test_where_an_attempt_goes_on_from_is_told_if_it_was_not_known(
    story: Tell, step: int | None, source: str | None, told_so: str | None
) -> None:
    told = story()
    told.say_at(1.5, 0, wire.Fact("resumed", 0, {"step": 7, "source": "disk"}))  # of an earlier run's saves
    told.say_at(2, 0, wire.Fact("saved", 0, {"step": 400}))
    told.say_at(2, 0, *(wire.Observed(n, "", 412, "step", 9, True) for n in (0, 1)))
    told.exit_at(3, 1, -9)
    if step is not None:
        told.say_at(5, 0, wire.Fact("resumed", 0, {"step": step, "source": source}))
    told.say_at(5, 1, wire.Fact("resumed", 3, {"step": 1, "source": "disk"}))  # nobody's but process 0's counts
    end_well(told, 6)
    told.run()
    assert told.shown.count(" goes on from step ") == (told_so is not None) and (told_so or "") in told.shown
    found = [(each["resumed_from"], each["resumed_source"]) for each in result_of(told)["attempts"]]
    assert found == [(7, "disk"), (step, source)]


def test_a_killed_process_is_followed_by_another_attempt(story: Tell) -> None:
    told = story()
    told.say_at(2, 0, wire.Output(0, b"first\n"), wire.Fact("saved", 0, {"step": 400}))
    told.say_at(2, 0, *(wire.Observed(n, "", 412, "step", 9, True) for n in (0, 1)))
    told.exit_at(3, 1, -9)
    told.say_at(5, 0, wire.Output(0, b"second\n"))
    end_well(told, 6)
    verdict = told.run()
    assert verdict.exit_code == 0 and "after 1 restart" in verdict.text()
    assert "launch: attempt 2 of 4: process 1 on a was killed by signal 9 (SIGKILL)" in told.shown
    assert "going on from step 400, 12 steps are done again" in told.shown
    first, second = result_of(told)["attempts"]
    assert (first["outcome"], first["verdict"]["kind"], first["saved_step"]) == ("failed", "killed", 400)
    assert (second["attempt"], second["outcome"]) == (2, "succeeded")
    spawned = [told.commands(host, wire.Spawn) for host in (0, 1)]
    assert [[order.process_id for order in orders] for orders in spawned] == [[0, 1, 0, 1], [2, 3, 2, 3]]
    assert [order.env["HOSTMESH_ATTEMPT"] for order in spawned[1]] == ["1", "1", "2", "2"]
    logs = told.record.folder / "logs"
    assert (logs / "process-000.log").read_text() == "first\n"
    assert (logs / "attempt-2" / "process-000.log").read_text() == "second\n"
    assert [order.stays for order in told.commands(0, wire.Stop)] == [True, False]


def test_each_attempt_has_a_port_of_its_own(story: Tell) -> None:
    ports = iter(range(5000, 5010))
    first = FakeAgent({wire.Reserve: lambda _, order: [wire.Reserved({order.addresses[-1]: next(ports)})]})
    told = story(first, FakeAgent())
    told.exit_at(3, 1, -9)
    end_well(told, 6)
    told.run()
    addresses = [order.env["HOSTMESH_COORDINATOR_ADDRESS"] for order in told.commands(1, wire.Spawn)]
    assert [address.rpartition(":")[2] for address in addresses] == ["5000", "5000", "5001", "5001"]
    assert told.commands(0, wire.Reserve)[1].listen is False


def test_when_all_attempts_are_used_up_the_last_verdict_stands_and_says_so(story: Tell) -> None:
    told = story(restarts=1)
    told.exit_at(3, 1, -9)
    told.exit_at(200, 2, -9)
    verdict = told.run()
    assert (verdict.exit_code, verdict.process_id) == (137, 2)
    assert "There is no other attempt: both attempts are used up." in told.shown
    assert [each["verdict"]["culprit"]["process_id"] for each in result_of(told)["attempts"]] == [1, 2]


def crash(**detail: Any) -> wire.Fact:
    return wire.Fact("crash", 1, {"type": "builtins.ValueError", "lost_peer": False, **detail})


@pytest.mark.parametrize("detail", [{"type": "builtins.ModuleNotFoundError"}, {"explained": True}])
def test_a_mistake_that_would_be_made_again_ends_the_run(story: Tell, detail: dict[str, Any]) -> None:
    told = story()
    told.say_at(3, 0, crash(**detail), *told.agents[0].exit(1, 1))
    assert told.run().exit_code == 1
    assert len(told.commands(0, wire.Spawn)) == 2
    assert "another attempt would end in the same way" in told.shown


def test_who_asks_for_the_end_gets_it_between_attempts(story: Tell) -> None:
    told = story()
    for at in (3, 6):  # the second pause is one of a second
        told.exit_at(at, 1, -9)
    told.interrupt_at(6.4, signal.SIGINT)
    verdict = told.run()
    assert verdict.exit_code == 130
    assert len(told.commands(0, wire.Spawn)) == 4


def test_who_asks_for_the_end_gets_it_while_hosts_are_cleared(story: Tell) -> None:
    told = story(FakeAgent({wire.Stop: lambda agent, order: [] if order.stays else [*agent.end_all(-9), wire.Bye([])]}))
    told.exit_at(3, 1, -9)
    told.interrupt_at(5, signal.SIGINT)
    verdict = told.run()
    assert verdict.exit_code == 137 and told.inbox.seconds < 20
    assert len(told.commands(0, wire.Spawn)) == 2


def test_a_host_that_does_not_get_clear_is_lost(story: Tell) -> None:
    told = story(FakeAgent(), FakeAgent({wire.Stop: lambda agent, order: [] if order.stays else agent.end_all(-9)}))
    told.exit_at(3, 1, -9)
    assert told.run().exit_code == 69
    assert "b did not end its processes within 30 s" in told.shown
    assert len(told.commands(0, wire.Spawn)) == 2


def test_a_host_that_is_clear_though_nobody_asked_is_lost(story: Tell) -> None:
    told = story()
    told.say_at(3, 1, wire.Cleared([]))
    assert told.run().exit_code == 69
    assert "it said Cleared, and nobody asked" in told.shown


def test_a_preempted_run_goes_on_and_counts_no_failure(story: Tell) -> None:
    told = story(restarts=1)
    for process_id in range(4):
        told.exit_at(3, process_id, 75)
    told.exit_at(8, 1, -9)
    end_well(told, 20)
    assert told.run().exit_code == 0
    assert [each["outcome"] for each in result_of(told)["attempts"]] == ["preempted", "failed", "succeeded"]
