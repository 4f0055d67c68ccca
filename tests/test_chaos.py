"""Rehearsed faults: what a file of them may say, and that each kind does to real processes what it promises."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HANGS, REPO, Launch, LiveRun, Script, Start, await_true, clean_env, processes_of
from numpy.typing import NDArray

from hostmesh.launcher.chaos.file import read_faults
from hostmesh.launcher.chaos.model import KINDS, Fault, add_faults
from hostmesh.launcher.chaos.telling import summarise, tell_done, tell_end, tell_planned
from hostmesh.launcher.cluster.model import Cluster, Host, Job
from hostmesh.launcher.errors import ClusterError, UsageError
from hostmesh.launcher.planning.plan import Plan, make_plan
from hostmesh.worker.chaos.acts import ACTS, IN_ANY_THREAD, OBSTACLES
from hostmesh.worker.chaos.schedule import begin_faults, corrupt
from hostmesh.worker.identity import CHAOS
from hostmesh.worker.recording.recorder import RECORDER

# Files.


def plan_for(transport: str = "local", command: tuple[str, ...] | None = None) -> Plan:
    hosts = (Host("host-0", 2), Host("host-1", 2)) if transport != "local" else (Host("localhost", 4),)
    job = Job(command=command) if command else Job(script="train.py")
    return make_plan(Cluster(hosts, transport=transport), job)


def read(folder: Path, text: str, plan: Plan | None = None) -> tuple[Fault, ...]:
    path = folder / "faults.yaml"
    path.write_text(text)
    return read_faults(path, plan or plan_for())


def fault(text: str) -> str:
    return f"seed: 7\nfaults:\n  - {{{text}}}\n"


BAD_FAULTS = {
    "unknown kind": ("kind: kil, process: 0, step: 5", "3: faults[0].kind: unknown kind 'kil'; nearest is 'kill'"),
    "strange kind": ("kind: xyz, process: 0, step: 5", "3: faults[0].kind: unknown kind 'xyz'; wanted kill, stop, "),
    "kind is a number": ("kind: 0, process: 0, step: 5", "3: faults[0].kind: found 0 (a whole number), wanted a kind"),
    "no kind": ("process: 0, step: 5", "3: faults[0]: missing key 'kind'"),
    "no process": ("kind: kill, step: 5", "3: faults[0]: missing key 'process'"),
    "no such process": (
        "kind: kill, process: 4, step: 5",
        "3: faults[0].process: found 4, wanted a process of this run, which are 0 to 3, or any",
    ),
    "negative process": ("kind: kill, process: -1, step: 5", "faults[0].process: found -1, wanted a process of this"),
    "a process by name": ("kind: kill, process: all, step: 5", "faults[0].process: found 'all', wanted a process of"),
    "negative step": (
        "kind: kill, process: 0, step: -5",
        "3: faults[0].step: found -5, wanted a step: a whole number, 1",
    ),
    "step 0": ("kind: kill, process: 0, step: 0", "3: faults[0].step: found 0, wanted a step"),
    "half a step": ("kind: kill, process: 0, step: 1.5", "faults[0].step: found 1.5 (a number), wanted a step"),
    "negative time": ("kind: kill, process: 0, after: -2", "3: faults[0].after: found -2, wanted seconds since the"),
    "negative fraction": ("kind: kill, process: 0, after: -0.5", "3: faults[0].after: found -0.5, wanted seconds"),
    "time in words": ("kind: kill, process: 0, after: soon", "faults[0].after: found 'soon' (text), wanted seconds"),
    "both": ("kind: kill, process: 0, step: 5, after: 2", "3: faults[0]: found step and after, wanted step or after"),
    "neither": ("kind: kill, process: 0", "3: faults[0]: found no step or after, wanted step or after: when it"),
    "misspelt key": ("kind: kill, proces: 0, step: 5", "3: faults[0]: unknown key 'proces'; nearest is 'process'"),
    "key of another kind": (
        "kind: kill, process: 0, step: 5, seconds: 3",
        "3: faults[0].seconds: kill has no seconds; it takes process, step, after",
    ),
    "host of a process's fault": (
        "kind: kill, process: 0, host: localhost, step: 5",
        "faults[0].host: kill has no host",
    ),
    "an attempt that is not there": (
        "kind: kill, process: 0, step: 5, attempt: 2",
        "found 2, wanted an attempt of this run, which are 1 alone: there are no --restarts",
    ),
    "no factor": ("kind: slow, process: 0, step: 5", "3: faults[0]: missing key 'factor'"),
    "factor 1": ("kind: slow, process: 0, step: 5, factor: 1", "faults[0].factor: found 1, wanted a number above 1"),
    "no seconds": ("kind: sleep, process: 0, step: 5, seconds: 0", "faults[0].seconds: found 0, wanted more than 0"),
    "negative memory": (
        "kind: fill memory, process: 0, step: 5, megabytes: -1",
        "faults[0].megabytes: found -1, wanted",
    ),
    "corrupt by time": (
        "kind: corrupt row, process: 0, after: 5",
        "faults[0].after: corrupt row has no after; it takes",
    ),
    "network of this machine": (
        "kind: drop network, host: localhost, after: 5",
        "3: faults[0].kind: drop network is not possible here: all processes share this machine's network",
    ),
    "no such host": ("kind: drop network, host: localhos, after: 5", "faults[0].host: found 'localhos', wanted a host"),
    "a fault in words": ("kill", "3: faults[0]: missing key 'kind'"),
}
BAD_FILES = {
    "empty": ("", "1: found an empty file, wanted a mapping with 'faults'"),
    "YAML syntax": ("faults: [", "1: not valid YAML"),
    "a list": ("- kill", "1: found a list, wanted a mapping with keys from seed, faults"),
    "no faults": ("seed: 7", "1: missing key 'faults'"),
    "empty list": ("faults: []", "1: faults: found an empty list, wanted a list of faults: 1 to"),
    "misspelt": ("fault: []", "1: unknown key 'fault'; nearest is 'faults'"),
    "seed": (
        "seed: x\nfaults: [{kind: kill, process: 0, step: 1}]",
        "1: seed: found 'x' (text), wanted a whole number",
    ),
}


@pytest.mark.parametrize("problem", [*BAD_FAULTS, *BAD_FILES])
def test_a_bad_file_of_faults(tmp_path: Path, problem: str) -> None:
    text, said = (
        (fault(BAD_FAULTS[problem][0]), BAD_FAULTS[problem][1]) if problem in BAD_FAULTS else BAD_FILES[problem]
    )
    with pytest.raises(ClusterError) as raised:
        read(tmp_path, text)
    assert f"{tmp_path}/faults.yaml:{said}" in str(raised.value) or (said[0].isalpha() and said in str(raised.value))


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    text = (
        "faults:\n- {kind: kil, process: 0, step: 5}\n- {kind: kill, process: 9, step: 5}\n- {kind: kill, process: 0}\n"
    )
    with pytest.raises(ClusterError) as raised:
        read(tmp_path, text)
    assert [problem.removeprefix(f"{tmp_path}/faults.yaml:")[0] for problem in raised.value.problems] == ["2", "3", "4"]


def test_a_host_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="found 'host-2', wanted a host of this run; nearest is 'host-1'"):
        read(tmp_path, fault("kind: drop network, host: host-2, after: 1"), plan_for("ssh"))


def test_a_program_that_is_not_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"found the program \./simulate, wanted a script or a module"):
        read(tmp_path, fault("kind: kill, process: 0, after: 1"), plan_for(command=("./simulate", "--fast")))


BAD_RUNS = {
    "unknown kind": (
        fault("kind: kil, process: 0, step: 5"),
        ["script.py"],
        "faults.yaml:3: faults[0].kind: unknown kind",
    ),
    "no such process": (fault("kind: kill, process: 2, step: 5"), ["script.py"], "which are 0 to 1, or any"),
    "negative time": (fault("kind: kill, process: 0, after: -1"), ["script.py"], "found -1, wanted seconds"),
    "no file": (None, ["script.py"], "faults.yaml: no such file or directory; wanted a YAML file of faults"),
    "a program": (
        fault("kind: kill, process: 0, step: 5"),
        ["--", "touch", "started"],
        "found the program touch, wanted",
    ),
}


@pytest.mark.parametrize("problem", BAD_RUNS)
def test_nothing_starts_with_a_bad_file(launch: Launch, script: Script, tmp_path: Path, problem: str) -> None:
    text, what, said = BAD_RUNS[problem]
    script("open('started', 'w')")
    if text is not None:
        (tmp_path / "faults.yaml").write_text(text)
    done = launch("--local", "2", "--chaos", "faults.yaml", *what)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert all(line.startswith("launch: ") for line in done.stderr.splitlines())
    assert not (tmp_path / "started").exists() and not (tmp_path / "runs").exists()


def test_chaos_without_a_file_is_refused(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--chaos")
    assert done.returncode == 2 and "argument --chaos: expected one argument" in done.stderr


# What is chosen, and said.


def test_what_is_left_open_follows_from_the_seed_and_the_place_alone(tmp_path: Path) -> None:
    def choose(seed: int, count: int) -> list[int]:
        faults = "\n".join("- {kind: kill, process: any, step: 5}" for _ in range(count))
        return [each.process_id for each in read(tmp_path, f"seed: {seed}\nfaults:\n{faults}\n")]

    assert choose(7, 8) == choose(7, 8)
    assert choose(7, 20)[:8] == choose(7, 8)
    assert {each for seed in range(5) for each in choose(seed, 20)} == {0, 1, 2, 3}
    assert choose(7, 20) != choose(8, 20)


SENTENCES = {
    "kind: kill, process: 2, step: 5": "process 2 will be killed (SIGKILL) at step 5",
    "kind: stop, process: 1, after: 3.5": "process 1 will be stopped (SIGSTOP) 3.5 s after its start",
    "kind: sleep, process: 0, step: 10, seconds: 60": "process 0 will sleep at step 10, for 60 s",
    "kind: sleep, process: 0, step: 10": "process 0 will sleep at step 10, for ever",
    "kind: slow, process: 1, step: 3, factor: 2.5": (
        "process 1 will be slow at step 3: every step from then on takes 2.5 times as long"
    ),
    "kind: fill memory, process: 1, step: 3": "process 1 will fill memory at step 3, until it is ended",
    "kind: fill memory, process: 1, step: 3, megabytes: 2048": "process 1 will fill memory at step 3, 2,048 MiB",
    "kind: drop network, host: host-1, after: 5": (
        "host-1 will lose its network 5 s after its start, until the run ends"
    ),
}


@pytest.mark.parametrize("text", SENTENCES)
def test_every_fault_is_said_before_the_start(tmp_path: Path, text: str) -> None:
    faults = read(tmp_path, fault(text), plan_for("ssh"))
    assert tell_planned(faults) == [f"launch: CHAOS: {SENTENCES[text]}"]


def test_a_chosen_process_is_said_to_be_chosen(tmp_path: Path) -> None:
    [line] = tell_planned(read(tmp_path, fault("kind: raise, process: any, step: 5")))
    assert re.fullmatch(r"launch: CHAOS: process \d \(any, by seed 7\) will raise an exception at step 5", line)


def test_the_end_tells_what_was_done_and_what_was_not() -> None:
    faults = [Fault(0, "kill", 2, "h", step=5), Fault(1, "stop", 1, "h", after=9.0), Fault(2, "raise", 0, "h", step=7)]
    told = [{"fault": 0, "kind": "kill", "step": 5, "at": 1.5}, {"fault": 2, "kind": "raise", "problem": "too late"}]
    assert tell_end(faults, told) == (
        "launch: CHAOS: this run was a rehearsal: 1 of 3 faults done; "
        "not done: stop of process 1 9 s after its start, raise of process 0 at step 7"
    )
    assert [each["done"] for each in summarise(faults, told)] == [True, False, False]
    assert summarise(faults, told)[0] == {
        **{"kind": "kill", "process_id": 2, "host": "h", "step": 5},
        **{"done": True, "done_at": 1.5, "done_at_step": 5, "problem": None},
    }
    assert summarise(faults, told)[2]["problem"] == "too late"
    assert tell_done(0, "h", told[0]) == "launch: CHAOS: now at step 5: kill: process 0 on h"
    assert tell_done(0, "h", told[1]) == "launch: CHAOS: process 0 on h cannot do raise: too late"


def test_the_faults_of_a_host_are_done_by_its_first_process(tmp_path: Path) -> None:
    plan = plan_for("ssh")
    faults = read(tmp_path, fault("kind: drop network, host: host-1, after: 5, seconds: 9"), plan)
    planned = add_faults(plan, faults)
    assert [CHAOS in process.env for process in planned.processes] == [False, False, True, False]
    [own] = json.loads(planned.processes[2].env[CHAOS])
    assert own == {
        "number": 0,
        "kind": "drop network",
        "step": None,
        "after": 5.0,
        "seed": 7,
        "attempt": 1,
        "seconds": 9.0,
    }


def test_launcher_worker_and_page_know_the_same_kinds() -> None:
    of_steps = {"slow", "corrupt row", "skip batch"}
    assert ACTS.keys() | of_steps == KINDS.keys() and not ACTS.keys() & of_steps
    assert ACTS.keys() > IN_ANY_THREAD and OBSTACLES.keys() < KINDS.keys()
    rows = re.findall(r"^\| `([a-z0-9 ]+)` \|", (REPO / "docs" / "chaos.md").read_text(), re.MULTILINE)
    assert rows == list(KINDS)


def test_the_pages_file_is_one(tmp_path: Path) -> None:
    [shown] = re.findall(r"```yaml\n(.*?)```", (REPO / "docs" / "chaos.md").read_text(), re.DOTALL)
    plan = make_plan(Cluster(tuple(Host(f"host-{n}", 1) for n in range(4)), transport="ssh"), Job(script="train.py"))
    assert [each.kind for each in read(tmp_path, shown, plan)] == ["kill", "stop", "sleep", "slow", "drop network"]


def test_a_restart_is_not_hit_again(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = {"RUN_ID": "r", "ATTEMPT": "2", "HOST": "h", "PROCESS_ID": "0", "NUM_PROCESSES": "1"}
    more = {"LOCAL_PROCESS_ID": "0", "COORDINATOR_ADDRESS": "h:1"}
    for name, value in {**identity, **more}.items():
        monkeypatch.setenv(f"HOSTMESH_{name}", value)
    monkeypatch.setenv(CHAOS, json.dumps([{"number": 0, "kind": "kill", "step": 1, "after": None, "seed": 0}]))
    begin_faults()
    assert RECORDER.on_step is None
    assert CHAOS not in os.environ  # nor is a program that the process starts


# Real processes.


def write_faults(folder: Path, faults: Sequence[str], seed: int = 0) -> str:
    (folder / "faults.yaml").write_text(f"seed: {seed}\nfaults:\n" + "".join(f"- {{{each}}}\n" for each in faults))
    return "faults.yaml"


def exits_of(run: LiveRun) -> dict[int, int]:
    return {int(process_id): code for process_id, code in run.result["exits"].items()}


ENDS = {"kill": -9, "abort": -6, "segfault": -11, "raise": 1, "exit 0": 0, "leave early": 0, "fill memory": 1}
# With so little memory that no other program of this machine is in danger.
LIMITED = """
import resource, os
if os.environ["HOSTMESH_PROCESS_ID"] == "6":
    size = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20), -1))
"""
# Tells its steps, and has no peers. What an exit handler prints tells an orderly end from a sudden one.
STEPS = """
import atexit, hostmesh, os, time
atexit.register(print, "left in order", flush=True)
for step in range(1, 6):
    hostmesh.report(step)
    print("after step", step, flush=True)
"""
# Knows nothing of hostmesh.
UNMODIFIED = """
import atexit, time
atexit.register(print, "left in order", flush=True)
began = time.monotonic()
while time.monotonic() < began + 100:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("when", ["step: 3", "after: 0.3"])
@pytest.mark.quick("step")
def test_a_process_ends_as_asked(start: Start, script: Script, tmp_path: Path, when: str) -> None:
    faults = [f"kind: {kind}, process: {number}, {when}" for number, kind in enumerate(ENDS)]
    text = STEPS if "step" in when else UNMODIFIED
    run = start("--local", "7", "--keep-going", "--chaos", write_faults(tmp_path, faults), script(LIMITED + text))
    run.wait()
    assert exits_of(run) == dict(enumerate(ENDS.values())), run.stderr
    for number, kind in enumerate(ENDS):
        log = run.log(number).decode()
        assert ("after step 2" in log) is ("step" in when) and "after step 3" not in log
        assert ("left in order" in log) is (kind in ("raise", "leave early", "fill memory")), (kind, log)
    assert f"RuntimeError: raised by --chaos {'at step 3' if 'step' in when else 'after 0.3 s'}" in run.stderr
    assert not list(tmp_path.glob("core*"))
    # Loudly: before, when it happens, at the end; and for programs.
    said, at = ("at step 3", " at step 3") if "step" in when else ("0.3 s after its start", "")
    assert f"launch: CHAOS: process 0 will be killed (SIGKILL) {said}\n" in run.stderr
    assert f"launch: CHAOS: now{at}: kill: process 0 on localhost" in run.stderr
    assert run.stderr.rstrip().endswith("launch: CHAOS: this run was a rehearsal: 7 of 7 faults done")
    assert "MemoryError" in run.log(6).decode()
    run.await_event("run ended")
    told = {e["process_id"]: e["detail"] for e in run.seen if e["event"] == "chaos"}
    assert [told[number]["kind"] for number in range(7)] == list(ENDS)
    assert [told[number]["step"] for number in range(7)] == [3 if "step" in when else None] * 7
    assert [(each["kind"], each["done"]) for each in run.result["chaos"]] == [(kind, True) for kind in ENDS]


# What each of them looks like from outside while it waits, and the program below it.
WAITS = {"stop": "T", "sleep": "S", "lock": "S", "spin": "R", "hold gil": "R", "python spin": "R", "subprocess": "S"}
WAITS |= {"read": "S", "disk": "D"}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stays(pid: int, state: str) -> bool:
    """For a fifth of a second: every process is in state R for a moment."""
    return all(state_of(pid) == state and not time.sleep(0.02) for _ in range(10))


def children_of(pid: int) -> list[str]:
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip() for child in pids]


@pytest.mark.parametrize("when", ["step: 2", "after: 0.3"])
@pytest.mark.slow
def test_a_process_waits_for_ever_as_asked(start: Start, script: Script, tmp_path: Path, when: str) -> None:
    faults = [f"kind: {kind}, process: {number}, {when}" for number, kind in enumerate(WAITS)]
    text = STEPS if "step" in when else UNMODIFIED
    run = start("--local", str(len(WAITS)), "--chaos", write_faults(tmp_path, faults), script(text))
    run.await_event("chaos", len(WAITS))
    pids = {event["process_id"]: event["pid"] for event in run.seen if event["event"] == "process started"}
    for number, (kind, state) in enumerate(WAITS.items()):
        await_true(lambda pid=pids[number], state=state: stays(pid, state), 30, f"{kind} shows as {state}")
    await_true(lambda: children_of(pids[list(WAITS).index("subprocess")]) == ["sleep infinity"], 30, "a program")
    assert all("after step 2" not in run.log(number).decode() for number in range(len(WAITS)))
    run.launcher.send_signal(signal.SIGINT)
    run.launcher.send_signal(signal.SIGINT)
    run.wait()
    assert not processes_of(run.id)


# Says for each step how long it waited for it, and what this process's devices got.
LOADING = """
import sys, time
import numpy as np
import hostmesh
identity = hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader({"x": np.arange(640, dtype=np.float32)}, mesh, 8, shuffle=False, steps=20, verify=False)
while True:
    began = time.monotonic()
    batch = next(loader, None)
    if batch is None:
        break
    rows = np.concatenate([np.asarray(shard.data) for shard in batch["x"].addressable_shards])
    print("STEP", loader.step, round(time.monotonic() - began, 3), *rows.tolist(), flush=True)
    time.sleep(0.1)
"""
FOR_A_WHILE = ("sleep", "lock", "spin", "hold gil", "python spin", "subprocess", "read", "disk")
WHILE = 1.0


def steps_of(run: LiveRun, process_id: int) -> dict[int, tuple[float, list[float]]]:
    lines = [line.split() for line in run.log(process_id).decode().splitlines() if line.startswith("STEP")]
    return {int(step): (float(took), list(map(float, rows))) for _, step, took, *rows in lines}


@pytest.mark.slow
def test_a_process_goes_on_after_faults_that_pass(start: Start, script: Script, tmp_path: Path) -> None:
    whiles = {kind: step for step, kind in enumerate(FOR_A_WHILE, 2)}
    faults = [f"kind: {kind}, process: 0, step: {step}, seconds: {WHILE}" for kind, step in whiles.items()]
    faults += ["kind: corrupt row, process: 1, step: 4", "kind: skip batch, process: 1, step: 6"]
    faults += ["kind: fill memory, process: 1, step: 8, megabytes: 300", "kind: slow, process: 1, step: 15, factor: 6"]
    faults += ["kind: another program, process: 0, step: 18", "kind: another program, process: 1, step: 18"]
    text = script(LOADING.replace("time.sleep(0.1)", "time.sleep(0.1)" + PEAK))
    run = start("--local", "2", "--chaos", write_faults(tmp_path, faults, seed=3), text)
    assert run.wait() == 0, run.stderr
    first, second = steps_of(run, 0), steps_of(run, 1)
    for kind, step in whiles.items():
        # On a busy machine a while may be longer; what computes may be quicker than it was when it was measured.
        assert first[step][0] > 0.4 * WHILE, (kind, first[step])
    assert first[15][0] < 0.4 * WHILE
    # Rows 0 to 3 of a batch are process 0's, 4 to 7 process 1's.
    assert first[4][1] == [24, 25, 26, 27]
    wrong = second[4][1]
    assert sum(value != value for value in wrong) == 1  # NaN
    assert [value for value in wrong if value == value] == [
        n for n, value in zip(range(28, 32), wrong, strict=True) if value == value
    ]
    assert 6 not in second and second[7][1] == [52, 53, 54, 55] and set(first) == set(range(1, 21))
    peak = {int(line.split()[1]): int(line.split()[2]) for line in run.log(1).decode().splitlines() if "PEAK" in line}
    assert peak[8] - peak[7] > 250
    assert min(second[step][0] for step in range(16, 21)) > 0.3 > second[14][0]  # five times a tenth of a second
    assert all(each["done"] for each in run.result["chaos"]), run.result["chaos"]


PEAK = """
    print("PEAK", loader.step, __import__("resource").getrusage(0).ru_maxrss >> 10, flush=True)
"""


def test_what_a_process_cannot_do_is_told(start: Start, script: Script, tmp_path: Path) -> None:
    faults = ["kind: another program, process: 0, step: 2", "kind: skip batch, process: 0, step: 3"]
    faults += ["kind: kill, process: 0, step: 900"]
    run = start("--local", "1", "--chaos", write_faults(tmp_path, faults), script(STEPS))
    assert run.wait() == 0, run.stderr
    assert "process 0 on localhost cannot do another program at step 2: it has not joined other" in run.stderr
    assert "process 0 on localhost cannot do skip batch at step 3: it uses no hostmesh.Loader" in run.stderr
    assert "0 of 3 faults done; not done: another program of process 0 at step 2, skip batch of" in run.stderr
    assert [each["done"] for each in run.result["chaos"]] == [False] * 3


def test_a_rehearsal_is_the_same_twice(launch: Launch, script: Script, tmp_path: Path) -> None:
    faults = write_faults(
        tmp_path, ["kind: raise, process: any, step: 2", "kind: exit 0, process: any, step: 4"], seed=11
    )
    script(STEPS)
    told = []
    for _ in range(2):
        done = launch("--local", "3", "--cold", "--keep-going", "--chaos", faults, "script.py")
        told.append(sorted(line for line in done.stderr.splitlines() if "CHAOS" in line))
    assert told[0] == told[1] and any("now at step 2: raise" in line for line in told[0])


def test_a_dry_run_says_the_faults_and_does_nothing(launch: Launch, script: Script, tmp_path: Path) -> None:
    faults = write_faults(tmp_path, ["kind: kill, process: 1, step: 2"])
    done = launch("--local", "2", "--chaos", faults, "--dry-run", "--json", script(STEPS))
    assert done.returncode == 0 and "process 1 will be killed" in done.stderr
    plan: dict[str, Any] = json.loads(done.stdout)
    assert plan["chaos"] == [{"kind": "kill", "process_id": 1, "host": "localhost", "step": 2}]


@pytest.mark.parametrize(
    ("arrays", "changed", "is_wrong"),
    [
        ([np.zeros((4, 3), np.float32)], 0, np.isnan),
        ([np.zeros(4, np.int32), np.zeros((4, 2), np.float64)], 1, np.isnan),
        ([np.zeros((4, 2), np.int32)], 0, lambda values: values == -1),
        ([np.full((4, 2), 5, np.uint8)], 0, lambda values: values == 250),
        ([np.zeros((0, 2), np.uint8), np.ones(4, np.bool_)], 1, np.logical_not),
        ([np.zeros(4, "complex64")], 0, np.isnan),
    ],
    ids=["float", "the floats", "int", "uint8", "bool", "complex"],
)
def test_one_value_of_one_row_becomes_wrong(
    arrays: list[NDArray[Any]], changed: int, is_wrong: Callable[[NDArray[Any]], NDArray[np.bool_]]
) -> None:
    before = [array.copy() for array in arrays]
    corrupt(arrays, random.Random(3))
    assert is_wrong(arrays[changed]).sum() == 1
    for number, (array, old) in enumerate(zip(arrays, before, strict=True)):
        same = array[~is_wrong(array)] == old[~is_wrong(array)] if number == changed else array == old
        assert same.all()
    again = [array.copy() for array in before]
    corrupt(again, random.Random(3))
    assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(again, arrays, strict=True))


# A process that hears nothing, and goes on.

DEAF = """
import socket, subprocess, sys
from hostmesh.worker.chaos.deafness import deafen
server = socket.create_server(("127.0.0.1", 0))
peer = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(server.getsockname()[1])], stdin=-1, stdout=-1)
end, _ = server.accept()
def say(word):
    peer.stdin.write(word)
    peer.stdin.flush()
say(b"before")
print(end.recv(9))
end.sendall(b"answer")
print(peer.stdout.read(6))
deafen(1.5)
say(b"during")
end.settimeout(0.5)
try:
    print(end.recv(9))
except TimeoutError:
    print("nothing")
end.sendall(b"spoken")
print(peer.stdout.read(6))
end.settimeout(60)
print(end.recv(9))
peer.kill()
"""
PEER = """
import os, socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while word := os.read(0, 6):
    end.sendall(word)
    os.write(1, end.recv(6))
"""


def test_a_deaf_process_hears_nothing_and_can_still_speak() -> None:
    command = [sys.executable, "-c", DEAF, PEER]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=HANGS)
    assert done.stdout.split() == ["b'before'", "b'answer'", "nothing", "b'spoken'", "b'during'"], done.stderr


# The network of a host, in a network namespace of its own; tests/test_chaos_cluster.py has it on hosts.

NETWORK = """
import os, subprocess, sys, time
from hostmesh.launcher.agent.leftovers.network import bring_back
from hostmesh.worker.chaos.network import drop_network, explain_no_network
def ip(*words):
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
folder = os.environ["FOLDER"]
os.environ["HOSTMESH_FACTS_SOCKET"] = os.path.join(folder, "facts")
ip("link", "add", "mesh0", "type", "veth", "peer", "name", "mesh1")
ip("address", "add", "10.9.9.1/24", "dev", "mesh0")
for name in ("mesh0", "mesh1"):
    ip("link", "set", name, "up")
ip("route", "add", "default", "via", "10.9.9.2")
def await_up():  # the kernel looks for a carrier aside
    until = time.monotonic() + 60
    while "state UP" not in ip("link", "show", "mesh0") or "linkdown" in ip("route", "show"):
        assert time.monotonic() < until, ip("route", "show")
        time.sleep(0.02)
await_up()
before = ip("route", "show")
assert explain_no_network() is None
drop_network(None)
assert "state DOWN" in ip("link", "show", "mesh0") and ip("route", "show") == ""
bring_back(folder)
await_up()
assert ip("route", "show") == before, ip("route", "show")
drop_network(0.1)
await_up()
assert ip("route", "show") == before
assert not os.path.exists(os.path.join(folder, "undo-network"))
print("brought back")
"""


def test_a_network_is_dropped_and_brought_back(tmp_path: Path) -> None:
    command = ["unshare", "--net", sys.executable, "-c", NETWORK]
    if shutil.which("ip") is None or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    env = clean_env({"FOLDER": str(tmp_path)})
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0 and done.stdout == "brought back\n", done.stderr
