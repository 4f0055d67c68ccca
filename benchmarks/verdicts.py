"""The corpus of faults: is the right process named, as what, how soon, and is nothing left?

Every fault of `launch --chaos` (docs/chaos.md) hits one of four processes, each time another one, process 0 included:
in a job that uses hostmesh.Loader, and in an unmodified script. `--healthy` runs jobs that are slow and healthy, where
any verdict would be a false alarm; `--torchrun` does the same faults under torchrun. `--hosts FILE` uses the hosts of a
cluster file, such as those of `make cluster`, instead of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

REPO = Path(__file__).parent.parent
LAUNCH = [sys.executable, "-P", "-c", "from hostmesh.launcher.cli import main; main()"]
COUNT = 4
STEP = 12
AFTER = 6.0
TIMEOUT = 240.0
WITH_LOADER = """
import numpy as np, time
import jax, jax.numpy as jnp
import hostmesh
hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader({"x": np.arange(64 * 80, dtype="f4").reshape(640, 8)}, mesh, batch_size=64, steps=3000)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
total = jnp.zeros(())
for batch in loader:
    total = add(total, batch).block_until_ready()
    time.sleep(0.02)
"""
UNMODIFIED = """
import time
import numpy as np
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize()
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
add = jax.jit(lambda total, x: total + x.sum())
total = jnp.zeros(())
for step in range(3000):
    rows = 8 * jax.local_device_count()
    x = jax.make_array_from_process_local_data(sharding, np.ones(rows, "f4"), (8 * jax.device_count(),))
    total = add(total, x).block_until_ready()
    time.sleep(0.02)
"""
JOBS = {"loader": WITH_LOADER, "unmodified": UNMODIFIED}

BUG, KILLED, HANG, OOM, OTHER = "bug", "killed", "hang", "out of memory", "disagreement"


class Fault(NamedTuple):
    """`kinds` are the verdicts that are right; a hang takes `--hang-timeout`, or 10 s where somebody has left."""

    name: str
    kinds: tuple[str, ...]
    settings: str = ""
    jobs: tuple[str, ...] = ("loader", "unmodified")
    hangs: bool = False
    local: bool = True
    hosts: bool = True


CORPUS = [
    Fault("kill", (KILLED,)),
    Fault("abort", (BUG, KILLED)),
    Fault("segfault", (BUG, KILLED)),
    Fault("raise", (BUG,)),
    Fault("exit 0", (HANG, BUG), hangs=True),
    Fault("leave early", (HANG,), hangs=True),
    Fault("stop", (HANG,), hangs=True),
    Fault("sleep", (HANG,), hangs=True),
    Fault("lock", (HANG,), hangs=True),
    Fault("spin", (HANG,), hangs=True),
    Fault("hold gil", (HANG,), hangs=True),
    Fault("python spin", (HANG,), hangs=True),
    Fault("subprocess", (HANG,), hangs=True),
    Fault("read", (HANG,), hangs=True),
    Fault("disk", (HANG,), hangs=True),
    Fault("skip batch", (HANG, OTHER), jobs=("loader",), hangs=True),
    Fault("another program", (OTHER,)),
]


class Outcome(NamedTuple):
    fault: str
    job: str
    culprit: int
    named: int | None
    kind: str
    seconds: float
    survivors: int
    message: str


def main() -> None:
    options = parse_options()
    if options.torchrun:
        show_torchrun(options)
        return
    if options.healthy:
        show_healthy(options)
        return
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for fault in CORPUS:
        if options.only and fault.name not in options.only:
            continue
        for job in fault.jobs:
            if options.jobs and job not in options.jobs:
                continue
            for seed in range(options.seeds):
                outcome = run_fault(fault, job, seed, options)
                outcomes.setdefault((fault.name, job), []).append(outcome)
                mark = "" if is_right(outcome, fault) else f"   WRONG: {outcome.message}"
                print(f"# {fault.name}, {job}, process {outcome.culprit}: named {outcome.named} as {outcome.kind} "
                      f"after {outcome.seconds:.2f} s, {outcome.survivors} left{mark}", flush=True)  # fmt: skip
    show(outcomes, options)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hang-timeout", type=float, default=8.0)
    parser.add_argument("--hosts", help="a cluster file, instead of four processes here")
    parser.add_argument("--only", nargs="*", help="these faults")
    parser.add_argument("--jobs", nargs="*", choices=list(JOBS))
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="N runs that are slow and healthy")
    parser.add_argument("--torchrun", action="store_true")
    return parser.parse_args()


def is_right(outcome: Outcome, fault: Fault) -> bool:
    return outcome.named == outcome.culprit and outcome.kind in fault.kinds


def run_fault(fault: Fault, job: str, seed: int, options: argparse.Namespace) -> Outcome:
    """The culprit is another one with every seed, process 0 included."""
    culprit = seed % COUNT
    with tempfile.TemporaryDirectory() as folder:
        when = f"step: {STEP + seed}" if job == "loader" else f"after: {AFTER + 0.3 * seed}"
        fields = ", ".join(filter(None, (f"kind: {fault.name}", f"process: {culprit}", when, fault.settings)))
        Path(folder, "faults.yaml").write_text(f"seed: {seed}\nfaults:\n  - {{{fields}}}\n")
        result = launch(folder, JOBS[job], ["--chaos", "faults.yaml"], options)
        verdict = result["verdict"]
        named = result["process_id"]
        return Outcome(
            *(fault.name, job, culprit, named, verdict["kind"]),
            *(result["ended"] - result["fault_at"], result["survivors"], result["message"]),
        )


def launch(folder: str, job: str, more: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """What result.json says, when the fault happened and when the run ended, and what it left."""
    Path(folder, "train.py").write_text(job)
    where = ["--hosts", str(Path(options.hosts).resolve())] if options.hosts else ["--local", str(COUNT)]
    command = [*LAUNCH, *where, "--json", "--hang-timeout", str(options.hang_timeout), *more, "train.py"]
    env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    with Path(folder, "err").open("wb") as err:
        done = subprocess.run(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, timeout=TIMEOUT
        )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (result_file,) = Path(folder, "runs").glob("*/result.json")
    result: dict[str, Any] = json.loads(result_file.read_text())
    faults = [event["detail"]["at"] for event in events if event["event"] == "chaos"]
    ended = next(event["time"] for event in events if event["event"] == "run ended")
    return {
        **result,
        "fault_at": faults[0] if faults else ended,
        "ended": ended,
        "survivors": len(survivors(result["run"])),
    }


def survivors(run: str) -> list[int]:
    """Processes of the run on this machine; the hosts of a compose cluster are processes of this machine as well."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if f"HOSTMESH_RUN_ID={run}".encode() in environ and state not in "ZX":
            found.append(int(entry.name))
    return found


def show(outcomes: dict[tuple[str, str], list[Outcome]], options: argparse.Namespace) -> None:
    faults = {fault.name: fault for fault in CORPUS}
    print("| fault | job | right culprit | right kind | seconds, median | most | left |")
    print("|---|---|---|---|---|---|---|")
    for (name, job), runs in outcomes.items():
        culprits = sum(run.named == run.culprit for run in runs)
        kinds = sum(run.kind in faults[name].kinds for run in runs)
        seconds = [run.seconds for run in runs]
        print(
            f"| {name} | {job} | {culprits} of {len(runs)} | {kinds} of {len(runs)} | {statistics.median(seconds):.2f} "
            f"| {max(seconds):.2f} | {sum(run.survivors for run in runs)} |"
        )
    every = [run for runs in outcomes.values() for run in runs]
    right = sum(run.named == run.culprit for run in every)
    wrong = sum(run.named not in (run.culprit, None) for run in every)
    print(
        f"\n{right} of {len(every)} name the culprit, {wrong} name a wrong one; hang timeout {options.hang_timeout:g} s"
    )


# Slow and healthy: any verdict is a false alarm.

COMPILES = """
import time
import jax, jax.numpy as jnp, numpy as np
import hostmesh
hostmesh.join()
from jax._src import compiler
real = compiler.backend_compile_and_load
def slow(*args, **kwargs):
    if jax.process_index() == {slow} or {slow} < 0:
        time.sleep({seconds})
    return real(*args, **kwargs)
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader({{"x": np.ones((640, 8), "f4")}}, mesh, batch_size=64, steps=20)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
total = jnp.zeros(())
for batch in loader:
    compiler.backend_compile_and_load = slow if loader.step == 1 else real
    total = add(total, batch).block_until_ready()
"""
SAVES = """
import time
import jax, jax.numpy as jnp, numpy as np
import hostmesh
from jax.experimental import multihost_utils
hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader({{"x": np.ones((640, 8), "f4")}}, mesh, batch_size=64, steps=20)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
total = jnp.zeros(())
for batch in loader:
    total = add(total, batch).block_until_ready()
    if loader.step == 10:
        with hostmesh.phase("saving"):
            if jax.process_index() == {slow} or {slow} < 0:
                time.sleep({seconds})
        multihost_utils.sync_global_devices("saved")
"""
NEIGHBOUR = """
import subprocess, sys, time
import jax, jax.numpy as jnp, numpy as np
import hostmesh
hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader({{"x": np.ones((640, 8), "f4")}}, mesh, batch_size=64)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
total = jnp.zeros(())
if jax.process_index() == {slow}:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
began = time.time()
for batch in loader:
    total = add(total, batch).block_until_ready()
    if hostmesh.preemption_requested(loader.step) if False else loader.step >= 400:
        break
if jax.process_index() == {slow}:
    for each in busy:
        each.kill()
        each.wait()
"""


def healthy_jobs(count: int) -> Iterator[tuple[str, str]]:
    kinds = [("a 90 s compile", COMPILES, 90), ("a 60 s save", SAVES, 60), ("a busy neighbour", NEIGHBOUR, 0)]
    for number in range(count):
        name, job, seconds = kinds[number % len(kinds)]
        slow = (
            (number // len(kinds)) % COUNT if name == "a busy neighbour" else (number // len(kinds)) % (COUNT + 1) - 1
        )
        yield f"{name}, process {'all' if slow < 0 else slow}", job.format(slow=slow, seconds=seconds)


def show_healthy(options: argparse.Namespace) -> None:
    """Most of them only wait, so several run at once."""

    def run(named_job: tuple[str, str]) -> tuple[str, int, str]:
        with tempfile.TemporaryDirectory() as folder:
            result = launch(folder, named_job[1], ["--quiet"], options)
            return named_job[0], result["exit_code"], result["message"]

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(run, healthy_jobs(options.healthy)))
    for name, code, message in results:
        print(f"# {name}: {'no alarm' if code == 0 else f'exit code {code}: {message}'}")
    alarms = sum(code != 0 for _, code, _ in results)
    print(f"{alarms} false alarms in {len(results)} runs with a hang timeout of {options.hang_timeout:g} s")


# The same faults under torchrun.

TORCH = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
fault, culprit = sys.argv[1], int(sys.argv[2])
def act():
    print(f"FAULT {time.time()}", flush=True)
    if fault == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if fault == "abort": os.abort()
    if fault == "segfault": ctypes.string_at(0)
    if fault == "raise": raise RuntimeError("a fault")
    if fault == "exit 0": os._exit(0)
    if fault == "leave early": sys.exit(0)
    if fault == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    if fault in ("sleep", "python spin"): time.sleep(10**6)
    if fault == "lock":
        lock = threading.Lock(); lock.acquire(); lock.acquire()
    if fault == "spin":
        import hashlib; hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
    if fault == "subprocess": subprocess.run(["sleep", "1000000"])
for step in range(3000):
    if step == 12 and dist.get_rank() == culprit:
        act()
    dist.all_reduce(torch.ones(8))
    time.sleep(0.02)
"""
TORCH_FAULTS = (
    "kill",
    "abort",
    "segfault",
    "raise",
    "exit 0",
    "leave early",
    "stop",
    "sleep",
    "lock",
    "spin",
    "subprocess",
)


def show_torchrun(options: argparse.Namespace) -> None:
    """It names a process as `Root Cause … rank: 2`; what has not ended after two minutes is given up."""
    print("| fault | right culprit | seconds, median | not ended in 120 s |")
    print("|---|---|---|---|")
    for fault in TORCH_FAULTS:
        if options.only and fault not in options.only:
            continue
        runs = [torchrun(fault, seed % COUNT) for seed in range(options.seeds)]
        right, ended = sum(named for named, _ in runs), [seconds for _, seconds in runs if seconds is not None]
        typical = f"{statistics.median(ended):.1f}" if ended else "-"
        print(f"| {fault} | {right} of {len(runs)} | {typical} | {len(runs) - len(ended)} |", flush=True)


def torchrun(fault: str, culprit: int) -> tuple[bool, float | None]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(TORCH)
        command = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", str(COUNT), "--master-port", "0"]
        with Path(folder, "out").open("wb") as out:
            process = subprocess.Popen(
                [*command, "train.py", fault, str(culprit)], cwd=folder, stdout=out, stderr=out, start_new_session=True
            )
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                for pid in torch_survivors(folder):
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                return False, None
        ended = time.time()
        said = Path(folder, "out").read_text(errors="replace")
        began = next((float(line.split()[-1]) for line in said.splitlines() if line.startswith("FAULT")), ended)
        cause = said.partition("Root Cause")[2]
        return f"rank      : {culprit} " in cause, ended - began


def torch_survivors(folder: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if os.readlink(entry / "cwd") == os.path.realpath(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
