"""The supervisor's stories, told with scripted agents: deaths, losses, lies, secrets, interrupts at every moment."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_agent import End, FakeAgent
from stories import EPOCH, Story, names_of
from test_secrets import TOKEN, leaks

from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.failures import NO_CRASH
from hostmesh.launcher.supervisor.state.host import Phase

OWN = {**NO_CRASH, "type": "ValueError", "message": "no data", "place": "train.py:8 in main"}
PEER = {**NO_CRASH, "type": "XlaRuntimeError", "message": "Gloo", "lost_peer": True}
INT, TERM = signal.SIGINT, signal.SIGTERM

Tell = Callable[..., Story]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Two hosts, a and b, of two processes each: 0 and 1, 2 and 3. Their agents are healthy unless given."""

    def begin(*agents: FakeAgent, **settings: Any) -> Story:
        return Story(tmp_path, agents or (FakeAgent(), FakeAgent()), **settings)

    return begin


def crash(process_id: int, detail: dict[str, Any]) -> wire.Fact:
    return wire.Fact("crash", process_id, detail)


def deaf(**script: Any) -> FakeAgent:
    """Its processes ignore every signal but SIGKILL."""
    return FakeAgent({wire.Signal: lambda *_: [], **script})


def test_a_run_whose_processes_all_succeed(tell: Tell) -> None:
    story = tell()
    for process_id in range(4):
        story.say_at(1, process_id // 2, wire.Output(process_id, f"hello from {process_id}\n".encode()))
        story.exit_at(2 + process_id, process_id, 0)
    verdict = story.run()
    assert (verdict.exit_code, verdict.message) == (0, "all 4 processes succeeded")
    assert all(f"[{number} {'ab'[number // 2]}] hello from {number}" in story.shown for number in range(4))
    assert [host.phase for host in story.supervisor.state.hosts] == [Phase.LEFT] * 2
    assert names_of(story.commands(1, wire.Stop)) == ["Stop"] and story.commands(1, wire.Stop)[0].stacks is False


# The order of deaths.


def die(story: Story, at: float, process_id: int, code: int, record: dict[str, Any] | None = None) -> None:
    if record is not None:
        story.say_at(at, process_id // 2, crash(process_id, {**record, "at": EPOCH + at}))
    story.exit_at(at, process_id, code)


DEATHS: dict[str, tuple[list[tuple[float, int, int, dict[str, Any] | None]], int, int]] = {
    "one raises": ([(5, 2, 1, OWN)], 2, 1),
    "one is killed": ([(5, 3, -9, None)], 3, 137),
    "a victim on another host is heard of first": ([(5, 0, 1, PEER), (6, 3, 1, OWN)], 3, 1),
    "victims on both hosts, then a kill": ([(5, 0, 1, PEER), (5.1, 3, 1, PEER), (6, 2, -11, None)], 2, 139),
    "two causes, and the second host's was first": ([(5, 2, 3, OWN), (5.2, 0, 4, None)], 2, 3),
    "victims alone: the first of them": ([(5, 3, 1, PEER), (5.5, 0, 1, PEER)], 3, 1),
    "one leaves early, and the others lose it": ([(5, 1, 0, None), (5.2, 2, 1, PEER), (5.2, 3, 1, PEER)], 1, 1),
    "one alone is preempted": ([(5, 1, 75, None)], 1, 75),
}


@pytest.mark.parametrize("how", DEATHS)
def test_the_culprit_is_named_whoever_dies_first(tell: Tell, how: str) -> None:
    deaths, culprit, exit_code = DEATHS[how]
    story = tell(deaf(), deaf())
    for death in deaths:
        die(story, *death)
    verdict = story.run()
    assert (verdict.process_id, verdict.exit_code, verdict.outcome) == (culprit, exit_code, "failed")
    assert verdict.host == "ab"[culprit // 2]
    assert all(story.commands(host, wire.Stop)[0].stacks for host in (0, 1)), "stacks of the victims are asked for"
    assert len(story.supervisor.state.exits) == 4, "nobody is left"


def test_what_only_becomes_known_at_the_end_is_in_the_verdict(tell: Tell) -> None:
    """The same crash in all processes, three of which are killed on their way out."""
    dying = FakeAgent({wire.Stop: lambda agent, _: [crash(2, OWN), crash(3, OWN), *agent.end_all(-9), wire.Bye([])]})
    story = tell(FakeAgent(), dying)
    story.say_at(5, 0, crash(0, OWN), crash(1, OWN), *FakeAgent().exit(0, 1))
    assert story.run().message == "the run failed: all 4 processes failed alike: each exited with 1"


def test_a_dead_nursery_is_the_cause_of_its_workers_deaths(tell: Tell) -> None:
    story = tell()
    story.say_at(
        3, 1, wire.Fact("nursery_died", None, {"problem": "it was killed by signal 9", "code": -9, "said": ""})
    )
    verdict = story.run()
    assert (verdict.exit_code, verdict.host, verdict.victims) == (137, "b", 2)


# Hosts that are lost.


def test_a_host_lost_while_others_run_is_the_verdict_and_the_others_are_stopped(tell: Tell) -> None:
    story = tell()
    story.say_at(5, 1, End())
    verdict = story.run()
    assert (verdict.exit_code, verdict.host, verdict.message) == (69, "b", "the run failed: b lost its agent")
    assert story.supervisor.state.exits == {0: -9, 1: -9}
    assert [host.phase for host in story.supervisor.state.hosts] == [Phase.LEFT, Phase.LOST]


def go_silent(agent: FakeAgent) -> None:
    agent.beats = False


def test_a_host_that_goes_silent_is_lost_after_its_lease(tell: Tell) -> None:
    story = tell(lease=20.0)
    story.at(5, lambda: go_silent(story.agents[1]))
    verdict = story.run()
    assert verdict.message == "the run failed: b has been silent for 20 s" and verdict.exit_code == 69
    assert 25 <= story.inbox.seconds < 27


def test_victims_wait_for_the_loss_of_a_host_that_is_quiet(tell: Tell) -> None:
    story = tell(deaf(), deaf())
    story.at(5, lambda: go_silent(story.agents[1]))
    die(story, 10, 0, 1, PEER)
    assert story.run().message == "the run failed: b has been silent for 10 s"


def test_a_process_that_failed_by_itself_is_the_cause_though_its_host_is_lost_next(tell: Tell) -> None:
    story = tell()
    die(story, 5, 3, 1, OWN)
    story.say_at(5, 1, End())
    assert story.run().process_id == 3


def test_a_launcher_that_was_away_blames_no_host(tell: Tell) -> None:
    story = tell()

    def sleep() -> None:
        story.inbox.seconds += 60
        for agent in story.agents:
            agent.say(End())

    story.at(5, sleep)
    verdict = story.run()
    assert verdict.outcome == "launcher away" and verdict.host is None and "away for 60 s" in verdict.message


def test_a_host_that_does_not_react_to_the_end_holds_nobody_up(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent({wire.Stop: lambda *_: []}))
    die(story, 5, 0, 1, OWN)
    assert story.run().process_id == 0
    assert story.inbox.seconds < 5 + 40
    assert "not all that process 2 3 printed was fetched from b" in story.shown


def test_pids_that_outlive_sigkill_are_told(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent({wire.Stop: lambda agent, _: [*agent.end_all(-9), wire.Bye([77, 78])]}))
    die(story, 5, 0, 1, OWN)
    story.run()
    assert "on b SIGKILL did not end process 77 78" in story.shown


# Hosts that lie.

LIES = {
    "the exit of a process that another host has": [wire.Exited(0, 1, EPOCH)],
    "the exit of a process that nobody has": [wire.Exited(99, 1, EPOCH)],
    "output of a process that nobody has": [wire.Output(99, b"x")],
    "the end of its output": [wire.Drained(99)],
    "stacks of another host's process": [wire.Stacks(1, b"x")],
    "a fact about another host's process": [wire.Fact("crash", 0, OWN)],
    "an exit code that is no number": [wire.Exited(2, "one", EPOCH)],  # type: ignore[arg-type]
    "a second hello": [wire.Hello(1, 2, "3.9", [])],
    "a port that nobody asked for": [wire.Reserved({"10.9.9.9": 1})],
    "facts without the time": [wire.Inspected({})],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_host_that_lies_is_lost_and_named(tell: Tell, lie: str) -> None:
    story = tell()
    story.say_at(5, 1, *LIES[lie])
    verdict = story.run()
    assert (verdict.host, verdict.message) == ("b", "the run failed: b broke the agent protocol"), verdict
    assert verdict.detail[0].startswith("it said ")
    assert story.supervisor.state.exits.keys() <= {0, 1}


GARBAGE = {
    "no message": wire.LENGTHS.pack(5, 0) + b"hello",
    "a message of no kind": wire.LENGTHS.pack(11, 0) + b'["Nope",{}]',
    "a frame without end": wire.LENGTHS.pack(1 << 31, 0),
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_the_end_of_a_stream_with_the_reason(tell: Tell, garbage: str) -> None:
    story = tell()
    story.say_at(5, 1, GARBAGE[garbage])
    verdict = story.run()
    assert (verdict.host, verdict.message) == ("b", "the run failed: b lost its agent")
    assert any("not a message" in line or "a frame of" in line for line in verdict.detail)


def test_what_a_process_says_in_its_own_way_harms_nobody(tell: Tell) -> None:
    story = tell()
    odd = [{"seconds": "long"}, {"step": None}, {}, {"facts": 1}]
    names = ["saves_when_stopped", "saved", "metrics", "dropped", "summary", "crash"]
    story.say_at(3, 0, *(wire.Fact(name, 0, detail) for name in names for detail in odd))
    story.say_at(3, 0, wire.Fact("joined", 0.0))  # type: ignore[arg-type]
    story.exit_at(5, 0, 1)
    assert story.run().process_id == 0


def test_a_goodbye_that_nobody_asked_for_is_a_loss(tell: Tell) -> None:
    story = tell()
    story.say_at(5, 1, wire.Bye([]), End())
    assert story.run().message == "the run failed: b lost its agent"


def test_words_after_the_goodbye_are_not_heard(tell: Tell) -> None:
    late = [wire.Exited(3, 9, EPOCH), wire.Output(2, b"late words"), wire.Hello(1, 2, "3", []), wire.Bye([5])]
    script = {wire.Stop: lambda agent, _: [*agent.end_all(-9)[:2], wire.Bye([]), *late, End()]}
    story = tell(FakeAgent({wire.Stop: lambda *_: []}), FakeAgent(script))
    die(story, 5, 0, 1, OWN)
    story.run()
    assert story.supervisor.state.exits == {0: 1, 2: -9}
    assert "late words" not in story.everything and "SIGKILL did not end" not in story.shown


def test_a_lost_host_that_comes_back_is_heard_for_its_output_alone(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent({wire.Stop: lambda *_: []}), keep_going=True)
    story.at(5, lambda: go_silent(story.agents[1]))
    story.say_at(20, 1, wire.Output(2, b"here again\n"), wire.Refused("no"), wire.Hello(1, 2, "3", []))
    story.exit_at(25, 0, 0)
    story.exit_at(25, 1, 0)
    verdict = story.run()
    assert verdict.exit_code == 69 and "here again" in story.shown and "host refused" not in story.events.getvalue()


# Runs that keep going, and runs that are preempted.


def test_a_run_that_keeps_going_ends_with_the_last_process_and_says_who_failed(tell: Tell) -> None:
    story = tell(keep_going=True)
    die(story, 5, 1, 3, OWN)
    story.say_at(8, 1, End())
    story.exit_at(60, 0, 0)
    verdict = story.run()
    assert story.inbox.seconds >= 60 and (verdict.process_id, verdict.exit_code) == (1, 3)
    assert "2 other processes were lost with a host." in verdict.detail
    assert "process 1 on a exited with 3; the others go on" in story.shown
    assert "b lost its agent; the others go on" in story.shown


def test_a_preempted_run(tell: Tell) -> None:
    story = tell()
    story.say_at(4, 0, wire.Fact("saved", 0, {"step": 120}))
    for process_id in range(4):
        story.exit_at(5 + 5 * process_id, process_id, 75)
    verdict = story.run()
    assert (verdict.outcome, verdict.exit_code) == ("preempted", 75) and "saved at step 120" in verdict.message
    assert "waiting for the others to leave as well as 0" in story.shown


@pytest.mark.parametrize(("number", "outcome", "exit_code"), [(TERM, "preempted", 75), (INT, "stopped", 130)])
def test_who_asks_processes_that_save_gets_them_saved(tell: Tell, number: int, outcome: str, exit_code: int) -> None:
    saving = {wire.Signal: lambda agent, _: [wire.Fact("saved", agent.running[0], {"step": 7}), *agent.end_all(75)]}
    story = tell(FakeAgent(saving), FakeAgent(saving))
    story.say_at(1, 0, wire.Fact("saves_when_stopped", 0, {"seconds": 60}))
    story.interrupt_at(5, number)
    verdict = story.run()
    assert (verdict.outcome, verdict.exit_code) == (outcome, exit_code) and "saved at step 7" in verdict.message
    assert [command.number for command in story.commands(1, wire.Signal)] == [TERM]


def save_slowly(tell: Tell, **settings: Any) -> Story:
    """Processes that ask for a minute to save, and are asked to stop after 5 s."""
    story = tell(deaf(), deaf(), **settings)
    story.say_at(1, 0, wire.Fact("saves_when_stopped", 0, {"seconds": 60}))
    story.interrupt_at(5, INT)
    return story


def test_a_save_that_takes_longer_than_a_stop_is_waited_for(tell: Tell) -> None:
    story = save_slowly(tell)
    for process_id in range(4):
        story.exit_at(40 + process_id, process_id, 75)
    assert story.run().message == "stopped by Ctrl-C" and story.supervisor.state.exits == dict.fromkeys(range(4), 75)
    assert "asked the processes to save and stop; up to 60 s (again: at once)" in story.shown


def test_a_save_that_never_ends_gets_the_time_it_asked_for(tell: Tell) -> None:
    story = save_slowly(tell)
    assert "4 processes did not stop within 60 s" in story.run().text()
    assert story.inbox.seconds == pytest.approx(65, abs=0.6)


def test_a_second_interrupt_ends_a_save_at_once(tell: Tell) -> None:
    story = save_slowly(tell)
    story.interrupt_at(9, INT)
    assert story.run().detail == [] and story.inbox.seconds < 10


def test_a_save_that_fails_is_the_verdict_and_nobody_waits_for_the_rest(tell: Tell) -> None:
    story = save_slowly(tell)
    die(story, 9, 2, 1, OWN)
    verdict = story.run()
    assert (verdict.outcome, verdict.process_id) == ("failed", 2) and story.inbox.seconds < 10


def test_a_host_lost_while_it_saves_is_the_verdict(tell: Tell) -> None:
    story = save_slowly(tell)
    story.say_at(9, 1, End())
    assert story.run().message == "the run failed: b lost its agent" and story.inbox.seconds < 10


def test_who_fails_after_another_was_preempted_is_the_culprit(tell: Tell) -> None:
    story = tell(deaf(), deaf())
    story.exit_at(5, 0, 75)
    die(story, 20, 3, 1, OWN)
    assert story.run().process_id == 3


def test_ctrl_c_stops_a_run_that_keeps_going_and_who_failed_is_told(tell: Tell) -> None:
    story = tell(keep_going=True)
    die(story, 5, 1, 7)
    story.interrupt_at(9, INT)
    verdict = story.run()
    assert (verdict.exit_code, verdict.message) == (130, "stopped by Ctrl-C")
    assert verdict.detail[0] == "process 1 on a exited with 7"


# Interrupts at every moment.


def before_hello() -> list[FakeAgent]:
    return [FakeAgent(), FakeAgent(hello=())]


def while_preparing() -> list[FakeAgent]:
    return [FakeAgent(), FakeAgent({wire.PrepareWorkers: lambda *_: []})]


def while_running() -> list[FakeAgent]:
    return [FakeAgent(), FakeAgent()]


def while_running_deaf() -> list[FakeAgent]:
    return [FakeAgent(), deaf()]


MOMENTS = {
    "before a host says hello": (before_hello, 0),
    "while a host prepares": (while_preparing, 0),
    "while processes run": (while_running, 0),
    "while processes run that ignore it": (while_running_deaf, 3),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [INT, TERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_at_any_moment_ends_the_run_and_everybody_in_it(
    tell: Tell, moment: str, number: int, times: int
) -> None:
    make, grace = MOMENTS[moment]
    story = tell(*make())
    story.interrupt_at(5, *[number] * times)
    verdict = story.run()
    assert (verdict.outcome, verdict.exit_code) == ("stopped", 128 + number)
    assert story.inbox.seconds == pytest.approx(5 + (grace if times == 1 else 0), abs=0.6)
    state = story.supervisor.state
    assert all(agent.is_over for agent in story.agents) and (not state.spawned or len(state.exits) == 4)
    assert times == 2 or story.commands(0, wire.Stop), "who has asked twice does not wait for an answer"
    assert state.spawned is ("run" in moment)
    assert ("2 processes did not stop within 3 s" in verdict.text()) is (grace > 0 and times == 1)


@pytest.mark.parametrize(("moments", "end"), [([12], 12), ([7, 12], 12), ([7, 7.5, 8], 8), ([7], 35)])
def test_an_interrupt_while_the_run_ends_ends_the_wait_but_not_the_verdict(
    tell: Tell, moments: list[float], end: float
) -> None:
    """The first six seconds are for processes to end, which only a second request cuts short; then comes output."""
    story = tell(FakeAgent(), FakeAgent({wire.Stop: lambda *_: []}))
    die(story, 5, 0, 4, OWN)
    for moment in moments:
        story.interrupt_at(moment, INT)
    verdict = story.run()
    assert (verdict.process_id, verdict.exit_code) == (0, 4)
    assert story.inbox.seconds == pytest.approx(end, abs=0.6)


def test_a_second_interrupt_ends_the_grace_of_the_first(tell: Tell) -> None:
    story = tell(deaf(), deaf(), grace=30.0)
    story.interrupt_at(5, INT)
    story.interrupt_at(9, INT)
    verdict = story.run()
    assert verdict.exit_code == 130 and story.inbox.seconds < 10
    assert [command.number for command in story.commands(0, wire.Signal)] == [INT], "processes are asked once"


def test_a_run_cannot_be_suspended(tell: Tell) -> None:
    story = tell()
    story.interrupt_at(3, signal.SIGTSTP)
    for process_id in range(4):
        story.exit_at(5, process_id, 0)
    assert story.run().exit_code == 0 and "a run cannot be suspended" in story.shown


def test_after_the_run_only_a_second_request_counts(tell: Tell) -> None:
    story = tell()
    story.interrupt_at(3, INT)
    story.run()
    assert not story.supervisor.asked_again()
    story.supervisor.interrupt(INT)
    assert story.supervisor.asked_again()


# Secrets.


SAYS = f"cannot log in with {TOKEN}!"
WITH_SECRETS: dict[str, list[Any]] = {
    "output": [wire.Output(2, f"{SAYS}\n".encode())],
    "output in two pieces": [wire.Output(2, TOKEN[:9].encode()), wire.Output(2, f"{TOKEN[9:]}\n".encode())],
    "last words": [wire.Exited(2, 1, EPOCH, 0.0, f"{SAYS}\n".encode())],
    "last words that begin in it": [wire.Exited(2, 1, EPOCH, 0.0, TOKEN[9:].encode() + b"z" * 16384)],
    "an exception": [crash(2, {**OWN, "message": SAYS, "traceback": SAYS, "explained": True})],
    "a place": [crash(2, {**OWN, "place": f"/{TOKEN}.py:8"})],
    "stacks": [wire.Stacks(2, SAYS.encode())],
    "a dead nursery": [wire.Fact("nursery_died", None, {"problem": SAYS, "code": 1, "said": SAYS})],
    "a nursery that failed": [wire.Fact("nursery_failed", None, {"problem": SAYS, "code": 1, "said": SAYS})],
    "a fact of no kind": [wire.Fact(f"named {TOKEN}", 2, {SAYS: SAYS, "deep": [{"x": SAYS}]})],
    "metrics": [wire.Fact("metrics", 2, {"reports": [{"step": 1, "values": {SAYS: SAYS}}], "changes": []})],
    "a summary": [wire.Fact("summary", 2, {"said": SAYS})],
    "a refusal": [wire.Refused(SAYS, SAYS)],
    "what setup printed": [wire.SetupOutput(f"{SAYS}\n".encode())],
    "no message": [wire.LENGTHS.pack(len(SAYS), 0) + SAYS.encode()],
    "a message of no kind": [wire.LENGTHS.pack(len(json.dumps([SAYS, {}])), 0) + json.dumps([SAYS, {}]).encode()],
    "a path": [wire.Ready(f"/{TOKEN}/python")],
    "facts": [wire.Inspected({"time": EPOCH, "devices": {}, "python": {"problem": SAYS, "code": 1, "said": SAYS}})],
    "what went wrong with the stream": [RuntimeError(SAYS)],
}


@pytest.mark.parametrize("says", WITH_SECRETS)
@pytest.mark.parametrize("ends", ["failed", "lost"])
def test_no_word_of_an_agent_brings_a_secret_to_light(tell: Tell, says: str, ends: str) -> None:
    story = tell(secrets={"TOKEN": TOKEN}, metrics="all")
    story.say_at(3, 1, *WITH_SECRETS[says])
    if ends == "failed":
        story.exit_at(6, 2, 1, f"{SAYS}\n".encode())
    else:
        story.say_at(6, 1, End())
    verdict = story.run()
    assert verdict.exit_code != 0
    assert leaks(story.everything + repr(verdict), TOKEN) == []


def test_processes_get_the_secrets_and_nobody_else_does(tell: Tell) -> None:
    story = tell(secrets={"TOKEN": TOKEN})
    story.exit_at(2, 0, 1)
    verdict = story.run()
    (order,) = story.commands(1, wire.PrepareWorkers)
    assert order.env["TOKEN"] == TOKEN
    assert leaks(story.everything + repr(verdict), TOKEN) == []


# What a run says while it waits.


def test_a_run_says_who_has_not_joined(tell: Tell) -> None:
    story = tell()
    story.say_at(2, 0, wire.Fact("joining", 0), wire.Fact("joining", 1))
    story.say_at(2, 1, wire.Fact("joining", 2))
    story.exit_at(15, 3, 1)
    story.run()
    assert "process 3 has not called jax.distributed.initialize; others wait" in story.shown


def test_a_run_says_which_host_starts_nothing(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent({wire.Spawn: lambda *_: []}))
    story.exit_at(15, 0, 1)
    story.run()
    assert "after 10 s waiting for b to start processes" in story.shown


# Hosts that an engine has taken away.


class Landlord:
    """An engine that says why, at once or never."""

    name = "Kubernetes"

    def __init__(self, story: Any, said: str | None, answers: bool = True) -> None:
        self.said = said
        story.supervisor.explaining._engine = self
        story.supervisor.explaining.begin = lambda work: work() if answers else None

    def acquire(self) -> None: ...

    def explain(self, host_name: str) -> str | None:
        return f"{host_name} was {self.said}" if self.said else None

    def release(self) -> None: ...


def test_the_engines_word_on_a_lost_host_is_part_of_the_verdict(tell: Tell) -> None:
    story = tell()
    Landlord(story, "evicted (low on memory)")
    story.say_at(5, 1, End())
    verdict = story.run()
    wanted = "the run failed: b lost its agent; Kubernetes says: b was evicted (low on memory)"
    assert (verdict.exit_code, verdict.host, verdict.message) == (69, "b", wanted)
    assert "Kubernetes says: b was evicted (low on memory)" in verdict.evidence
    assert story.inbox.seconds < 7


def test_an_engine_that_has_nothing_to_say_holds_up_nobody(tell: Tell) -> None:
    story = tell()
    Landlord(story, None)
    story.say_at(5, 1, End())
    assert story.run().message == "the run failed: b lost its agent" and story.inbox.seconds < 7


def test_the_verdict_waits_for_a_silent_engine_only_some_seconds(tell: Tell) -> None:
    story = tell()
    Landlord(story, "evicted", answers=False)
    story.say_at(5, 1, End())
    assert story.run().message == "the run failed: b lost its agent" and 8 <= story.inbox.seconds < 11


def test_the_engines_word_on_a_host_that_never_came_is_told(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent(hello=[Unreachable("no stream")]))
    Landlord(story, "OOMKilled")
    assert "no stream; Kubernetes says: b was OOMKilled" in story.run().text()
