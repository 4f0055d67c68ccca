"""The policy as a table: what is known about a run, and what is done about it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from launcher.supervisor import ASK_TO_STOP, SPAWN, WAIT, State, decide
from launcher.verdict import Failure, Verdict, host_lost, nursery_died

NOW = 100.0
OWN = {"type": "ValueError", "message": "no data", "place": "train.py:8 in main", "lost_peer": False, "traceback": ""}
PEER = {
    "type": "ValueError",
    "message": "UNKNOWN: Gloo",
    "place": "train.py:9 in main",
    "lost_peer": True,
    "traceback": "",
}
LOST = host_lost("b", "lost its agent", "", "logs/")


def failure(process_id: int, at: float, code: int = 1, crash: dict[str, Any] | None = None, tail: str = "") -> Failure:
    return Failure(process_id, "a", code, at, tail, crash)


def state(**known: Any) -> State:
    return State(hosts=("a", "b"), num_processes=4, logs="logs/", **known)


def running(**known: Any) -> State:
    return state(**{"answered": {0, 1}, "port": 7, "spawned": True, **known})


def ended(situation: State, now: float = NOW) -> Verdict:
    decision = decide(situation, now)
    assert decision.do == "end" and decision.verdict is not None
    return decision.verdict


WAITING = {
    "nobody has answered": state(),
    "one host has not answered": state(answered={0}, port=7),
    "no port yet": state(answered={0, 1}),
    "one host refused, the other has not answered": state(answered={0}, refused=["a: no"]),
    "all is well": running(),
    "some succeeded": running(exits={0: 0, 1: 0}),
    "a victim, and the cause may still come": running(failures=[failure(1, NOW - 1, crash=PEER)], exits={1: 1}),
    "a victim, while the cause runs its exit handlers": running(
        failures=[failure(1, NOW - 4, crash=PEER)], exits={1: 1}, crashes={2: (NOW - 4, OWN)}
    ),
}


@pytest.mark.parametrize("situation", WAITING)
def test_wait_while(situation: str) -> None:
    assert decide(WAITING[situation], NOW) is WAIT


def test_spawn_once_every_host_is_ready() -> None:
    assert decide(state(answered={0, 1}, port=7), NOW) is SPAWN


def test_refusals_are_told_together() -> None:
    verdict = ended(state(answered={0, 1}, refused=["a: no", "b: no"], port=7))
    assert verdict.exit_code == 2 and verdict.detail == ["a: no", "b: no"]


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
    "the first victim when patience is over": ([failure(1, 97, crash=PEER), failure(2, 98, crash=PEER)], 1),
}  # fmt: skip


@pytest.mark.parametrize("who", BLAMED)
def test_blame(who: str) -> None:
    failures, culprit = BLAMED[who]
    verdict = ended(running(failures=failures, exits={f.process_id: f.code for f in failures}))
    assert verdict.process_id == culprit


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (75, 75), (-9, 137), (-signal.SIGSEGV, 139)])
def test_the_exit_code_is_the_culprits(code: int, exit_code: int) -> None:
    assert ended(running(failures=[failure(0, 9, code=code)], exits={0: code})).exit_code == exit_code


def test_a_lost_host_is_the_cause_of_its_victims() -> None:
    verdict = ended(running(failures=[failure(0, 1, crash=PEER)], exits={0: 1}, lost=[LOST]))
    assert verdict is LOST and verdict.exit_code == 69


def test_a_process_that_failed_by_itself_is_the_cause_of_a_lost_host() -> None:
    assert ended(running(failures=[failure(0, 1, crash=OWN)], exits={0: 1}, lost=[LOST])).process_id == 0


def test_a_dead_nursery_is_the_cause_of_its_workers_deaths() -> None:
    dead = nursery_died("a", "it was killed by signal 9", 2, "logs/")
    verdict = ended(running(failures=[failure(0, 1, code=-9)], exits={0: -9}, nursery_death=dead))
    assert verdict is dead and verdict.exit_code == 137


def test_an_interrupt_asks_then_waits_then_ends() -> None:
    asked = running(interrupts=[signal.SIGINT], interrupted_at=NOW - 1)
    assert decide(asked, NOW) is ASK_TO_STOP
    assert ended(asked, NOW + 10).exit_code == 130


def test_a_second_interrupt_ends_at_once() -> None:
    assert ended(running(interrupts=[signal.SIGTERM, signal.SIGINT], interrupted_at=NOW)).exit_code == 143


def test_an_interrupt_before_anything_runs_ends_at_once() -> None:
    assert ended(state(interrupts=[signal.SIGHUP], interrupted_at=NOW)).exit_code == 129


def test_processes_that_end_on_request_are_no_failures() -> None:
    stopped = running(
        interrupts=[2], interrupted_at=NOW, failures=[failure(0, NOW, code=-15)], exits=dict.fromkeys(range(4), -15)
    )
    assert ended(stopped).outcome == "stopped"


def test_victims_are_counted_and_likes_are_told_apart() -> None:
    failures = [failure(0, 9, crash=OWN), failure(1, 9.1, crash=OWN), failure(2, 9.2, crash=PEER)]
    verdict = ended(running(failures=failures, exits={0: 1, 1: 1, 2: 1}))
    assert verdict.victims == 2
    assert "1 other process failed in the same way." in verdict.detail
    assert "2 other processes were stopped." in verdict.detail
