"""How long a run stands still after `kill -9` of one of its four processes: until a step is done that was not before.

In turn with `torchrun --max-restarts`, on scripts that do the same: steps of 50 ms with an all-reduce, of which the
first process saves every one. Run it on an idle machine; it needs torch for the comparison.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests"))

from conftest import LAUNCH, clean_env  # noqa: E402

COUNT, KILLED_AT = 4, 20
TIMEOUT = 120.0
# Each process writes its pid, the first one each step that it has done, with the time.
LOOP = """
open(f"pid-{rank}", "w").write(str(os.getpid()))
saved = open("saved").read() if os.path.exists("saved") else "0"
for step in range(int(saved) + 1, 100000):
    time.sleep(0.05)
    add()
    if rank == 0:
        open("saved.new", "w").write(str(step))
        os.replace("saved.new", "saved")
        print(time.time(), step, file=open("steps", "a", buffering=1))
"""
OURS = f"""
import os, time
import jax, jax.numpy as jnp, numpy as np
import hostmesh
hostmesh.join()
rank = jax.process_index()
sharding = jax.sharding.NamedSharding(hostmesh.make_mesh(data=-1), jax.sharding.PartitionSpec("data"))
ones = jax.make_array_from_process_local_data(sharding, np.ones(jax.local_device_count(), "f4"))
total = jax.jit(lambda x: x.sum())
def add():
    total(ones).block_until_ready()
{LOOP}
"""
TORCH = f"""
import os, time
import torch, torch.distributed as dist
# By itself it may take addresses of the attempt before out of torchrun's store, and wait for who is gone.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
store = dist.PrefixStore("attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"], store)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", store=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
def add():
    dist.all_reduce(torch.ones(1))
{LOOP}
"""
Start = Callable[[Path], "subprocess.Popen[bytes]"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-torchrun", action="store_true")
    options = parser.parse_args()
    kinds: dict[str, Start] = {"launch --restarts": start_ours, "launch --restarts --cold": start_ours_cold}
    if not options.without_torchrun:
        kinds["torchrun --max-restarts"] = start_torchrun
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(options.rounds):
        for name, start in kinds.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(measure(start, Path(folder), number % COUNT))
            print(f"# {name}: process {number % COUNT}: {found[name][-1]:.2f} s", flush=True)
    print("| | went on | seconds to the next new step, median | least | most |\n|---|---|---|---|---|")
    for name, every in found.items():
        seconds = [each for each in every if each < math.inf] or [math.nan]
        numbers = " | ".join(f"{each:.2f}" for each in (statistics.median(seconds), min(seconds), max(seconds)))
        print(f"| `{name}` | {sum(each < math.inf for each in every)} of {len(every)} | {numbers} |")


def measure(start: Start, folder: Path, victim: int) -> float:
    process = start(folder)
    try:
        await_step(folder, lambda at, step: step >= KILLED_AT)
        pid = int((folder / f"pid-{victim}").read_text())
        os.kill(pid, signal.SIGKILL)
        killed_at = time.time()
        last = max(step for _, step in read_steps(folder))
        return await_step(folder, lambda at, step: step > last + 1, process) - killed_at
    except (ChildProcessError, TimeoutError):
        return math.inf
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def await_step(
    folder: Path, is_it: Callable[[float, int], bool], process: subprocess.Popen[bytes] | None = None
) -> float:
    """The time at which it was done; an error if the process ends first."""
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        for at, step in read_steps(folder):
            if is_it(at, step):
                return at
        if process is not None and process.poll() is not None:
            raise ChildProcessError(f"it ended with {process.returncode}")
        time.sleep(0.01)
    raise TimeoutError((folder / "out").read_text(errors="replace")[-3000:])


def read_steps(folder: Path) -> Sequence[tuple[float, int]]:
    if not (folder / "steps").exists():
        return []
    lines = [line.split() for line in (folder / "steps").read_text().splitlines()]
    return [(float(line[0]), int(line[1])) for line in lines if len(line) == 2]


def start_ours(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    return begin(folder, [*LAUNCH, "--local", str(COUNT), "--restarts", "2", *more, "train.py"], OURS)


def start_ours_cold(folder: Path) -> subprocess.Popen[bytes]:
    return start_ours(folder, "--cold")


def start_torchrun(folder: Path) -> subprocess.Popen[bytes]:
    torchrun = str(Path(sys.executable).parent / "torchrun")
    options = ["--standalone", "--nproc-per-node", str(COUNT), "--max-restarts", "2"]
    return begin(folder, [torchrun, *options, "train.py"], TORCH)


def begin(folder: Path, command: Sequence[str], script: str) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(script)
    out = (folder / "out").open("wb")
    return subprocess.Popen(
        command, cwd=folder, env=clean_env(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
    )


if __name__ == "__main__":
    main()
