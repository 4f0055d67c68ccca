"""The stories of start-up, of a run and of `launch check`, told with scripted agents: no process, no sleep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_agent import HELLO, End, FakeAgent
from stories import EPOCH, FakeInbox, Story, names_of, plan_of
from test_secrets import TOKEN, leaks

from hostmesh.launcher.check import Checker
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.planning.plan import plan_json
from hostmesh.launcher.preflight.host_reports import HostReports
from hostmesh.launcher.protocol import wire

FACTS = {"time": EPOCH, "devices": {}}

Tell = Callable[..., Story]


def never(*_: Any) -> list[Any]:
    return []


def say(*words: Any) -> Callable[..., list[Any]]:
    return lambda *_: list(words)


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    return lambda *agents, **settings: Story(tmp_path, agents, **settings)


def silent(*words: Any) -> FakeAgent:
    agent = FakeAgent(hello=words)
    agent.beats = False
    return agent


class Check:
    """`launch check` of hosts a, b, … up to what its agents found."""

    def __init__(self, *agents: FakeAgent, timeout: float = 120.0, hidden: tuple[str, ...] = (), **settings: Any):
        self.agents, self.inbox = agents, FakeInbox(agents)
        self.plan = plan_of("abcdefgh"[: len(agents)], **settings)
        self._checker = Checker(self.plan, agents, b"agent", hidden, timeout, self.inbox)
        self.inbox.channels = self._checker.channels

    def run(self) -> HostReports:
        try:
            return self._checker.run()
        finally:
            self._checker.close()


# Hosts without an agent.

BANNER = b"Welcome to b\n"
WITHOUT_AGENT: dict[str, tuple[list[Any], str]] = {
    "it cannot be reached": ([Unreachable("no route to b")], "no route to b"),
    "its stream ends without a word": ([End()], "its agent did not start: its stream ended, and nothing was said"),
    "its stream ends after a banner": ([BANNER, End()], "its agent did not start: Welcome to b"),
    "its Python is missing": ([b"sh: 1: python3: not found\n", End()], "found no python3 for the agent"),
    "it never answers": ([], "its agent did not start: it has been silent for {hello:g} s, and nothing was said"),
    "it prints a banner and never answers": ([BANNER], "its agent did not start: Welcome to b"),
    "it sends garbage": ([wire.MAGIC, b"\xff" * 64], "its agent did not start: a frame of"),
    "it speaks before its hello": ([wire.MAGIC, wire.Ready("p")], "its agent did not start: it said Ready before"),
    "its stream fails": ([RuntimeError("boom")], "its agent did not start: its stream failed: RuntimeError: boom"),
}


@pytest.mark.parametrize("how", WITHOUT_AGENT)
def test_a_host_without_an_agent_is_told_and_the_others_are_left_alone(tell: Tell, how: str) -> None:
    words, problem = WITHOUT_AGENT[how]
    story = tell(FakeAgent(), silent(*words), FakeAgent())
    verdict = story.run()
    assert (verdict.exit_code, verdict.host) == (69, "b")
    assert verdict.message == "nothing was started: b cannot be used"
    assert verdict.detail[0].startswith(f"b: {problem.format(hello=45.3)}"), verdict.detail
    assert set(names_of(story.agents[2].heard)) <= {"Lease", "Stop", "Beat"}


@pytest.mark.parametrize("how", WITHOUT_AGENT)
def test_a_check_tells_the_same_and_looks_at_the_others(how: str) -> None:
    words, problem = WITHOUT_AGENT[how]
    found = Check(FakeAgent(), silent(*words), FakeAgent()).run()
    assert list(found.unreachable) == [1] and found.facts.keys() == {0, 2}
    assert found.unreachable[1].startswith(problem.format(hello=45.3)), found.unreachable
    assert found.ports == {2: None} and found.coordinator is None


def test_every_host_that_cannot_be_reached_is_told_at_once(tell: Tell) -> None:
    hosts = [FakeAgent(hello=[Unreachable("no route")]), FakeAgent(), FakeAgent(hello=[End()])]
    verdict = tell(*hosts).run()
    assert verdict.message == "nothing was started: 2 of 3 hosts cannot be used"
    assert verdict.detail[0] == "a: no route" and verdict.detail[1].startswith("c: its agent did not start")


def test_a_host_that_is_still_connecting_is_not_silent(tell: Tell) -> None:
    connecting = FakeAgent(hello=())
    connecting.is_open = False
    story = tell(FakeAgent(), connecting)
    story.say_at(200, 1, Unreachable("no answer to ssh"))
    assert story.run().detail == ["b: no answer to ssh"] and story.inbox.seconds >= 200
    assert "after 10 s waiting for b to connect" in story.shown


def test_a_hello_that_comes_too_late_changes_nothing(tell: Tell) -> None:
    connecting = FakeAgent(hello=())
    connecting.is_open = False
    story = tell(FakeAgent(hello=()), connecting)
    story.say_at(50, 0, wire.MAGIC, HELLO)
    story.say_at(55, 1, Unreachable("no route"))
    verdict = story.run()
    assert story.inbox.seconds >= 55 and verdict.message == "nothing was started: 2 of 2 hosts cannot be used"


# Hosts that refuse.


def test_refusals_are_told_together_with_what_was_printed(tell: Tell) -> None:
    refusing = {wire.PrepareWorkers: say(wire.Refused("no Python there", "line 1\nline 2\n"))}
    story = tell(FakeAgent(refusing), FakeAgent({wire.PrepareWorkers: say(wire.Refused("Too many open files"))}))
    verdict = story.run()
    assert (verdict.outcome, verdict.exit_code, verdict.message) == ("refused", 2, "nothing was started")
    assert verdict.detail[:4] == ["a: no Python there", "  line 1", "  line 2", "b: Too many open files"]
    assert "raise ulimit -n there" in verdict.detail[4], "a known cause comes with its remedy"
    assert not story.commands(0, wire.Spawn) and not story.commands(1, wire.Spawn)


def test_a_refusal_waits_for_the_others_but_not_for_ever(tell: Tell) -> None:
    refusing = FakeAgent({wire.PrepareWorkers: say(wire.Refused("no"))})
    story = tell(refusing, FakeAgent({wire.PrepareWorkers: never}))
    assert story.run().detail == ["a: no"]
    assert 10 <= story.inbox.seconds < 12


def test_a_host_that_is_unreachable_is_told_beside_what_others_refused(tell: Tell) -> None:
    story = tell(FakeAgent({wire.Reserve: say(wire.Refused("no address to bind"))}), FakeAgent(hello=()))
    story.say_at(5, 1, End())
    verdict = story.run()
    assert verdict.host == "b" and verdict.detail[-1] == "a: no address to bind"


def test_a_host_lost_while_it_prepares_is_the_verdict(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent({wire.PrepareWorkers: say(End())}))
    verdict = story.run()
    assert (verdict.exit_code, verdict.message) == (69, "the run failed: b lost its agent")


def test_a_host_that_goes_silent_while_it_prepares_is_lost(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent({wire.PrepareWorkers: never}))
    story.at(12, lambda: setattr(story.agents[1], "beats", False))
    assert story.run().message == "the run failed: b has been silent for 10 s"
    assert "after 10 s waiting for b to be ready" in story.shown


def test_an_address_that_a_host_cannot_reach_is_refused(tell: Tell) -> None:
    unable = FakeAgent({wire.Reach: say(wire.Reached({"10.0.0.1": "timed out"}))})
    verdict = tell(FakeAgent(), unable, FakeAgent()).run()
    assert verdict.detail == ["b: cannot reach the coordinator on a at 10.0.0.1:4711: timed out"]


def test_an_address_that_was_not_tried_is_not_taken(tell: Tell) -> None:
    verdict = tell(FakeAgent(), FakeAgent({wire.Reach: say(wire.Reached({}))})).run()
    assert verdict.detail == ["b: cannot reach the coordinator on a at 10.0.0.1:4711: it was not tried"]


LIES = {
    "a second hello": {wire.Lease: say(HELLO)},
    "ready before it was asked": {wire.Lease: say(wire.Ready("p"))},
    "inspected before it was asked": {wire.Lease: say(wire.Inspected({"time": EPOCH}))},
    "the exit of a process that was not started": {wire.PrepareWorkers: say(wire.Exited(2, 0, EPOCH))},
    "a port that it was not asked for": {wire.PrepareWorkers: say(wire.Reserved({"10.0.0.9": 1}))},
    "facts without the time": {wire.Inspect: say(wire.Inspected({}))},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_host_that_lies_is_lost_before_anything_starts(tell: Tell, lie: str) -> None:
    others = [FakeAgent(), FakeAgent(hello=())] if wire.Lease in LIES[lie] else [FakeAgent()]
    story = tell(others[0], FakeAgent(LIES[lie]), *others[1:])
    verdict = story.run()
    assert (verdict.host, verdict.message) == ("b", "the run failed: b broke the agent protocol")
    assert not story.commands(0, wire.Spawn)


@pytest.mark.parametrize(
    "lie", [HELLO, wire.Inspected({}), wire.Exited(2, 0, EPOCH), wire.Output(2, b"x"), wire.Reserved({"10.0.0.9": 1})]
)
def test_a_check_names_a_host_that_lies(lie: Any) -> None:
    found = Check(FakeAgent(), FakeAgent({wire.Inspect: say(lie)})).run()
    assert found.facts.keys() == {0} and found.unreachable[1].startswith("its agent did not start: it said ")


# What is done on hosts.


def test_hosts_are_prepared_in_order_and_then_start_together(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent(), env={"X": "1"})
    for process_id in range(4):
        story.exit_at(3, process_id, 0)
    assert story.run().exit_code == 0
    first, second = (names_of(agent.heard) for agent in story.agents)
    assert first[:5] == ["Lease", "Reserve", "Code", "PrepareWorkers", "Inspect"]
    assert first[5:] == ["Spawn", "Spawn", "ShareCompiled", "Stop"]
    assert sorted(second) == sorted(["Lease", "Reach", "Code", "PrepareWorkers", "Inspect", "Spawn", "Spawn", "Stop"])
    order = story.commands(1, wire.Spawn)[0]
    assert order.env["HOSTMESH_COORDINATOR_ADDRESS"] == "10.0.0.1:4711" and order.argv == ["train"]


def test_processes_on_this_machine_need_no_inspection_and_no_trial(tell: Tell) -> None:
    story = tell(FakeAgent(), FakeAgent(), transport="local", env={"JAX_PLATFORMS": "cpu"})
    story.exit_at(3, 0, 1)
    story.run()
    assert not {"Inspect", "Reach"} & {name for agent in story.agents for name in names_of(agent.heard)}


def test_nothing_is_done_before_all_hosts_have_an_agent(tell: Tell) -> None:
    late = FakeAgent(hello=())
    story = tell(FakeAgent(), late)
    heard: list[str] = []
    story.at(20, lambda: heard.extend(names_of(story.agents[0].heard)))
    story.at(21, lambda: (setattr(late, "beats", True), late.say(wire.MAGIC, HELLO)))
    story.exit_at(30, 3, 7)
    assert story.run().exit_code == 7
    assert set(heard) <= {"Lease", "Reserve", "Beat"}


def test_setup_is_run_and_what_it_prints_is_kept(tell: Tell) -> None:
    from hostmesh.launcher.cluster.model import Setup

    printing = {wire.RunSetup: say(wire.SetupOutput(b"installing\n"), wire.SetupDone(True, 2.5))}
    story = tell(FakeAgent(), FakeAgent(printing), setup=Setup(("pip install x",)))
    story.exit_at(3, 0, 1)
    story.run()
    assert "set up b in 2.5 s" in story.shown
    assert (story.record.logs / "setup-001.log").read_text() == "installing\n"
    assert story.commands(0, wire.RunSetup)[0].commands == ["pip install x"]


def test_the_gpus_of_a_host_are_its_own_and_the_plan_stays(tell: Tell) -> None:
    def with_gpus(**more: Any) -> FakeAgent:
        return FakeAgent({wire.Inspect: say(wire.Inspected({"time": EPOCH, "devices": {"cuda": 4}, **more}))})

    story = tell(with_gpus(), with_gpus(visible={"CUDA_VISIBLE_DEVICES": "4,5,6,7"}))
    planned = json.dumps(plan_json(story.plan))
    story.exit_at(3, 0, 1)
    story.run()
    shown = [[order.env["CUDA_VISIBLE_DEVICES"] for order in story.commands(host, wire.Spawn)] for host in (0, 1)]
    assert shown == [["0,1", "2,3"], ["4,5", "6,7"]]
    assert json.dumps(plan_json(story.plan)) == planned


def test_gpus_that_do_not_split_are_refused(tell: Tell) -> None:
    odd = {wire.Inspect: say(wire.Inspected({"time": EPOCH, "devices": {"cuda": 3}}))}
    verdict = tell(FakeAgent(odd), FakeAgent(odd)).run()
    assert verdict.exit_code == 2 and "found 3 GPUs for 2 processes" in verdict.detail[0]


def test_a_proxy_of_one_host_is_bypassed_there_alone(tell: Tell) -> None:
    facts = {"time": EPOCH, "devices": {}, "proxies": {"http_proxy": "http://proxy:3128", "no_proxy": ".corp"}}
    story = tell(FakeAgent(), FakeAgent({wire.Inspect: say(wire.Inspected(facts))}))
    story.exit_at(3, 0, 1)
    story.run()
    assert "no_proxy" not in story.commands(0, wire.Spawn)[0].env
    assert story.commands(1, wire.Spawn)[0].env["no_proxy"] == ".corp,10.0.0.1"


# Secrets.

SAYS = f"cannot log in with {TOKEN}!"
SECRETIVE: dict[str, Callable[[], FakeAgent]] = {
    "a banner": lambda: FakeAgent(hello=[SAYS.encode(), End()]),
    "a banner, and silence": lambda: silent(SAYS.encode()),
    "why there is no stream": lambda: FakeAgent(hello=[Unreachable(SAYS)]),
    "a refusal": lambda: FakeAgent({wire.PrepareWorkers: say(wire.Refused(SAYS, SAYS))}),
    "a cut refusal": lambda: FakeAgent({wire.PrepareWorkers: say(wire.Refused("no", TOKEN[9:] + "x" * 5000))}),
    "facts": lambda: FakeAgent({wire.Inspect: say(wire.Inspected({**FACTS, "disk": {"problem": SAYS}}))}),
    "what went wrong with a port": lambda: FakeAgent({wire.Reach: say(wire.Reached({"10.0.0.1": SAYS}))}),
}


@pytest.mark.parametrize("says", SECRETIVE)
def test_no_word_of_a_host_that_does_not_start_brings_a_secret_to_light(tell: Tell, says: str) -> None:
    story = tell(FakeAgent(), SECRETIVE[says](), secrets={"TOKEN": TOKEN})
    story.exit_at(60, 0, 1)
    assert story.run().exit_code != 0 and leaks(story.everything, TOKEN) == []


@pytest.mark.parametrize("says", sorted(SECRETIVE.keys() - {"what went wrong with a port"}))
def test_what_a_check_is_told_has_no_secret_in_it(says: str) -> None:
    assert leaks(repr(Check(FakeAgent(), SECRETIVE[says](), hidden=(TOKEN,)).run()), TOKEN) == []


# A check.


def test_a_check_inspects_each_host_and_prepares_none() -> None:
    check = Check(FakeAgent(), FakeAgent(), FakeAgent())
    found = check.run()
    assert found.facts.keys() == {0, 1, 2} and found.ports == {1: None, 2: None} and found.coordinator == "10.0.0.1"
    assert found.unreachable == {} and found.offsets[0] == (0.0, 0.0)
    heard = [sorted(names_of(agent.heard)) for agent in check.agents]
    assert heard == [["Inspect", "Lease", "Reserve"], *[["Inspect", "Lease", "Reach"]] * 2]
    assert all(order.thorough for agent in check.agents for order in agent.heard if isinstance(order, wire.Inspect))


def test_a_check_of_one_host_or_of_this_machine_tries_no_port() -> None:
    assert Check(FakeAgent()).run().ports == {}
    local = Check(FakeAgent(), FakeAgent(), transport="local")
    assert local.run().ports == {} and names_of(local.agents[0].heard) == ["Lease", "Inspect"]


def test_a_check_does_not_wait_for_a_slow_host_to_look_at_the_others() -> None:
    slow = FakeAgent(hello=())
    check = Check(FakeAgent(), slow, FakeAgent())
    check.inbox.acts = [(30, lambda: slow.say(wire.MAGIC, HELLO))]
    found = check.run()
    assert check.inbox.seconds >= 30 and found.facts.keys() == {0, 1, 2}
    assert found.ports == {1: None, 2: None}


OUT_OF_TIME = "within 20 s; --timeout gives it longer"


def test_a_check_has_its_time_and_says_how_far_each_host_came() -> None:
    connecting = FakeAgent(hello=())
    connecting.is_open = False
    hosts = FakeAgent(), FakeAgent({wire.Inspect: never}), connecting, FakeAgent({wire.Reach: never})
    check = Check(*hosts, timeout=20)
    found = check.run()
    assert found.unreachable == {
        1: f"it is connected, but has not finished looking around {OUT_OF_TIME}",
        2: f"not connected {OUT_OF_TIME}",
    }
    assert found.ports == {1: None, 3: f"it has not tried the coordinator's port {OUT_OF_TIME}"}
    assert 20 <= check.inbox.seconds < 21.5


def test_a_check_goes_on_without_the_first_host(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can try a port that it does not hold."""
    without = FakeAgent(hello=())
    check = Check(without, FakeAgent(), FakeAgent())
    found = check.run()
    assert list(found.unreachable) == [0] and found.facts.keys() == {1, 2} and found.ports == {}
    assert "launch: after 6 s waiting for a, b, c …" in capsys.readouterr().err


def test_a_check_tells_why_the_first_host_holds_no_port() -> None:
    found = Check(FakeAgent({wire.Reserve: say(wire.Refused("no address to bind"))}), FakeAgent()).run()
    assert found.ports == {0: "no address to bind"} and found.facts.keys() == {0, 1} and found.unreachable == {}


def test_a_check_tells_who_cannot_reach_the_coordinator() -> None:
    unable = FakeAgent({wire.Reach: say(wire.Reached({"10.0.0.1": "timed out"}))})
    found = Check(FakeAgent(), unable, FakeAgent()).run()
    assert found.ports == {1: "cannot reach the coordinator on a at 10.0.0.1:4711: timed out", 2: None}


def test_a_check_counts_a_host_lost_after_its_hello_as_unreachable() -> None:
    found = Check(FakeAgent(), FakeAgent({wire.Inspect: say(End())})).run()
    assert found.unreachable[1].startswith("its agent did not start") and found.facts.keys() == {0}
