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
import shutil
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
sys.path.insert(0, str(REPO / "tests"))

# Of a compose cluster as well: its hosts run on this machine.
from conftest import LAUNCH, clean_env, processes_of  # noqa: E402

COUNT = 4
STEP = 12
# Seconds after which a script is at its steps: what stands still while it compiles has an hour.
AFTER, AFTER_ON_HOSTS = 6.0, 12.0
TIMEOUT = 240.0
WITH_LOADER = """
import os, sys, threading, time
import numpy as np
import jax, jax.numpy as jnp
from jax.experimental import io_callback, multihost_utils
import hostmesh
from hostmesh.worker.process.facts import send_fact
FAULT, CULPRIT, AT, STEPS = os.environ.get("FAULT"), int(os.environ.get("CULPRIT", -1)), 12, {steps}
is_culprit = int(os.environ["HOSTMESH_PROCESS_ID"]) == CULPRIT
def is_time(fault):
    if FAULT == fault and is_culprit:
        send_fact("fault", must_arrive=True, at=time.time())
        return True
    return False
if is_time("never joins"):
    time.sleep(10**6)
if is_time("exits before it joins"):
    sys.exit(0)
hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
class Source:
    name = "numbers"
    def __len__(self):
        return 640
    def read(self, ids):
        if loader is not None and loader.step >= AT:
            if is_time("raises in read"):
                raise ValueError("a bad record")
            if is_time("sleeps in read"):
                time.sleep(10**6)
        return {"x": np.ones((len(ids), 8), "f4")}
def called_back(x):
    if x >= AT:
        if is_time("raises in a callback"):
            raise ValueError("a bad value")
        if is_time("sleeps in a callback"):
            time.sleep(10**6)
    return np.float32(0)
loader = None
loader = hostmesh.Loader(Source(), mesh, batch_size=64, steps=STEPS)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
call = jax.jit(lambda step: io_callback(called_back, jax.ShapeDtypeStruct((), "f4"), step))
total = jnp.zeros(())
for batch in loader:
    if loader.step == AT:
        if is_time("sys.exit(3)"):
            sys.exit(3)
        if is_time("leaves the loop for a barrier"):
            break
        if is_time("a thread that never ends"):
            threading.Thread(target=time.sleep, args=(10**6,)).start()
        if FAULT == "skips a barrier" and not is_time("skips a barrier"):
            multihost_utils.sync_global_devices("a barrier")
    if "callback" in str(FAULT):
        call(np.float32(loader.step)).block_until_ready()
    total = add(total, batch).block_until_ready()
    time.sleep(0.02)
if FAULT == "leaves the loop for a barrier":
    multihost_utils.sync_global_devices("the end")
"""
UNMODIFIED = """
import os, time
import numpy as np
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
jax.distributed.initialize()
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
add = jax.jit(lambda total, x: total + x.sum())
total = jnp.zeros(())
for step in range({steps}):
    rows = 8
    if os.environ.get("FAULT") == "another shape" and step > 20:
        rows = 6 if jax.process_index() == int(os.environ["CULPRIT"]) else 10
    local = np.ones(rows * jax.local_device_count(), "f4")
    x = jax.make_array_from_process_local_data(sharding, local, (rows * jax.device_count(),))
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
    is_chaos: bool = True  # else the job itself does it
    steps: int = 3000


CORPUS = [
    Fault("kill", (KILLED,)),
    Fault("abort", (BUG, KILLED)),
    Fault("segfault", (BUG, KILLED)),
    Fault("raise", (BUG,)),
    Fault("exit 0", (HANG, BUG)),
    Fault("leave early", (HANG,)),
    Fault("stop", (HANG,)),
    Fault("sleep", (HANG,)),
    Fault("lock", (HANG,)),
    Fault("spin", (HANG,)),
    Fault("hold gil", (HANG,)),
    Fault("python spin", (HANG,)),
    Fault("subprocess", (HANG,)),
    Fault("read", (HANG,)),
    Fault("disk", (HANG,)),
    Fault("deaf", (HANG, BUG)),
    Fault("skip batch", (HANG, OTHER), jobs=("loader",), steps=100),
    Fault("another program", (OTHER,)),
    Fault("another shape", (OTHER,), jobs=("unmodified",), is_chaos=False),
    Fault("never joins", (HANG,), jobs=("loader",), is_chaos=False),
    Fault("exits before it joins", (HANG, BUG), jobs=("loader",), is_chaos=False),
    Fault("raises in read", (BUG,), jobs=("loader",), is_chaos=False),
    Fault("sleeps in read", (HANG,), jobs=("loader",), is_chaos=False),
    Fault("raises in a callback", (BUG,), jobs=("loader",), is_chaos=False),
    Fault("sleeps in a callback", (HANG,), jobs=("loader",), is_chaos=False),
    Fault("sys.exit(3)", (BUG,), jobs=("loader",), is_chaos=False),
    Fault("leaves the loop for a barrier", (HANG, OTHER), jobs=("loader",), is_chaos=False),
    Fault("skips a barrier", (HANG, OTHER), jobs=("loader",), is_chaos=False, steps=100),
    Fault("a thread that never ends", (HANG,), jobs=("loader",), is_chaos=False, steps=100),
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
    faults = [fault for fault in CORPUS if not options.only or fault.name in options.only]
    jobs = [(fault, job) for fault in faults for job in fault.jobs if not options.jobs or job in options.jobs]
    runs = [(fault, job, seed) for fault, job in jobs for seed in range(options.seeds)]
    outcomes: dict[tuple[str, str], list[Outcome]] = {(fault.name, job): [] for fault, job in jobs}
    with ThreadPoolExecutor(options.at_once) as pool:
        for fault, outcome in pool.map(lambda run: (run[0], run_fault(*run, options)), runs):
            outcomes[fault.name, outcome.job].append(outcome)
            print(describe(outcome, fault), flush=True)
    show(outcomes, options)


def describe(outcome: Outcome, fault: Fault) -> str:
    text = f"# {fault.name}, {outcome.job}, process {outcome.culprit}: named {outcome.named} as {outcome.kind}"
    more = "" if is_right(outcome, fault) else f"   WRONG: {outcome.message}"
    return f"{text} after {outcome.seconds:.2f} s, {outcome.survivors} left{more}"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--hang-timeout", type=float, default=8.0)
    parser.add_argument("--hosts", help="a cluster file, instead of four processes here")
    parser.add_argument("--devices", default="1", help="CPU devices per process (default: 1)")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--keep", metavar="DIR", help="where to keep the folders of runs with a wrong verdict")
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
        text = JOBS[job].replace("{steps}", str(fault.steps))
        if fault.is_chaos:
            after = (AFTER_ON_HOSTS if options.hosts else AFTER) + 0.3 * seed
            when = f"step: {STEP + seed}" if job == "loader" else f"after: {after}"
            fields = ", ".join((f"kind: {fault.name}", f"process: {culprit}", when))
            Path(folder, "faults.yaml").write_text(f"seed: {seed}\nfaults:\n  - {{{fields}}}\n")
            result = launch(folder, text, ["--chaos", "faults.yaml"], options)
        else:
            text = f"import os\nos.environ.update(FAULT={fault.name!r}, CULPRIT='{culprit}')\n{text}"
            result = launch(folder, text, [], options)
        if options.keep and (result["process_id"] != culprit or result["verdict"]["kind"] not in fault.kinds):
            shutil.copytree(
                folder, Path(options.keep, f"{fault.name} {job} {seed}".replace(" ", "-")), dirs_exist_ok=True
            )
        return Outcome(
            *(fault.name, job, culprit, result["process_id"], result["verdict"]["kind"]),
            *(result["ended"] - result["fault_at"], result["survivors"], result["message"]),
        )


def launch(folder: str, job: str, more: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """What result.json says, when the fault happened and when the run ended, and what it left."""
    Path(folder, "train.py").write_text(job)
    here = ["--local", str(COUNT), "--devices", options.devices]
    where = ["--hosts", str(Path(options.hosts).resolve())] if options.hosts else here
    command = [*LAUNCH, *where, "--json", "--hang-timeout", str(options.hang_timeout), *more, "train.py"]
    env = clean_env()
    with Path(folder, "err").open("wb") as err, Path(folder, "out").open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:  # it is not told at all, which the verdict of an interrupt shows
            process.send_signal(signal.SIGINT)
            process.wait(TIMEOUT)
    events = [json.loads(line) for line in Path(folder, "out").read_bytes().splitlines()]
    (result_file,) = Path(folder, "runs").glob("*/result.json")
    result: dict[str, Any] = json.loads(result_file.read_text())
    faults = [event["detail"]["at"] for event in events if event["event"] in ("chaos", "fault")]
    ended = next(event["time"] for event in events if event["event"] == "run ended")
    began = faults[0] if faults else ended
    return {**result, "fault_at": began, "ended": ended, "survivors": len(processes_of(result["run"]))}


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
other = jax.jit(lambda total, batch: total - batch["x"].max())
total = jnp.zeros(())
for batch in loader:
    # Not the first computation of all: gloo gives up after 30 s while processes meet for the first time.
    compiler.backend_compile_and_load = slow if loader.step == 5 else real
    total = (other if loader.step == 5 else add)(total, batch).block_until_ready()
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
loader = hostmesh.Loader({{"x": np.ones((640, 8), "f4")}}, mesh, batch_size=64, steps=400)
add = jax.jit(lambda total, batch: total + batch["x"].sum())
total = jnp.zeros(())
if jax.process_index() == {slow}:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
for batch in loader:
    total = add(total, batch).block_until_ready()
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
        command = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", str(COUNT)]
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
