"""What a verdict says: of what kind an end was, at which line, from what that is concluded, and how sure it is."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Script, Start
from fake_agent import End, FakeAgent
from stories import EPOCH, Story

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame import kinds, missing, verdict
from hostmesh.launcher.supervisor.blame.cause import find_cause
from hostmesh.launcher.supervisor.blame.failures import NO_CRASH, NO_MEMORY, Failure
from hostmesh.launcher.supervisor.blame.tails import find_place

OWN = {**NO_CRASH, "type": "ValueError", "message": "no data", "place": "train.py:8 in main"}
PEER = {**NO_CRASH, "type": "XlaRuntimeError", "message": "UNKNOWN: Gloo", "lost_peer": True}
FATAL = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    '  File "/job/data.py", line 3 in read\n  File "/job/train.py", line 9 in main\n'
)
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/job/go.py", line 2, in <module>\n    main()\n'
    '  File "/job/train.py", line 9, in main\n    go()\n'
    '  File "/opt/lib/python3.11/site-packages/numpy/x.py", line 7, in ones\n    raise\n'
)
PLENTY = {
    **NO_MEMORY,
    "rss": 1 * 10**9,
    "total": 16 * 10**9,
    "available": 8 * 10**9,
    "cgroup_kills": 0,
    "host_kills": 0,
}


def failure(code: int, crash: dict[str, Any] | None = None, tail: str = "", **known: Any) -> Failure:
    return Failure(3, "gpu-b", code, 9.0, tail, crash, **known)


def raised(kind: str, message: str = "", **changes: Any) -> Failure:
    return failure(1, {**OWN, "type": kind, "message": message, **changes})


BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
ENDS: dict[str, tuple[Failure, str, str]] = {
    "an exception": (raised("ValueError"), "bug", "certain"),
    "an exit code": (failure(3), "bug", "certain"),
    "a command that is not there": (failure(127), "bug", "certain"),
    "native code, with its stack": (failure(-signal.SIGSEGV, tail=FATAL), "bug", "certain"),
    "native code, without a word": (failure(-signal.SIGSEGV), "bug", "likely"),
    "an abort": (failure(-signal.SIGABRT), "bug", "likely"),
    "a bus error": (failure(-signal.SIGBUS), "bug", "likely"),
    "an illegal instruction": (failure(-signal.SIGILL), "bug", "likely"),
    "a division": (failure(-signal.SIGFPE), "bug", "likely"),
    "a shell whose program broke": (failure(128 + signal.SIGSEGV), "bug", "certain"),
    "kill": (failure(-signal.SIGTERM), "killed", "certain"),
    "kill, as a shell tells it": (failure(128 + signal.SIGTERM), "killed", "likely"),
    "an exception, and killed on its way out": (failure(-9, OWN, memory=PLENTY), "bug", "certain"),
    "no memory, and killed on its way out": (failure(-9, {**OWN, "type": "MemoryError"}), "out of memory", "certain"),
    "Ctrl-C from elsewhere": (raised("KeyboardInterrupt"), "killed", "certain"),
    "a real-time signal": (failure(-50), "killed", "certain"),
    "kill -9, and memory enough": (failure(-9, memory=PLENTY), "killed", "likely"),
    "kill -9, as a shell tells it": (failure(137, memory=PLENTY), "killed", "likely"),
    "kill -9, and nothing known of memory": (failure(-9), "killed", "unknown"),
    "Python has no memory": (raised("MemoryError"), "out of memory", "certain"),
    "numpy has none": (raised("numpy._core._exceptions._ArrayMemoryError", "Unable to"), "out of memory", "certain"),
    "a GPU has none, torch says": (raised("torch.OutOfMemoryError", "CUDA out"), "out of memory", "certain"),
    "a device has none": (
        raised("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."),
        *("out of memory", "certain"),
    ),
    "a TPU has none": (
        raised("XlaRuntimeError", "RESOURCE_EXHAUSTED: Attempting to reserve 12.50G at the bottom of memory."),
        *("out of memory", "certain"),
    ),
    "a message too long for gRPC": (
        raised("XlaRuntimeError", "RESOURCE_EXHAUSTED: Received message larger than max (5 vs. 4)"),
        *("bug", "certain"),
    ),
    "an error that is only named alike": (raised("job.MemoryErrors"), "bug", "certain"),
    "a fork without memory": (raised("OSError", "[Errno 12] Cannot allocate memory"), "out of memory", "certain"),
    "C++ has none": (failure(-signal.SIGABRT, tail=BAD_ALLOC), "out of memory", "likely"),
    "a command's Python has none": (failure(1, tail=TRACEBACK + "MemoryError\n"), "out of memory", "likely"),
    "preempted alone": (failure(75), "preempted", "likely"),
    "a victim without a culprit": (failure(1, PEER), "bug", "unknown"),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_kind_of_an_end_and_how_sure_it_is(how: str) -> None:
    end, kind, sure = ENDS[how]
    found = find_cause(end)
    assert (found.kind, found.sure) == (kind, sure)
    assert found.evidence and found.sentence


WORDS = {
    "an exit": (failure(1), "exited with 1 after 214 steps"),
    "a signal": (failure(-11), "was killed by signal 11 (SIGSEGV) after 214 steps"),
    "a plain kill": (
        failure(-9, memory=PLENTY),
        "was killed by signal 9 (SIGKILL) after 214 steps; the host had 8 GB free and no process was killed for memory",
    ),
    "an exception for memory": (raised("MemoryError"), "exited with 1 after 214 steps"),
    "that, and killed on its way out": (
        failure(-9, {**OWN, "type": "MemoryError"}),
        "was killed by signal 9 (SIGKILL) after 214 steps",
    ),
    "nothing known": (failure(-9), "was killed by signal 9 (SIGKILL) after 214 steps; was the host out of memory?"),
}


@pytest.mark.parametrize("how", WORDS)
def test_how_an_end_is_told(how: str) -> None:
    end, words = WORDS[how]
    assert find_cause(end, 214).ended == words
    assert find_cause(end).ended == words.replace(" after 214 steps", "")


PLACES = {
    "of a fatal error the innermost": (FATAL, "/job/data.py:3 in read"),
    "of a traceback the user's own": (TRACEBACK + "ValueError\n", "/job/train.py:9 in main"),
    "of the last traceback": (TRACEBACK.replace("train", "old") + TRACEBACK, "/job/train.py:9 in main"),
    "none": ("all is well\n", None),
}


@pytest.mark.parametrize("which", PLACES)
def test_the_place_is_a_line_of_the_users_code(which: str) -> None:
    tail, place = PLACES[which]
    assert find_place(tail) == place == find_cause(failure(3, tail=tail)).place
    assert find_cause(failure(3, OWN, tail)).place == "train.py:8 in main"


# Stories: two hosts, a and b, of two processes each.

Tell = Callable[..., Story]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    def begin(**settings: Any) -> Story:
        return Story(tmp_path, (FakeAgent(), FakeAgent()), **settings)

    return begin


def read_result(story: Story) -> dict[str, Any]:
    return dict(json.loads(story.record.result.read_text()))


def crash_at(story: Story, at: float, process_id: int, record: dict[str, Any], code: int = 1) -> None:
    story.say_at(at, process_id // 2, wire.Fact("crash", process_id, {**record, "at": EPOCH + at}))
    story.exit_at(at, process_id, code)


def tell_steps(story: Story, steps: dict[int, int]) -> None:
    for process_id, step in steps.items():
        story.say_at(0.5, process_id // 2, wire.Observed(process_id, step=step))


def test_result_json_has_all_of_the_verdict(tell: Tell) -> None:
    story = tell()
    tell_steps(story, {2: 214, 0: 215})
    crash_at(story, 5, 2, OWN)
    crash_at(story, 5.1, 0, PEER)
    story.run()
    result = read_result(story)
    assert result["verdict"] == {
        "kind": "bug",
        "sure": "certain",
        "culprit": {"process_id": 2, "host": "b"},
        "cause": "ValueError: no data",
        "place": "train.py:8 in main",
        "evidence": ["it raised ValueError at train.py:8 in main"],
        "victims": [0, 1, 3],
        "last_step": 214,
    }
    assert result["message"] == "the run failed: process 2 on b exited with 1 after 214 steps"
    assert result["victims"] == 3 and result["outcome"] == "failed" and result["exit_code"] == 1
    told = [json.loads(line) for line in story.events.getvalue().splitlines()]
    assert told[-1]["event"] == "run ended" and told[-1]["kind"] == "bug"


def test_victims_are_neither_those_that_failed_alike_nor_those_that_succeeded(tell: Tell) -> None:
    story = tell()
    story.exit_at(4, 0, 0)
    crash_at(story, 5, 1, OWN)
    story.say_at(4.9, 1, wire.Fact("crash", 3, {**OWN, "at": EPOCH + 4.9}))
    found = story.run()
    assert (found.process_id, found.victims, found.victim_ids) == (1, 1, (2,))


def test_victims_that_complained_first_are_evidence(tell: Tell) -> None:
    story = tell()
    crash_at(story, 5, 0, PEER)
    crash_at(story, 5.1, 3, PEER)
    crash_at(story, 5.5, 2, OWN)
    story.run()
    found = read_result(story)["verdict"]
    assert found["culprit"]["process_id"] == 2 and "2 other processes report a lost peer" in found["evidence"]


def test_nobody_is_sure_who_was_first_when_two_fail_at_once(tell: Tell) -> None:
    story = tell()
    story.say_at(5, 0, wire.Fact("crash", 0, {**OWN, "at": EPOCH + 5}))
    story.say_at(5, 0, wire.Exited(0, 1, EPOCH + 5, 0.0), wire.Exited(1, -signal.SIGSEGV, EPOCH + 5, 0.0))
    found = story.run()
    assert found.sure == "likely" and "failed at the same time" in found.evidence[-1]


def test_a_kill_for_memory_on_a_host_is_told_in_one_line(tell: Tell) -> None:
    story = tell()
    memory = {
        **PLENTY,
        "rss": 11_200_000_000,
        "limit": 12 * 10**9,
        "used": 12 * 10**9,
        "cgroup_kills": 1,
        "host_kills": 1,
    }
    tell_steps(story, {3: 7})
    story.say_at(5, 1, wire.Exited(3, -9, EPOCH + 5, 0.0, b"step 7\n", memory))
    found = story.run()
    wanted = (
        "the run failed: process 3 on b was killed after 7 steps: "
        "out of memory (it had 11.2 GB; the limit of its cgroup is 12 GB)"
    )
    assert found.message == wanted and wanted in story.shown
    assert (found.kind, found.sure, found.exit_code) == ("out of memory", "certain", 137)


def test_a_run_that_goes_on_says_at_once_who_had_no_memory(tell: Tell) -> None:
    story = tell(keep_going=True)
    memory = {**PLENTY, "rss": 3 * 10**9, "limit": 4 * 10**9, "cgroup_kills": 1, "host_kills": 1}
    story.say_at(5, 1, wire.Exited(3, -9, EPOCH + 5, 0.0, b"", memory))
    for process_id in range(3):
        story.exit_at(6, process_id, 0)
    story.run()
    assert "process 3 on b was killed: out of memory (it had 3 GB" in story.shown


@pytest.mark.parametrize("lines", [3, 400])
@pytest.mark.parametrize("explained", [True, False])
def test_a_failure_is_told_in_a_dozen_lines(tell: Tell, lines: int, explained: bool) -> None:
    story = tell()
    text = "\n".join(f"line {number}" for number in range(lines))
    if explained:
        crash_at(story, 5, 2, {**OWN, "message": text, "explained": True})
    else:
        story.exit_at(5, 2, 3, text.encode())
    shown = story.run().text().splitlines()
    assert len(shown) <= 12 and shown[-1].startswith("  Logs: ")
    assert ("  line 0" if explained else f"  line {lines - 1}") in shown


def lose(story: Story) -> None:
    story.say_at(5, 1, End())


def succeed(story: Story) -> None:
    for process_id in range(4):
        story.exit_at(5, process_id, 0)


def leave_early(story: Story) -> None:
    story.exit_at(5, 1, 0)
    for process_id in (0, 2, 3):
        crash_at(story, 5.2, process_id, PEER)


def preempt(story: Story) -> None:
    story.say_at(4, 0, wire.Fact("saved", 0, {"step": 40}))
    for process_id in range(4):
        story.exit_at(5, process_id, 75)


def interrupt(story: Story) -> None:
    story.interrupt_at(5, signal.SIGINT)


def kill_nursery(story: Story) -> None:
    story.say_at(5, 0, wire.Fact("nursery_died", detail={"problem": "it was killed by signal 9", "code": -9}))


def kill_nursery_for_memory(story: Story) -> None:
    memory = {**PLENTY, "rss": 3 * 10**9, "limit": 4 * 10**9, "cgroup_kills": 1, "host_kills": 1}
    detail = {"problem": "it was killed by signal 9", "code": -9, "memory": memory}
    story.say_at(5, 0, wire.Fact("nursery_died", detail=detail))


OUTCOMES: dict[str, tuple[Callable[[Story], None], str, dict[str, Any]]] = {
    "success": (succeed, "", {"sure": "certain", "culprit": None, "last_step": 9, "victims": []}),
    "a lost host": (lose, "host lost", {"culprit": {"process_id": None, "host": "b"}, "last_step": 8}),
    "one that leaves early": (leave_early, "bug", {"sure": "likely", "victims": [0, 2, 3]}),
    "preemption": (preempt, "preempted", {"culprit": None, "last_step": 40}),
    "Ctrl-C": (interrupt, "interrupted", {"culprit": None, "cause": "stopped by Ctrl-C", "last_step": 9}),
    "a dead nursery": (kill_nursery, "killed", {"victims": [0, 1], "culprit": {"process_id": None, "host": "a"}}),
    "a nursery without memory": (kill_nursery_for_memory, "out of memory", {"victims": [0, 1], "sure": "certain"}),
}


@pytest.mark.parametrize("what", OUTCOMES)
def test_every_outcome_has_its_kind(tell: Tell, what: str) -> None:
    act, kind, wanted = OUTCOMES[what]
    story = tell()
    tell_steps(story, {0: 9, 2: 8})
    act(story)
    story.run()
    found = read_result(story)["verdict"]
    assert found["kind"] == kind and wanted.items() <= found.items(), found
    assert found["sure"] in (kinds.CERTAIN, kinds.LIKELY, kinds.UNKNOWN) and found["cause"]


def test_kinds_without_processes() -> None:
    assert missing.refused({"a": ["no"]}).kind == missing.unsendable("no").kind == ""
    assert missing.unreachable(2, {"a": "no route"}, {}).kind == "host lost"
    assert verdict.launcher_was_away(9, 5, "logs/").kind == "interrupted"
    assert verdict.process_unheard(1, "a", [failure(1, PEER)], "logs/").kind == "hang"


# Real processes.


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_native_code_that_breaks_is_a_bug_with_a_place(start: Start, script: Script, how: list[str]) -> None:
    text = (
        "import ctypes, os, time\ndef touch():\n    ctypes.string_at(0)\n"
        "if os.environ['HOSTMESH_PROCESS_ID'] == '1': touch()\ntime.sleep(1000)\n"
    )
    run = start("--local", "2", *how, script(text))
    assert run.wait() == 128 + signal.SIGSEGV
    found = run.result["verdict"]
    assert (found["kind"], found["sure"], found["culprit"]["process_id"]) == ("bug", "certain", 1)
    assert found["place"].endswith("script.py:3 in touch") and found["victims"] == [0]
