"""The policy as a table: what is known about a run, and what is done about it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from hostmesh.launcher.cluster.model import HangTimeout
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.failures import NO_CRASH, Failure
from hostmesh.launcher.supervisor.blame.verdict import Verdict, host_lost, nursery_died, with_remarks
from hostmesh.launcher.supervisor.decisions import AskToStop, End, Examine, Spawn, Tell, Wait
from hostmesh.launcher.supervisor.policy import decide
from hostmesh.launcher.supervisor.state.host import HostState, Phase, Silence
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.supervisor.state.standstill import Standstill

NOW = 100.0
OWN = {**NO_CRASH, "type": "ValueError", "message": "no data", "place": "train.py:8 in main"}
PEER = {
    **NO_CRASH,
    "type": "ValueError",
    "message": "UNKNOWN: Gloo",
    "place": "train.py:9 in main",
    "lost_peer": True,
}
EXPLAINED = {**NO_CRASH, "type": "hostmesh.worker.errors.DataError", "message": "step 3: bad row", "explained": True}
EXIT_TWO = {**NO_CRASH, "type": "SystemExit", "message": "2", "place": "job.py:7 in main"}
GLOO = "[Gloo] Rank 2 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3"
TERMINATED = "client.h:80] Terminating process because the JAX distributed service detected fatal errors."
UNHEALTHY = f"{TERMINATED}: The following tasks are unhealthy (stopped sending heartbeats):\n2\nThe tasks have crashed."
LOST = host_lost("b", "lost its agent", "", "logs/")


def failure(
    process_id: int,
    at: float,
    code: int = 1,
    crash: dict[str, Any] | None = None,
    tail: str = "",
    clock_error: float = 0.0,
) -> Failure:
    return Failure(process_id, "a", code, at, tail, crash, clock_error)


def left(process_id: int, at: float, said: str = "") -> Failure:
    return failure(process_id, at, code=0, tail=said)


NAMES = ("a", "b")


def hosts(*known: dict[str, Any]) -> tuple[HostState, ...]:
    """Hosts a and b of two processes each; what is known of one, they have in common."""
    each = known if len(known) > 1 else known * 2
    return tuple(
        HostState(number, NAMES[number], (2 * number, 2 * number + 1), **{"waiting_for": "", **what})
        for number, what in enumerate(each)
    )


def state(*of_hosts: dict[str, Any], **known: Any) -> RunState:
    return RunState(hosts(*(of_hosts or (CONNECTING,))), "logs/", **known)


def refused(*problems: str, at: float = NOW - 1) -> dict[str, Any]:
    return {"phase": Phase.REFUSED, "refusals": list(problems), "refused_at": at}


def unreachable(problem: str) -> dict[str, Any]:
    return {"phase": Phase.UNREACHABLE, "problem": problem}


CONNECTING = {"phase": Phase.CONNECTING, "waiting_for": "to connect"}
GREETED = {"phase": Phase.GREETED}
BEING_SET_UP = {"phase": Phase.PREPARING, "waiting_for": "to be set up"}
READY = {"phase": Phase.READY}
RUNNING = {"phase": Phase.RUNNING}
QUIET = {**RUNNING, "silence": Silence(4.0)}
IS_LOST = {"phase": Phase.LOST, "loss": LOST}


def running(*of_hosts: dict[str, Any], **known: Any) -> RunState:
    return state(*(of_hosts or (RUNNING,)), coordinator=("10.0.0.1", 7), spawned=True, **known)


def ended(situation: RunState, now: float = NOW) -> Verdict:
    decision = decide(situation, now)
    assert isinstance(decision, End)
    return decision.verdict


WAITING = {
    "nobody has answered": state(),
    "one host has not answered": state(GREETED, CONNECTING),
    "one host refused, the other is not ready": state(refused("no"), BEING_SET_UP),
    "one host is unreachable, another may be": state(unreachable("no route"), CONNECTING),
    "a victim, while a host misses beats": running(
        RUNNING, QUIET, failures=[failure(1, NOW - 4, crash=PEER)], exits={1: 1}
    ),
    "all is well": running(),
    "some succeeded": running(exits={0: 0, 1: 0}),
    "a victim, and the cause may still come": running(failures=[failure(1, NOW - 1, crash=PEER)], exits={1: 1}),
    "one was preempted, and the others may follow": running(
        failures=[failure(1, NOW - 29, code=75)], exits={0: 0, 1: 75}
    ),
    "one was preempted, and another lost it": running(
        failures=[failure(1, NOW - 9, code=75), failure(2, NOW - 8, crash=PEER)], exits={1: 75, 2: 1}
    ),
    "a victim, while the cause runs its exit handlers": running(
        failures=[failure(1, NOW - 4, crash=PEER)], exits={1: 1}, crashes={2: (NOW - 4, OWN)}
    ),
}


@pytest.mark.parametrize("situation", WAITING)
def test_wait_while(situation: str) -> None:
    assert decide(WAITING[situation], NOW) == Wait()


def test_spawn_once_every_host_is_ready() -> None:
    assert decide(state(READY, coordinator=("10.0.0.1", 7)), NOW) == Spawn()


def test_refusals_are_told_together() -> None:
    verdict = ended(state(refused("no")))
    assert verdict.exit_code == 2 and verdict.detail == ["a: no", "b: no"]


def test_a_refusal_does_not_wait_for_ever() -> None:
    assert ended(state(refused("no", at=NOW - 11), BEING_SET_UP)).detail == ["a: no"]


def test_every_host_that_cannot_be_reached_is_told() -> None:
    verdict = ended(state(unreachable("no route"), unreachable("no such name")))
    assert verdict.exit_code == 69 and verdict.detail == ["a: no route", "b: no such name"]
    assert verdict.message == "nothing was started: 2 of 2 hosts cannot be used"


def test_a_file_of_this_machine_that_cannot_be_sent_ends_the_run_at_once() -> None:
    verdict = ended(state(GREETED, BEING_SET_UP, unsendable="/x/a.py cannot be sent: why"))
    assert verdict.exit_code == 2 and verdict.host is None
    assert verdict.text() == "nothing was started: /x/a.py cannot be sent: why"


def test_one_host_that_cannot_be_reached_is_named_beside_what_others_refused() -> None:
    verdict = ended(state(refused("no Python"), unreachable("no route")))
    assert verdict.host == "b" and verdict.message == "nothing was started: b cannot be used"
    assert verdict.detail == ["b: no route", "a: no Python"]


def test_success_needs_every_process() -> None:
    assert ended(running(exits=dict.fromkeys(range(4), 0))).exit_code == 0


BLAMED = {
    "the only failure": ([failure(2, 9, crash=OWN)], 2),
    "the cause after its victims": ([failure(1, 9, crash=PEER), failure(2, 9.5, crash=OWN)], 2),
    "the earlier of two causes": ([failure(1, 9.5, crash=OWN), failure(3, 9, crash=OWN)], 3),
    "a kill before its victims": ([failure(0, 9, code=-9), failure(1, 9.1, crash=PEER)], 0),
    "a kill after its victims": ([failure(1, 9, crash=PEER), failure(0, 9.1, code=-9)], 0),
    "an abort of its own": ([failure(3, 9, code=-6, tail="terminate called")], 3),
    "not the abort of a victim": (
        [failure(3, 9, code=-6, tail="Terminating process because the JAX distributed service detected fatal errors"),
         failure(1, 9.5, code=-11)],
        1,
    ),
    "an abort of the coordinator before its victims": (
        [failure(0, 99.9, code=-6, tail=GLOO), failure(1, 99.95, code=-6, tail=TERMINATED)], 0
    ),
    "an abort of the coordinator heard of after its victims": (
        [failure(1, 99.9, code=-6, tail=TERMINATED), failure(2, 99, crash=PEER), failure(0, 99.95, code=-6, tail=GLOO)],
        0,
    ),
    "an abort that is certain, at once": ([failure(2, NOW, code=-6, tail=GLOO)], 2),
    "the coordinator where clocks cannot tell two aborts apart": (
        [failure(1, 99.90, code=-6, clock_error=0.1), failure(0, 99.95, code=-6, clock_error=0.1)], 0
    ),
    "the first of two aborts where clocks can tell": (
        [failure(1, 99.0, code=-6, clock_error=0.1), failure(0, 99.95, code=-6, clock_error=0.1)], 1
    ),
    "the first victim when its time is over": ([failure(1, 97, crash=PEER), failure(2, 98, crash=PEER)], 1),
    "a failure after somebody was preempted": ([failure(1, 97, code=75), failure(3, 98, crash=OWN)], 3),
    "who was preempted alone, when the others do not follow": ([failure(1, 69, code=75)], 1),
    "who was preempted alone, and not who lost it": ([failure(2, 69, code=75), failure(1, 70, crash=PEER)], 2),
}  # fmt: skip


@pytest.mark.parametrize("who", BLAMED)
def test_blame(who: str) -> None:
    failures, culprit = BLAMED[who]
    verdict = ended(running(failures=failures, exits={f.process_id: f.code for f in failures}))
    assert verdict.process_id == culprit


def test_victims_do_not_fail_in_the_same_way_as_their_cause() -> None:
    failures = [failure(0, 9, code=-6, tail=GLOO), failure(1, 9.1, code=-6, tail=TERMINATED)]
    verdict = ended(running(failures=failures, exits={0: -6, 1: -6}))
    assert verdict.detail == ["3 other processes were stopped.", "Logs: logs/"]


EARLY = {
    "the coordinator, and jax aborts all others": (
        [left(0, 99.0)], [failure(k, 99.1, code=-6, tail=TERMINATED) for k in (1, 2, 3)], {}, 0
    ),
    "another, and victims say so before they end": ([left(2, 97.0)], [], {1: (97.1, PEER), 3: (97.1, PEER)}, 2),
    "the first of two": ([left(2, 97.5), left(1, 97.0)], [failure(3, 98.0, crash=PEER)], {0: (98.0, PEER)}, 1),
    "one whose end its agent noticed late": ([left(2, 97.4)], [failure(3, 97.0, crash=PEER)], {}, 2),
    "one on a host whose clock is not well known": (
        [failure(2, 99, 0, clock_error=2.0)], [failure(3, 97, crash=PEER)], {}, 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("who", EARLY)
def test_who_left_too_early_is_named_and_not_its_victims(who: str) -> None:
    leavers, failures, crashes, culprit = EARLY[who]
    exits = {each.process_id: each.code for each in (*leavers, *failures)}
    verdict = ended(running(leavers=leavers, failures=failures, crashes=crashes, exits=exits, joined={0, 1, 2, 3}))
    assert (verdict.process_id, verdict.exit_code) == (culprit, 1)
    assert verdict.message == (
        f"the run failed: process {culprit} on a left with exit code 0 while others were still working"
    )


def early(leaver: Failure, *failures: Failure, **known: Any) -> RunState:
    exits = {each.process_id: each.code for each in (leaver, *failures)}
    return running(leavers=[leaver], failures=list(failures), exits=exits, **{"joined": {0, 1, 2, 3}, **known})


NOT_EARLY = {
    "who failed by itself": (early(left(0, 97), failure(2, 97.5, crash=OWN), failure(1, 97.1, crash=PEER)), 2),
    "a kill": (early(left(0, 97), failure(2, 97.5, code=-9), failure(1, 97.1, crash=PEER)), 2),
    "who left long after the first victim": (early(left(0, 97), failure(1, 95, crash=PEER)), 1),
    "who never joined the others": (early(left(0, 97), failure(1, 97.1, crash=PEER), joined={1, 2, 3}), 1),
}


@pytest.mark.parametrize("who", NOT_EARLY)
def test_who_left_with_exit_code_0_is_not_blamed_for(who: str) -> None:
    situation, culprit = NOT_EARLY[who]
    assert ended(situation).process_id == culprit


def test_who_left_is_not_blamed_before_a_cause_can_be_heard_of() -> None:
    assert decide(early(left(2, NOW - 0.6), failure(1, NOW - 0.5, crash=PEER)), NOW) == Wait()


def test_processes_that_leave_apart_are_no_failure() -> None:
    leavers = [left(0, 10), left(1, 40), left(2, 41)]
    going = running(leavers=leavers, exits={0: 0, 1: 0, 2: 0}, joined={0, 1, 2, 3})
    assert decide(going, NOW) == Wait()
    going.exits[3] = 0
    assert ended(going).outcome == "succeeded"


def unheard(seconds_ago: float, *of_hosts: dict[str, Any]) -> RunState:
    victims = [failure(k, NOW - seconds_ago, code=-6, tail=UNHEALTHY) for k in (0, 1, 3)]
    return running(*of_hosts, failures=victims, exits={0: -6, 1: -6, 3: -6})


def test_a_process_that_jax_no_longer_hears_is_named_though_it_runs() -> None:
    assert decide(unheard(3), NOW) == Wait()
    verdict = ended(unheard(5))
    assert (verdict.process_id, verdict.host, verdict.exit_code, verdict.victims) == (2, "b", 124, 3)
    assert verdict.message == "the run failed: process 2 on b runs, but jax in the others no longer hears from it"


def test_a_lost_host_explains_why_jax_no_longer_hears_a_process() -> None:
    assert ended(unheard(5, RUNNING, IS_LOST)) is LOST


def test_a_number_that_is_no_process_is_nobody() -> None:
    odd = [failure(1, NOW - 3, code=-6, tail=UNHEALTHY.replace("\n2\n", "\n77\n"))]
    assert ended(running(failures=odd, exits={1: -6})).process_id == 1


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (75, 75), (-9, 137), (-signal.SIGSEGV, 139)])
def test_the_exit_code_is_the_culprits(code: int, exit_code: int) -> None:
    assert ended(running(failures=[failure(0, 9, code=code)], exits={0: code})).exit_code == exit_code


def test_a_lost_host_is_the_cause_of_its_victims() -> None:
    verdict = ended(running(RUNNING, IS_LOST, failures=[failure(0, 1, crash=PEER)], exits={0: 1}))
    assert verdict is LOST and verdict.exit_code == 69


def test_a_process_that_failed_by_itself_is_the_cause_of_a_lost_host() -> None:
    assert ended(running(RUNNING, IS_LOST, failures=[failure(0, 1, crash=OWN)], exits={0: 1})).process_id == 0


def test_a_dead_nursery_is_the_cause_of_its_workers_deaths() -> None:
    dead = nursery_died("a", "it was killed by signal 9", -9, (0, 1), "logs/")
    verdict = ended(running(failures=[failure(0, 1, code=-9)], exits={0: -9}, nursery_death=dead))
    assert verdict is dead and verdict.exit_code == 137


def test_an_interrupt_asks_then_waits_then_ends() -> None:
    asked = running(interrupts=[signal.SIGINT], interrupted_at=NOW - 1)
    assert decide(asked, NOW) == AskToStop(signal.SIGINT)
    assert ended(asked, NOW + 10).exit_code == 130


def test_a_second_interrupt_ends_at_once() -> None:
    assert ended(running(interrupts=[signal.SIGTERM, signal.SIGINT], interrupted_at=NOW)).exit_code == 143


REQUESTED = {
    "Ctrl-C": (running(interrupts=[signal.SIGINT]), signal.SIGINT),
    "Ctrl-C, to processes that save": (running(interrupts=[signal.SIGINT], save_seconds=60), signal.SIGTERM),
    "SIGTERM": (running(interrupts=[signal.SIGTERM]), signal.SIGTERM),
    "SIGHUP": (running(interrupts=[signal.SIGHUP]), signal.SIGTERM),
}


@pytest.mark.parametrize("request_", REQUESTED)
def test_processes_get_what_the_launcher_got_or_what_makes_them_save(request_: str) -> None:
    known, wanted = REQUESTED[request_]
    assert known.request == wanted


def test_an_interrupt_before_anything_runs_ends_at_once() -> None:
    assert ended(state(interrupts=[signal.SIGHUP], interrupted_at=NOW)).exit_code == 129


def test_processes_that_end_on_request_are_no_failures() -> None:
    stopped = running(
        interrupts=[2], interrupted_at=NOW, failures=[failure(0, NOW, code=-15)], exits=dict.fromkeys(range(4), -15)
    )
    assert ended(stopped).outcome == "stopped"


ENDED_AS_ASKED = {
    "by Ctrl-C": failure(0, NOW, code=-2),
    "by SIGTERM": failure(0, NOW, code=-15),
    "a shell's program by Ctrl-C": failure(0, NOW, code=130),
    "by KeyboardInterrupt": failure(0, NOW, crash={**OWN, "type": "KeyboardInterrupt"}),
    "by losing a peer who stopped": failure(0, NOW, crash=PEER),
}


@pytest.mark.parametrize("how", ENDED_AS_ASKED)
def test_a_stop_is_explained_by_no_process_that_ended(how: str) -> None:
    exits = dict.fromkeys(range(4), 0) | {0: 1}
    assert ended(running(interrupts=[2], failures=[ENDED_AS_ASKED[how]], exits=exits)).detail == []


def test_who_fails_while_it_stops_is_told() -> None:
    failures = [failure(1, 9.5), failure(2, 9, crash=OWN), failure(3, 9, code=-15)]
    exits = {0: 0, **{each.process_id: each.code for each in failures}}
    verdict = ended(running(interrupts=[15], interrupted_at=NOW, failures=failures, exits=exits))
    assert (verdict.exit_code, verdict.message) == (143, "stopped by SIGTERM")
    who = ["process 2 on a exited with 1", "  ValueError: no data", "    train.py:8 in main"]
    assert verdict.detail == [*who, "1 other process failed too.", "Logs: logs/"]


def test_a_stop_does_not_wait_for_processes_that_only_wait_for_their_end() -> None:
    asked = {"interrupts": [2], "interrupted_at": NOW, "exits": dict.fromkeys(range(3), -2)}
    assert decide(running(**asked), NOW) == AskToStop(signal.SIGINT)
    assert ended(running(**asked, crashes={3: (NOW, PEER)})).message == "stopped by Ctrl-C"


def test_victims_are_counted_and_likes_are_told_apart() -> None:
    failures = [failure(0, 9, crash=OWN), failure(1, 9.1, crash=OWN), failure(2, 9.2, crash=PEER)]
    verdict = ended(running(failures=failures, exits={0: 1, 1: 1, 2: 1}))
    assert verdict.victims == 2
    assert "1 other process failed in the same way." in verdict.detail
    assert "2 other processes were stopped." in verdict.detail


PREEMPTED = {
    "all were preempted": [75, 75, 75, 75],
    "some had nothing left to do": [0, 75, 0, 75],
}


def saved(codes: list[int], **known: Any) -> RunState:
    failures = [failure(number, NOW, code=code) for number, code in enumerate(codes) if code]
    return running(exits=dict(enumerate(codes)), failures=failures, saved_step=120, **known)


@pytest.mark.parametrize("who", PREEMPTED)
def test_a_run_is_preempted_when(who: str) -> None:
    verdict = ended(saved(PREEMPTED[who]))
    assert (verdict.outcome, verdict.exit_code, verdict.detail) == ("preempted", 75, [])
    assert verdict.message == "preempted; saved at step 120: the same command goes on from there"


def test_a_preempted_run_that_never_saved_says_no_more() -> None:
    assert ended(running(exits=dict.fromkeys(range(4), 75))).message == "preempted"


def test_a_process_that_is_preempted_alone_is_blamed_with_the_reason() -> None:
    verdict = ended(running(failures=[failure(1, NOW - 30, code=75)], exits={1: 75}))
    assert verdict.message == "the run failed: process 1 on a exited with 75 (preempted)"
    assert "3 other processes were stopped." in verdict.detail


def test_a_lost_host_ends_the_wait_for_those_who_may_follow() -> None:
    assert ended(running(RUNNING, IS_LOST, failures=[failure(1, NOW, code=75)], exits={1: 75})) is LOST


REQUESTS = {
    "Ctrl-C": (signal.SIGINT, "stopped", 130, "stopped by Ctrl-C; saved at step 120"),
    "SIGHUP": (signal.SIGHUP, "stopped", 129, "stopped by SIGHUP; saved at step 120"),
    "SIGTERM": (signal.SIGTERM, "preempted", 75, "preempted; saved at step 120: the same command goes on from there"),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_who_asks_processes_that_save_gets_his_own_verdict(request_: str) -> None:
    number, *wanted = REQUESTS[request_]
    verdict = ended(saved([75] * 4, interrupts=[number], interrupted_at=NOW, save_seconds=60))
    assert [verdict.outcome, verdict.exit_code, verdict.message] == wanted


def test_an_older_save_is_told_as_such() -> None:
    asked_twice = running(interrupts=[2, 2], interrupted_at=NOW, save_seconds=60, saved_step=100)
    assert ended(asked_twice).message == "stopped by Ctrl-C; last saved at step 100"


def stopping(seconds_ago: float, *of_hosts: dict[str, Any], **known: Any) -> RunState:
    return running(
        *of_hosts, interrupts=[signal.SIGINT], interrupted_at=NOW - seconds_ago, **{"save_seconds": 60, **known}
    )


STILL_SAVING = {
    "more time than others get": stopping(59),
    "some have left": stopping(59, exits={0: 75, 1: 0}, failures=[failure(0, NOW - 9, code=75)]),
    "one ended by the request itself": stopping(2, exits={0: -15}, failures=[failure(0, NOW, code=-15)]),
    "nobody saves, and three seconds are not over": stopping(2, save_seconds=None),
    "nobody saves, and the grace is not over": stopping(19, save_seconds=None, grace=20),
    "the grace is longer than their own time": stopping(19, save_seconds=10, grace=20),
}
DONE_SAVING = {
    "time is over": stopping(60),
    "their own time is over, which is short": stopping(1, save_seconds=1, grace=0.5),
    "the grace is over, which is longer than their own time": stopping(20, save_seconds=10, grace=20),
    "nobody saves, and the grace is over, which is short": stopping(1, save_seconds=None, grace=0.5),
    "one is gone unsaved, and so nobody can save": stopping(3, exits={0: -15}, failures=[failure(0, NOW, code=-15)]),
    "nobody saves, and three seconds are over": stopping(3, save_seconds=None),
}


@pytest.mark.parametrize("situation", STILL_SAVING)
def test_a_stop_waits_while(situation: str) -> None:
    known = STILL_SAVING[situation]
    assert decide(known, NOW) == AskToStop(known.request)


@pytest.mark.parametrize("situation", DONE_SAVING)
def test_a_stop_ends_when(situation: str) -> None:
    verdict = ended(DONE_SAVING[situation])
    assert (verdict.outcome, verdict.exit_code) == ("stopped", 130)


def test_a_save_that_fails_is_the_verdict() -> None:
    verdict = ended(stopping(1, exits={2: 1}, failures=[failure(2, NOW, crash=OWN)]))
    assert verdict.outcome == "failed" and verdict.process_id == 2


def test_a_host_lost_while_saving_is_the_verdict() -> None:
    assert ended(stopping(1, RUNNING, IS_LOST)) is LOST


def test_a_second_request_ends_a_save_that_fails_as_any_other() -> None:
    failed = running(interrupts=[2, 2], save_seconds=60, exits={2: 1}, failures=[failure(2, NOW, crash=OWN)])
    assert ended(failed).exit_code == 130


def everywhere(crash: dict[str, Any], code: int = 1, tails: tuple[str, ...] = ("",) * 4) -> RunState:
    failures = [failure(number, 9 - number, code, crash, tail) for number, tail in enumerate(tails)]
    return running(failures=failures, exits=dict.fromkeys(range(len(tails)), code))


def test_an_error_that_explains_itself_is_told_in_its_own_words() -> None:
    verdict = ended(running(failures=[failure(1, 9, crash=EXPLAINED)], exits={1: 1}))
    assert verdict.message == "the run failed: process 1 on a exited with 1"
    assert verdict.detail == ["step 3: bad row", "3 other processes were stopped.", "Logs: logs/"]


def test_one_mistake_in_all_processes_is_told_once() -> None:
    verdict = ended(everywhere(EXPLAINED))
    assert verdict.message == "the run failed: all 4 processes failed alike: each exited with 1"
    assert verdict.detail == ["step 3: bad row", "Logs: logs/"] and verdict.victims == 0


def test_a_process_killed_after_its_crash_record_failed_alike_too() -> None:
    known = everywhere(EXPLAINED, tails=("",) * 2)
    known.crashes = {number: (NOW, EXPLAINED) for number in range(4)}
    assert "all 4 processes failed alike" in ended(known).message


def test_the_same_error_in_other_words_is_not_alike() -> None:
    failures = [failure(0, 9, crash=EXPLAINED), failure(1, 9.1, crash={**EXPLAINED, "message": "step 3: other"})]
    assert "3 other processes were stopped." in ended(running(failures=failures, exits={0: 1, 1: 1})).detail


def test_a_long_explanation_is_cut_where_a_dozen_lines_end() -> None:
    long = {**EXPLAINED, "message": "\n".join(f"line {k}" for k in range(20))}
    detail = ended(running(failures=[failure(1, 9, crash=long)], exits={1: 1})).detail
    assert detail[:8] == [f"line {k}" for k in range(8)] and detail[8] == "… and 12 more lines"
    assert len(detail) == 11


def test_a_bare_exit_code_is_explained_by_what_was_printed() -> None:
    verdict = ended(everywhere(EXIT_TWO, 2, ("usage: job\njob: error: no such option\n", "", "", "")))
    assert verdict.message == "the run failed: all 4 processes failed alike: each exited with 2"
    assert verdict.detail[:3] == ["usage: job", "job: error: no such option", "  job.py:7 in main"]


def test_a_process_alone_is_never_all_processes() -> None:
    alone = RunState((HostState(0, "a", (0,)),), "logs/", failures=[failure(0, 9, crash=OWN)], exits={0: 1})
    assert ended(alone).message == "the run failed: process 0 on a exited with 1"


def going_on(*of_hosts: dict[str, Any], **known: Any) -> RunState:
    return running(*of_hosts, keep_going=True, **known)


def together(*failures: Failure, succeeded: tuple[int, ...] = ()) -> dict[str, Any]:
    exits = {each.process_id: each.code for each in failures}
    return {"failures": list(failures), "exits": {**exits, **dict.fromkeys(succeeded, 0)}}


GOES_ON = {
    "after a failure": going_on(**together(failure(1, 9, crash=OWN))),
    "after a kill": going_on(**together(failure(1, 9, code=-9))),
    "after victims": going_on(**together(failure(1, 9, crash=PEER), failure(2, 9, crash=PEER), failure(3, 9))),
    "after a lost host": going_on(RUNNING, IS_LOST, exits={0: 0}),
    "after a nursery's death": going_on(nursery_death=LOST, **together(failure(0, 9, code=-9))),
    "though somebody left before others were done": going_on(
        leavers=[left(0, 9)], joined={0, 1}, **together(failure(1, 9.1, crash=PEER), succeeded=(0,))
    ),
}


@pytest.mark.parametrize("situation", GOES_ON)
def test_a_run_that_keeps_going_ends_nobody(situation: str) -> None:
    assert decide(GOES_ON[situation], NOW) == Wait()


KEPT_GOING = {
    "one failed": (
        going_on(**together(failure(1, 9, crash=OWN), succeeded=(0, 2, 3))),
        (1, "process 1 on a exited with 1", ["3 other processes succeeded."]),
    ),
    "the first cause, its like, and victims": (
        going_on(
            **together(failure(3, 9, crash=OWN), failure(1, 8, crash=PEER), failure(2, 10, crash=OWN), succeeded=(0,))
        ),
        (1, "process 3 on a exited with 1", [
            "1 other process failed in the same way.", "1 other process failed as well.", "1 other process succeeded."
        ]),
    ),
    "a cause, and a lost host": (
        going_on(RUNNING, IS_LOST, **together(failure(1, 9, code=-11), succeeded=(0,))),
        (139, "process 1 on a was killed by signal 11 (SIGSEGV)", [
            "2 other processes were lost with a host.", "1 other process succeeded."
        ]),
    ),
    "a lost host, and its victim": (
        going_on(RUNNING, IS_LOST, **together(failure(1, 9, crash=PEER), succeeded=(0,))),
        (69, "b lost its agent", [
            "2 processes were lost with it.", "1 other process failed as well.", "1 other process succeeded."
        ]),
    ),
    "all of them alike": (
        going_on(**together(*(failure(k, 9, crash=OWN) for k in range(4)))),
        (1, "all 4 processes failed alike: each exited with 1", []),
    ),
}  # fmt: skip


@pytest.mark.parametrize("situation", KEPT_GOING)
def test_a_run_that_kept_going_says_who_failed_and_who_did_not(situation: str) -> None:
    known, (exit_code, message, told) = KEPT_GOING[situation]
    verdict = ended(known)
    assert (verdict.exit_code, verdict.message) == (exit_code, f"the run failed: {message}")
    assert [line for line in verdict.detail if line.endswith(".")] == told and verdict.detail[-1] == "Logs: logs/"


def test_a_run_that_kept_going_succeeds_or_is_preempted_as_any_other() -> None:
    assert ended(going_on(exits=dict.fromkeys(range(4), 0))).outcome == "succeeded"
    assert ended(going_on(exits=dict.fromkeys(range(4), 75))).outcome == "preempted"


def test_keep_going_is_about_processes_that_have_started() -> None:
    assert ended(state(refused("no"), keep_going=True)).outcome == "refused"
    assert ended(state(CONNECTING, IS_LOST, keep_going=True)) is LOST


def test_what_failed_before_a_request_does_not_cut_the_time_to_save() -> None:
    known = together(failure(1, 9, crash=OWN))
    asked = stopping(59, keep_going=True, ended_before={1}, **known)
    assert decide(asked, NOW) == AskToStop(signal.SIGTERM)
    verdict = ended(asked, NOW + 2)
    assert verdict.message == "stopped by Ctrl-C" and verdict.detail[0] == "process 1 on a exited with 1"


def test_victims_alone_are_no_success_though_their_host_is_silent_by_now() -> None:
    victims = [failure(k, NOW, crash=PEER) for k in range(4)]
    assert ended(running(QUIET, **together(*victims))).outcome == "failed"


def test_a_remark_is_on_the_line_of_a_run_that_did_not_fail() -> None:
    remarks = ["loss was not finite from step 37 on"]
    told = with_remarks(ended(running(exits=dict.fromkeys(range(4), 0))), remarks)
    assert told.text(took=" in 1.0 s") == "all 4 processes succeeded in 1.0 s; loss was not finite from step 37 on"
    failed = ended(running(failures=[failure(1, NOW - 1, crash=OWN)], exits={1: 1}))
    assert with_remarks(failed, remarks) == failed


def still(seconds: float, *, examined: bool = False, timeout: float = 60.0, **known: Any) -> RunState:
    """Of a run in which nothing has moved for so long; it has been examined for the moment at which it ends."""
    moved_at = NOW - seconds
    asked = Standstill(moved_at, asked_at=NOW - 1, asked_for=timeout) if examined else Standstill()
    seen = wire.Observed(0, "S", 5, "step", 5, True)
    progress = {number: Progress(moved_at, seen, examined_at=NOW - 0.5) for number in range(4)}
    return running(progress=progress, standstill=asked, hang_timeout=HangTimeout(timeout), **known)


def test_a_run_that_stands_still_is_examined_and_then_ended() -> None:
    assert decide(still(1), NOW) == Wait()
    assert decide(still(12), NOW) == Wait()
    assert decide(still(59), NOW) == Examine(Standstill(NOW - 59, asked_at=NOW, asked_for=20.0))
    assert decide(still(59, examined=True), NOW) == Wait()
    assert (ended(still(60, examined=True)).outcome, ended(still(60, examined=True)).exit_code) == ("hang", 124)


def test_a_run_that_stands_still_is_told_about_before_it_ends() -> None:
    told = still(20, timeout=600.0)
    told.standstill = Standstill(NOW - 20, asked_at=NOW - 1, asked_for=20.0)
    decision = decide(told, NOW)
    assert isinstance(decision, Tell) and decision.standstill == Standstill(NOW - 20, done=20.0)
    assert decision.lines[0] == "nothing has moved for 20 s:"


@pytest.mark.parametrize("known", [{"looked_at": NOW - 0.1}, {"keep_going": True}], ids=str)
def test_a_run_that_stands_still_is_left_alone_when(known: dict[str, Any]) -> None:
    assert decide(still(60, examined=True, **known), NOW) == Wait()


def test_a_failure_is_no_hang() -> None:
    failed = still(60, examined=True, failures=[failure(1, NOW - 1, crash=OWN)], exits={1: 1})
    assert ended(failed).outcome == "failed"
