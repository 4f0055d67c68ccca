"""Processes that live and do not move: what each does, who holds the others up, when it is told and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, Launch, LiveRun, Script, Start, processes_of
from fake_agent import HELLO, FakeAgent
from stories import Story

from hostmesh.launcher.cluster.model import HangTimeout
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.programs.disagreement import Missing, Side
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.stuck.activity import Activity, Doing, find_activity, gather
from hostmesh.launcher.supervisor.stuck.diagnosis import diagnose
from hostmesh.launcher.supervisor.stuck.limits import find_limit
from hostmesh.launcher.supervisor.stuck.network import NetworkTrial, find_addresses
from hostmesh.launcher.supervisor.stuck.stacks import parse_stacks
from hostmesh.launcher.supervisor.stuck.telling import make_plural

LIBRARIES = "/venv/lib/python3.11/site-packages"
IN_JAX = f'  File "{LIBRARIES}/jax/_src/array.py", line 660 in _value\n  File "/job/train.py", line 41 in main\n'
IN_SCRIPT = '  File "/job/train.py", line 41 in main\n'
ASLEEP = '  File "/job/train.py", line 30 in read\n  File "/job/train.py", line 41 in main\n'
IN_LOCK = f'  File "/usr/lib/python3.11/threading.py", line 327 in wait\n{IN_SCRIPT}'
IN_PROGRAM = f'  File "/usr/lib/python3.11/subprocess.py", line 1264 in wait\n{IN_SCRIPT}'
LOADER = '  File "/tmp/hostmesh-x.0/code/hostmesh/worker/loading/ahead/prefetch.py", line 146 in _run\n'
IN_BARRIER = '  File "/tmp/hostmesh-x.0/code/hostmesh/worker/process/coordination.py", line 9 in exchange\n' + IN_SCRIPT
CALLED_BACK = f'  File "/job/train.py", line 7 in log\n  File "{LIBRARIES}/jax/_src/callback.py", line 50 in call\n'


def dump(*threads: str) -> bytes:
    heads = ["Current thread 0x00007f00 (most recent call first):\n", "Thread 0x00007f01 (most recent call first):\n"]
    return "\n".join(heads[min(number, 1)] + frames for number, frames in enumerate(threads)).encode()


def test_the_oldest_thread_of_a_dump_is_the_main_one() -> None:
    stacks = parse_stacks(dump(LOADER, IN_JAX).decode())
    assert str(stacks.place) == "train.py:41 in main" and stacks.waits_in_jax
    assert [len(frames) for frames in stacks.others] == [1]
    assert parse_stacks(dump(LOADER, IN_JAX).decode() + "...\n").main == ()  # there were more threads than it shows
    assert parse_stacks("").main == ()


def known(stack: str = IN_SCRIPT, phase: str = "step", others: tuple[str, ...] = (), **given: Any) -> Any:
    state = "T" if given.pop("stopped", False) else ""
    progress = Progress(0.0, wire.Observed(2, state, 7, phase, is_kept=bool(phase)))
    facts = {name: given.pop(name) for name in ("exit_code", "has_joined", "others_join") if name in given}
    progress.note_examined(wire.Examined(2, given, dump(*others, stack) if stack else b""), 1.0)
    return find_activity(gather(2, "gpu-b", progress, **facts))


@pytest.mark.parametrize(
    ("found", "doing", "text"),
    [
        (known(stopped=True), Doing.STOPPED, "is stopped (SIGSTOP, or a debugger) after step 7"),
        (known(state="T"), Doing.STOPPED, "is stopped"),
        (known(exit_code=0), Doing.LEFT, "has left with exit code 0 after step 7"),
        (known(phase="leaving"), Doing.LEFT, "has ended its script after step 7"),
        (
            known(state="D", cores=0.0, wait={"path": "/data/x"}),
            Doing.DISK,
            "waits for a disk (/data/x) at train.py:41",
        ),
        (known(state="D", cores=0.9, library="python3.11"), Doing.SLEEPING, ""),
        (known(), Doing.UNKNOWN, "is at train.py:41 in main"),  # it may call a jitted function there
        (known(phase="compiling", state="D"), Doing.COMPILING, "is compiling at train.py:41 in main"),
        (known(IN_JAX), Doing.WAITING, "waits in step 7 at train.py:41 in main"),
        (known(IN_JAX, phase=""), Doing.WAITING, "waits at train.py:41 in main"),
        (known(library="libjax_common.so"), Doing.WAITING, "waits in step 7 at train.py:41 in main"),
        (known(IN_BARRIER), Doing.WAITING, ""),
        (known(IN_JAX, cores=1.0), Doing.WORKING, "computes in jax in step 7 at train.py:41 in main"),
        (known(library="libpython3.11.so.1.0"), Doing.SLEEPING, "sleeps or waits for a lock at train.py:41 in main"),
        (known(IN_LOCK), Doing.SLEEPING, ""),
        (
            known(main_cores=1.0),
            Doing.COMPUTING,
            "computes at train.py:41 in main, in native code or a loop (1.0 cores)",
        ),
        (known(state="R", main_cores=0.1), Doing.COMPUTING, ""),
        (
            known(IN_PROGRAM, programs=["sleep 9"]),
            Doing.PROGRAM,
            "runs another program (`sleep 9`) at train.py:41 in main",
        ),
        (known(IN_JAX, others=(CALLED_BACK,)), Doing.CALLBACK, "is in a callback at train.py:7 in log"),
        (known(phase="saving"), Doing.SAVING, "is saving at train.py:41 in main"),
        (known("", cores=0.0), Doing.UNKNOWN, "does not say where it is"),
        (known(has_joined=False, others_join=True), Doing.NOT_JOINED, "has not called jax.distributed.initialize"),
        (known(has_joined=False, others_join=True, phase="joining"), Doing.JOINING, "waits for all processes to join"),
        (
            known(IN_LOCK, "loading", (ASLEEP + LOADER,), reading={"step": 8, "row": 512, "source": "digits:train"}),
            Doing.LOADING,
            "is loading step 9 from digits:train (record 512) at train.py:30 in read",
        ),
        (known(IN_LOCK, "loading", reading="nonsense"), Doing.LOADING, "is loading step 8"),
    ],
)
def test_what_a_process_does(found: Activity, doing: Doing, text: str) -> None:
    assert found.doing is doing and found.text.startswith(text), found


def doing(*kinds: Doing, places: Iterable[str] = (), cores: float = 0.0) -> list[Activity]:
    where = list(places) or ["train.py:41"] * len(kinds)
    return [Activity(n, "gpu-b", kind, "", where[n], 7, "step", cores) for n, kind in enumerate(kinds)]


WAIT, SLEEP, LOAD = Doing.WAITING, Doing.SLEEPING, Doing.LOADING


@pytest.mark.parametrize(
    ("activities", "culprits"),
    [
        (doing(WAIT, WAIT, Doing.STOPPED), [2]),
        (doing(Doing.STOPPED, SLEEP, Doing.COMPUTING), [0]),  # it may be why the others do not go on
        (doing(WAIT, Doing.LEFT, WAIT), [1]),
        (doing(Doing.LEFT, Doing.LEFT), []),
        (doing(Doing.LEFT, Doing.LEFT, SLEEP), [2]),  # the others are done
        (doing(Doing.LEFT, WAIT, SLEEP), [2]),
        (doing(SLEEP, WAIT, WAIT), [0]),
        (doing(SLEEP, WAIT), [0]),
        (doing(SLEEP, LOAD, WAIT), [0, 1]),
        (doing(Doing.COMPILING, WAIT), [0]),
        (doing(SLEEP, SLEEP, SLEEP), []),
        (doing(Doing.UNKNOWN, WAIT, WAIT), []),
        (doing(WAIT, WAIT, WAIT), []),
        (doing(WAIT, WAIT, WAIT, places=["a.py:1", "a.py:1", "a.py:2"]), [2]),
        (doing(WAIT, WAIT, places=["a.py:1", "a.py:2"]), []),
        (doing(WAIT, WAIT, WAIT, WAIT, places=["a.py:1", "a.py:1", "a.py:2", "a.py:2"]), []),
        (doing(WAIT, WAIT, Doing.WORKING), [2]),
        (doing(WAIT, WAIT, Doing.WORKING, cores=0.4), []),  # on some devices who waits computes as well
        (doing(Doing.NOT_JOINED, Doing.JOINING), [0]),
        (doing(Doing.JOINING, Doing.JOINING), []),
    ],
)
def test_who_holds_the_others_up(activities: list[Activity], culprits: list[int]) -> None:
    assert [each.process_id for each in diagnose(activities).culprits] == culprits


@pytest.mark.parametrize(
    ("callers", "lacking", "culprits"),
    [((2,), (0, 1, 3), [2]), ((0, 1, 3), (2,), [2]), ((0, 1), (2, 3), []), ((2,), (0,), [])],
)
def test_who_runs_another_program(callers: tuple[int, ...], lacking: tuple[int, ...], culprits: list[int]) -> None:
    missing = Missing(Side("jit_other", "train.py:9", (), "", callers), lacking)
    found = diagnose(doing(WAIT, WAIT, WAIT, WAIT), None, missing)
    assert [each.process_id for each in found.culprits] == culprits
    assert not culprits or "another program than the others" in found.culprits[0].text
    assert diagnose(doing(WAIT, SLEEP, WAIT, WAIT), None, missing).culprits[0].process_id == 1


@pytest.mark.parametrize(
    ("callers", "lacking", "communicates", "culprits"),
    [((2,), (0, 1, 3), True, [2]), ((2,), (0, 1, 3), False, [0, 1, 3]), ((0, 1, 3), (2,), True, [2])],
)
def test_most_have_left_and_one_is_behind_since_it_ran_another_program(
    callers: tuple[int, ...], lacking: tuple[int, ...], communicates: bool, culprits: list[int]
) -> None:
    missing = Missing(Side("jit_other", "train.py:9", (), "", callers), lacking, communicates)
    found = diagnose(doing(Doing.LEFT, Doing.LEFT, WAIT, Doing.LEFT), None, missing)
    assert [each.process_id for each in found.culprits] == culprits


@pytest.mark.parametrize(
    ("phase", "timeout", "kept", "limit"),
    [
        ("step", HangTimeout(), True, 300),
        ("step", HangTimeout(), False, math.inf),
        ("step", HangTimeout(20.0), False, 20),
        ("step", HangTimeout(0.0), True, math.inf),
        ("compiling", HangTimeout(20.0), True, 3600),
        ("saving", HangTimeout(4000.0), True, 4000),
        ("saving", HangTimeout(phases={"saving": 60.0}), True, 60),
        ("loading", HangTimeout(phases={"step": 60.0}), False, 60),
        ("mine", HangTimeout(phases={"mine": 5.0}), True, 5),
        ("step", HangTimeout(phases={"mine": 5.0}), True, 300),
    ],
)
def test_how_long_a_phase_may_take(phase: str, timeout: HangTimeout, kept: bool, limit: float) -> None:
    assert find_limit(phase, timeout, kept) == limit


def test_of_several_processes_the_verb_is_another() -> None:
    assert make_plural("sleeps or waits for a lock at a.py:1") == "sleep or wait for a lock at a.py:1"
    assert make_plural("is loading") == "are loading"


# Stories: two hosts, a and b, of two processes each. The agents answer when they are asked.

Tell = Callable[..., Story]


@pytest.fixture
def story(tmp_path: Path) -> Callable[..., Story]:
    def begin(
        stacks: dict[int, str],
        found: dict[int, dict[str, Any]] | None = None,
        word_of_3: str = "joined",
        **settings: Any,
    ) -> Story:
        def answer(agent: FakeAgent, _: Any) -> list[Any]:
            given = found or {}
            python = {"library": "python3.11"}
            return [
                wire.Examined(n, {**python, **given.get(n, {})}, dump(stacks[n])) for n in agent.running if n in stacks
            ]

        agents = FakeAgent({wire.Examine: answer}), FakeAgent({wire.Examine: answer})
        told = Story(tmp_path, agents, **settings)
        told.say_at(1, 0, *(wire.Fact(name, n) for n in (0, 1) for name in ("joining", "joined")))
        told.say_at(
            1, 1, *(wire.Fact(name, n) for n in (2, 3) for name in ("joining", word_of_3 if n == 3 else "joined"))
        )
        return told

    return begin


def observe(process_id: int, step: int, phase: str = "step", changes: int | None = None, state: str = "") -> Any:
    return wire.Observed(process_id, state, step, phase, step if changes is None else changes, True)


def step_all(told: Story, at: float, step: int) -> None:
    for host in (0, 1):
        told.say_at(at, host, *(observe(n, step) for n in (2 * host, 2 * host + 1)))


def test_a_process_that_sleeps_is_named_and_the_run_ended(story: Tell) -> None:
    told = story({0: IN_JAX, 1: IN_JAX, 2: ASLEEP, 3: IN_JAX}, hang_timeout=HangTimeout(60.0))
    step_all(told, 2, 5)
    verdict = told.run()
    assert (verdict.outcome, verdict.exit_code, verdict.process_id, verdict.host) == ("hang", 124, 2, "b")
    assert 60 <= told.inbox.seconds < 64
    assert "launch: nothing has moved for 20 s:" in told.shown and "launch: nothing has moved for 40 s:" in told.shown
    assert "process 2 on b sleeps or waits for a lock at train.py:30 in read" in verdict.message
    assert any(
        "processes 0, 1 and 3 on a, b wait for 2 in step 5 at train.py:41 in main" in line for line in verdict.detail
    )
    assert told.commands(0, wire.Stop)[0].stacks is True


@pytest.mark.parametrize(("word", "culprit"), [("joining", 3), ("program", 2)])
def test_who_computes_with_the_others_has_joined_them(story: Tell, word: str, culprit: int) -> None:
    """Its word that it has joined may be lost."""
    stacks = {0: IN_JAX, 1: IN_JAX, 2: ASLEEP, 3: IN_JAX}
    told = story(stacks, word_of_3=word, hang_timeout=HangTimeout(20.0))
    step_all(told, 2, 5)
    assert told.run().process_id == culprit


def test_a_run_that_moves_is_left_alone(story: Tell) -> None:
    told = story({}, hang_timeout=HangTimeout(18.0))
    for step in range(1, 10):
        step_all(told, 10 * step, step)
    for process_id in range(4):
        told.exit_at(95, process_id, 0)
    assert told.run().exit_code == 0
    assert "nothing has moved" not in told.shown and not told.commands(0, wire.Examine)


def test_steps_count_and_not_what_is_printed(story: Tell) -> None:
    told = story({0: IN_JAX, 1: IN_JAX, 2: ASLEEP, 3: IN_JAX}, hang_timeout=HangTimeout(30.0))
    step_all(told, 2, 5)
    for second in range(3, 100, 5):
        told.say_at(second, 0, wire.Output(0, b"still here\n"))
    assert told.run().process_id == 2 and told.inbox.seconds < 36


def test_who_tells_no_steps_moves_when_it_prints(story: Tell) -> None:
    told = story(dict.fromkeys(range(4), IN_JAX), hang_timeout=HangTimeout(30.0))
    for second in range(3, 100, 20):
        told.say_at(second, 0, wire.Output(0, b"still here\n"))
    for process_id in range(4):
        told.exit_at(105, process_id, 0)
    assert told.run().exit_code == 0


def test_who_tells_no_steps_moves_when_its_agent_sees_it_work(story: Tell) -> None:
    told = story(dict.fromkeys(range(4), IN_JAX), hang_timeout=HangTimeout(30.0))
    for second in range(3, 100, 20):
        told.say_at(second, 1, wire.Observed(3, moves=second))
    for process_id in range(4):
        told.exit_at(105, process_id, 0)
    assert told.run().exit_code == 0


def test_without_a_timeout_scripts_that_tell_no_steps_are_only_told_about(story: Tell) -> None:
    told = story({0: IN_JAX, 1: IN_JAX, 2: ASLEEP, 3: IN_JAX})
    for process_id in range(4):
        told.exit_at(700, process_id, 0)
    assert told.run().exit_code == 0
    assert [f"for {seconds} s:" in told.shown for seconds in (20, 40, 80, 160, 320, 640)] == [True] * 6


@pytest.mark.parametrize(("timeout", "code"), [(HangTimeout(), 0), (HangTimeout(300.0), 124)])
def test_processes_that_all_compute_are_left_alone_unless_a_limit_is_given(
    story: Tell, timeout: HangTimeout, code: int
) -> None:
    busy = {number: {"state": "R", "main_cores": 1.0} for number in range(4)}
    told = story(dict.fromkeys(range(4), IN_SCRIPT), busy, hang_timeout=timeout)
    step_all(told, 2, 5)
    for process_id in range(4):
        told.exit_at(900, process_id, 0)
    assert told.run().exit_code == code


@pytest.mark.parametrize("phase", ["compiling", "saving"])
def test_what_takes_its_time_is_told_as_what_it_is(story: Tell, phase: str) -> None:
    told = story(dict.fromkeys(range(4), IN_JAX), {0: {"cores": 1.0}}, hang_timeout=HangTimeout(20.0))
    step_all(told, 2, 5)
    told.say_at(3, 0, observe(0, 5, phase, 6))
    for process_id in range(4):
        told.exit_at(99, process_id, 0)
    assert told.run().exit_code == 0
    assert f"process 0 on a is {phase}" in told.shown


def test_who_has_left_early_ends_the_run_in_seconds(story: Tell) -> None:
    told = story(dict.fromkeys(range(4), IN_JAX), hang_timeout=HangTimeout(0.0))
    step_all(told, 2, 5)
    told.exit_at(3, 2, 0)
    verdict = told.run()
    assert (verdict.exit_code, verdict.process_id) == (124, 2) and 13 <= told.inbox.seconds < 16
    assert "has left with exit code 0 after step 5" in verdict.message


def test_who_has_left_is_not_to_blame_while_others_still_work(story: Tell) -> None:
    told = story({0: IN_SCRIPT, 1: IN_JAX, 3: IN_JAX}, {0: {"main_cores": 1.0}}, hang_timeout=HangTimeout(0.0))
    step_all(told, 2, 5)
    told.exit_at(3, 2, 0)
    for process_id in (0, 1, 3):
        told.exit_at(60, process_id, 0)
    assert told.run().exit_code == 0


def test_an_agent_that_does_not_answer_holds_up_no_verdict(story: Tell) -> None:
    told = story({0: IN_JAX, 1: IN_JAX, 3: IN_JAX}, hang_timeout=HangTimeout(30.0))  # nothing of process 2
    step_all(told, 2, 5)
    told.say_at(4, 1, observe(2, 5, state="T"))
    verdict = told.run()
    assert verdict.process_id == 2 and "is stopped" in verdict.message and told.inbox.seconds < 37


@pytest.mark.parametrize("is_kept", [True, False])
def test_where_jax_gives_up_first_the_one_that_stood_still_is_named(story: Tell, is_kept: bool) -> None:
    told = story({0: IN_JAX, 1: IN_JAX, 3: IN_JAX}, hang_timeout=HangTimeout(0.0))
    if is_kept:
        step_all(told, 2, 5)
    told.say_at(4, 1, wire.Observed(2, "T") if not is_kept else observe(2, 5, state="T"))
    told.say_at(99, 0, wire.Output(0, b"something is wrong with a peer\n"))
    lost = {"type": "XlaRuntimeError", "message": "UNAVAILABLE: heartbeat", "lost_peer": True}
    told.say_at(100, 0, wire.Fact("crash", 0, lost), wire.Fact("crash", 1, lost))
    told.exit_at(101, 0, 1)
    told.exit_at(101, 1, 1)
    verdict = told.run()
    assert (verdict.exit_code, verdict.process_id) == (124, 2)
    assert "the run failed: process 2 on b is stopped" in verdict.message
    assert "gave up waiting" in verdict.message and told.inbox.seconds < 110


# Hosts that cannot reach each other.


def trial(
    *unreached: tuple[int, int], cut_off: tuple[int, ...] = (), hosts: int = 3, refused: str | None = None
) -> NetworkTrial:
    addresses = {n: [f"10.0.0.{n}"] for n in range(hosts)}
    made = NetworkTrial(addresses, ("10.0.0.0", 4711), ports={n: 100 + n for n in range(hosts)})
    for host in range(hosts):
        made.problems[host] = {
            f"10.0.0.{n}:{100 + n}": "no answer" if (host, n) in unreached else None for n in range(hosts) if n != host
        }
        made.problems[host]["10.0.0.0:4711"] = "no answer" if host in cut_off else refused
    return made


@pytest.mark.parametrize(
    ("made", "text", "host"),
    [
        (trial(), None, None),
        (trial(refused="Connection refused"), None, None),
        (trial((0, 1), (1, 0)), "a and b cannot reach each other (10.0.0.1:101: no answer)", None),
        (trial((2, 1)), "c cannot reach b (10.0.0.1:101: no answer)", None),
        (trial((0, 1), (1, 0), (1, 2), (2, 1)), "b and a, c cannot reach each other", 1),
        (trial(cut_off=(2,)), "c cannot reach the coordinator on a at 10.0.0.0:4711 (no answer)", 2),
        (trial(cut_off=(1,), hosts=2), "b cannot reach the coordinator on a at 10.0.0.0:4711", None),
        (NetworkTrial({0: ["10.0.0.1"], 1: []}, None, 0.0, {0: 1, 1: 2}, {0: {}, 1: {}}), None, None),
    ],
)
def test_which_hosts_cannot_reach_each_other(made: NetworkTrial, text: str | None, host: int | None) -> None:
    found = made.find_problem("abc")
    assert (found is None) == (text is None)
    if found is not None and text is not None:
        assert found.text.startswith(text) and found.host == host


def test_an_address_that_several_hosts_have_leads_nowhere() -> None:
    own = {0: ["10.0.0.1", "172.17.0.1"], 1: ["10.0.0.2", "172.17.0.1"]}
    assert find_addresses(own, {1: "10.9.9.9"}) == {0: ["10.0.0.1"], 1: ["10.9.9.9"]}


@pytest.fixture
def apart(tmp_path: Path) -> Story:
    """Two hosts that cannot reach each other."""

    def examine(agent: FakeAgent, _: Any) -> list[Any]:
        return [wire.Examined(n, {}, dump(IN_JAX)) for n in agent.running]

    def connect(_: FakeAgent, order: wire.Connect) -> list[Any]:
        return [wire.Connected({f"{address}:{port}": "no answer" for address, port in order.targets})]

    script = {wire.Examine: examine, wire.Listen: lambda *_: [wire.Listening(7)], wire.Connect: connect}
    agents = [FakeAgent(script, (wire.MAGIC, HELLO._replace(addresses=[f"10.0.0.{n}"]))) for n in (1, 2)]
    return Story(tmp_path, agents, hang_timeout=HangTimeout(30.0))


def test_processes_that_lose_peers_which_still_run_have_their_network_tried(apart: Story) -> None:
    step_all(apart, 2, 5)
    lost = {"type": "XlaRuntimeError", "message": "UNAVAILABLE: heartbeat", "lost_peer": True}
    apart.say_at(3, 0, wire.Fact("crash", 1, lost))
    apart.exit_at(3, 1, 1)
    verdict = apart.run()
    assert "the run failed: a and b cannot reach each other" in verdict.message and verdict.exit_code == 124
    assert apart.inbox.seconds < 12


def test_hosts_that_cannot_reach_each_other_are_told(apart: Story) -> None:
    told = apart
    step_all(told, 2, 5)
    verdict = told.run()
    assert "the run hangs: a and b cannot reach each other (10.0.0.2:7: no answer)" in verdict.message
    assert (verdict.exit_code, verdict.process_id, verdict.host) == (124, None, None)
    assert "launch:   a and b cannot reach each other" in told.shown and told.inbox.seconds < 36


# Real processes.

STEPS = """
import hashlib, os, signal, sys, threading, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

def fault(kind):
    if kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if kind == "native":
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2 * 10**9)
    if kind == "leave":
        sys.exit(0)

kind, culprit = sys.argv[1], int(sys.argv[2])
"""
WITH_LOADER = (
    STEPS
    + """
import hostmesh
hostmesh.join()
loader = hostmesh.Loader({"x": np.ones((600, 8), "f4")}, hostmesh.make_mesh(data=-1), batch_size=60, steps=500)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
total = jnp.zeros(())
for batch in loader:
    if loader.step == 4 and jax.process_index() == culprit:
        fault(kind)
    total = add(total, batch).block_until_ready()
"""
)
UNMODIFIED = (
    STEPS
    + """
jax.distributed.initialize()
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
add = jax.jit(lambda total, x: total + x.sum())
total = jnp.zeros(())
for step in range(500):
    x = jax.make_array_from_process_local_data(sharding, np.ones(4, "f4"), (4 * jax.process_count(),))
    if step == 4 and jax.process_index() == culprit:
        fault(kind)
    total = add(total, x).block_until_ready()
"""
)
TEXTS = {
    "stop": "is stopped (SIGSTOP, or a debugger)",
    "lock": "sleeps or waits for a lock at",
    "native": "computes at",
    "leave": "has ended its script",
}


@pytest.mark.slow
def test_an_unmodified_script_that_works_in_silence_is_left_alone(launch: Launch, script: Script) -> None:
    text = UNMODIFIED.replace("total = add", "time.sleep(0.02)\n    total = add")
    done = launch("--local", "3", "--hang-timeout", "7", script(text), "none", "0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "kind", "culprit"),
    [(WITH_LOADER, "stop", 0), (WITH_LOADER, "native", 2), (UNMODIFIED, "lock", 1), (UNMODIFIED, "leave", 0)],
    ids=["stop", "native", "lock, unmodified", "leave, unmodified"],
)
@pytest.mark.quick("stop", "lock, unmodified")
def test_real_processes(start: Start, script: Script, text: str, kind: str, culprit: int) -> None:
    run: LiveRun = start("--local", "3", "--hang-timeout", "8", script(text, f"{kind}.py"), kind, str(culprit))
    assert run.launcher.wait(HANGS) == 124, run.stderr
    message = run.await_event("run ended")["message"]
    assert f"the run hangs: process {culprit} on localhost {TEXTS[kind]}" in message
    others = [process_id for process_id in range(3) if process_id != culprit]
    assert f"processes {others[0]} and {others[1]} wait for {culprit}" in message
    assert not processes_of(run.id)
