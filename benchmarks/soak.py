"""Runs of the built-in job that are hit again and again: does each go on, and end as if nothing had happened?

A run trains on four local processes of two hosts, with a spare, and gets `--faults` faults, spread evenly over its
steps and drawn from all recoverable kinds: processes that are killed, crash, stop or leave, nurseries, agents and
guardians that are killed or stopped, notices of preemption. Its last loss is compared with that of an undisturbed run,
its audit is looked at, and what it has left is counted. `--runs` of them, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests"))

from conftest import LAUNCH, clean_env, processes_of  # noqa: E402

CLUSTER = """
transport: local
hosts: [a, b, c]
spares: 1
processes_per_host: 2
restarts: 1000
preemptions: 1000
lease: 4
hang_timeout: 15
"""
JOB = ["--batch-size", "64", "--checkpoint-every", "25", "--seed", "7"]
# Seconds after a fault within which a new step must have been done.
MAX_TO_RECOVER = 240.0
TOLERANCE = 1e-5
OUT = "stderr-out"  # what a run prints; cluster files of tests leave such files at home


@dataclass
class Watched:
    """A run, and what its events have told so far."""

    folder: Path
    launcher: subprocess.Popen[bytes]
    step: int = 0
    at: float = 0.0  # when that step was told
    pids: dict[int, int] = field(default_factory=dict)
    agents: dict[str, dict[str, int]] = field(default_factory=dict)
    wanted: int = 4  # processes that are to be up, at least
    host_of: dict[int, str] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)  # on which processes run
    attempts: int = 0
    run_id: str = ""
    _read: int = 0

    def look(self) -> None:
        for path in self.folder.glob("runs/*/events.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
            for line in lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]:
                self._read += len(line)
                self._note(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "run started":
                self.run_id = event["run"]
            case "host connected":
                self.agents[event["host"]] = {"agent": event["agent_pid"], "guardian": event["guardian_pid"]}
            case "host lost":
                self.agents.pop(event["host"], None)
            case "attempt began":
                self.attempts += 1
                self.pids.clear()
                self.hosts.clear()
            case "process started":
                self.pids[event["process_id"]] = event["pid"]
                self.hosts.add(event["host"])
                self.host_of[event["process_id"]] = event["host"]
            case "metrics" if event["detail"]["step"] > self.step:
                self.step, self.at = event["detail"]["step"], time.time()

    def await_step(self, step: int, timeout: float, attempts: int = 0) -> bool:
        """In an attempt after so many others; False when the run ended first."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.look()
            if self.step >= step and len(self.pids) >= self.wanted and self.attempts >= attempts:
                return True
            if self.launcher.poll() is not None:
                return False
            time.sleep(0.02)
        raise TimeoutError(f"{self.folder}: no step {step} within {timeout:g} s, but {self.step}")

    def last_lines(self) -> list[str]:
        return (self.folder / OUT).read_text(errors="replace").splitlines()[-12:]

    def nursery_of(self, process_id: int) -> int:
        stat = Path(f"/proc/{self.pids[process_id]}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def agent_of(self, host: str, what: str) -> int:
        return self.agents[host][what]


def to_process(number: int, process_id: int | None = None) -> Callable[[Watched, random.Random], None]:
    def act(run: Watched, chance: random.Random) -> None:
        victim = chance.choice(sorted(run.pids)) if process_id is None else process_id
        os.kill(run.pids[victim], number)

    return act


def to_agent(number: int, what: str = "agent") -> Callable[[Watched, random.Random], None]:
    def act(run: Watched, chance: random.Random) -> None:
        os.kill(run.agent_of(chance.choice(sorted(run.hosts)), what), number)

    return act


def kill_nursery(run: Watched, chance: random.Random) -> None:
    os.kill(run.nursery_of(chance.choice(sorted(run.pids))), signal.SIGKILL)


def kill_two(run: Watched, chance: random.Random) -> None:
    for victim in chance.sample(sorted(run.pids), 2):
        os.kill(run.pids[victim], signal.SIGKILL)


KINDS: dict[str, Callable[[Watched, random.Random], None]] = {
    "a process is killed": to_process(signal.SIGKILL),
    "process 0 is killed": to_process(signal.SIGKILL, 0),
    "two processes are killed": kill_two,
    "a process crashes (SIGSEGV)": to_process(signal.SIGSEGV),
    "a process aborts (SIGABRT)": to_process(signal.SIGABRT),
    "process 0 aborts": to_process(signal.SIGABRT, 0),
    "a process is stopped": to_process(signal.SIGSTOP),
    "a process gets SIGTERM": to_process(signal.SIGTERM),
    "a nursery is killed": kill_nursery,
    "an agent is killed": to_agent(signal.SIGKILL),
    "an agent is stopped": to_agent(signal.SIGSTOP),
    "an agent gets SIGTERM": to_agent(signal.SIGTERM),
    "a guardian is killed": to_agent(signal.SIGKILL, "guardian"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--faults", type=int, default=len(KINDS), help="of each run")
    parser.add_argument("--steps", type=int, default=450, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-every", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the run folders of runs that failed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected = run_undisturbed(Path(folder), options.steps)
    print(f"# undisturbed: {expected}", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    failed = 0
    for number in range(options.runs):
        folder = tempfile.mkdtemp(dir=options.keep)
        problems = soak(Path(folder), options, options.seed + number, expected, seconds)
        if not (problems and options.keep):
            shutil.rmtree(folder)
        failed += bool(problems)
        print(f"# run {number}: {'; '.join(problems) or 'as if nothing had happened'}", flush=True)
    tell(seconds)
    sys.exit(f"{failed} of {options.runs} runs were not as they should be" if failed else 0)


def start(folder: Path, steps: int, *more: str) -> Watched:
    (folder / "cluster.yaml").write_text(CLUSTER)
    command = [*LAUNCH, "--hosts", "cluster.yaml", *JOB, "--steps", str(steps), "--checkpoint-dir", "saved", *more]
    with (folder / OUT).open("wb") as out:
        launcher = subprocess.Popen(
            command, cwd=folder, env=clean_env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    return Watched(folder, launcher)


def run_undisturbed(folder: Path, steps: int) -> dict[str, float]:
    run = start(folder, steps)
    if run.launcher.wait(600) != 0:
        sys.exit("\n".join(run.last_lines()))
    return read_losses(folder)


def read_losses(folder: Path) -> dict[str, float]:
    [path] = folder.glob("runs/*/summary.json")
    summary = json.loads(path.read_text())
    return {name: summary[name] for name in ("loss", "eval_loss")}


def soak(
    folder: Path, options: argparse.Namespace, seed: int, expected: dict[str, float], seconds: dict[str, list[float]]
) -> list[str]:
    chance = random.Random(seed)
    kinds = [list(KINDS)[each % len(KINDS)] for each in range(options.faults)]
    chance.shuffle(kinds)
    memory = ["--memory-every", str(options.memory_every)] if options.memory_every else []
    run = start(folder, options.steps, *memory)
    if problems := hit_all(run, options.steps, kinds, lambda kind: KINDS[kind](run, chance), seconds):
        return problems
    problems = find_wrong_numbers(run, expected)
    if left := processes_of(run.run_id):
        problems.append(f"left behind: {sorted(left)}")
    if folders := [str(each) for top in ("/tmp", "/dev/shm") for each in Path(top).glob(f"*{run.run_id}*")]:
        problems.append(f"left behind: {folders}")
    return problems


def hit_all(
    run: Watched, steps: int, kinds: Sequence[str], act: Callable[[str], None], seconds: dict[str, list[float]]
) -> list[str]:
    """Each kind of fault at its step, and then the rest of the run; why it did not end well."""
    try:
        for number, kind in enumerate(kinds, 1):
            if not run.await_step(number * steps // (len(kinds) + 1), MAX_TO_RECOVER):
                break
            before, attempts, hit = run.step, run.attempts, time.time()
            try:
                act(kind)
            except (ProcessLookupError, FileNotFoundError, KeyError, IndexError) as error:
                print(f"# {kind}: nobody to do it to ({error!r})", flush=True)
                continue
            # What it has done until the fault had its effect is no sign of another attempt.
            if not run.await_step(0, MAX_TO_RECOVER, attempts + 1):
                break
            if not run.await_step(run.step + 1, MAX_TO_RECOVER):
                break
            seconds[kind].append(run.at - hit)
            print(f"# {kind} at step {before}: {seconds[kind][-1]:.1f} s", flush=True)
        run.launcher.wait(600)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        run.launcher.send_signal(signal.SIGINT)
        run.launcher.wait(60)
        return [str(error), *run.last_lines()]
    finally:
        if run.launcher.poll() is None:
            run.launcher.kill()
    code = run.launcher.returncode
    return [f"exit code {code}: {' | '.join(run.last_lines())}"] if code else []


def find_wrong_numbers(run: Watched, expected: dict[str, float]) -> list[str]:
    problems = []
    found = read_losses(run.folder)
    for name, value in expected.items():
        if abs(found[name] - value) > TOLERANCE:
            problems.append(f"{name} {found[name]} instead of {value}")
    [path] = run.folder.glob("runs/*/result.json")
    audit = json.loads(path.read_text()).get("audit")
    if audit is None or audit["exact"] is not True:
        problems.append(f"audit: {audit}")
    return problems


def tell(seconds: dict[str, list[float]]) -> None:
    print("| fault | times | seconds to the next new step, median | most |\n|---|---|---|---|")
    for name, each in seconds.items():
        if each:
            print(f"| {name} | {len(each)} | {statistics.median(each):.1f} | {max(each):.1f} |")
    every = [value for each in seconds.values() for value in each]
    if every:
        print(f"| all | {len(every)} | {statistics.median(every):.1f} | {max(every):.1f} |")


if __name__ == "__main__":
    main()
