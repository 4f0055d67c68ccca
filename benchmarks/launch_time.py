"""Wall time from the command to the first global collective done on all processes, beside other ways to start them.

Each round starts every contender once, in turn, so that a noisy machine treats them alike; a contender's number is the
median over the rounds of its time divided by the shell loop's time in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
# The same lines for all; only how the identity gets in differs. Each process notes when its collective is done.
JOB = """
import os, time
import jax
from jax.experimental import multihost_utils
{join}
multihost_utils.sync_global_devices("first")
done = time.time()
with open(os.path.join(os.environ["DONE_FOLDER"], str(jax.process_index())), "w") as file:
    file.write(str(done))
"""
JOIN_BY_HAND = 'jax.distributed.initialize(os.environ["ADDRESS"], int(os.environ["COUNT"]), int(os.environ["NUMBER"]))'
JOIN_TORCHRUN = (
    'jax.distributed.initialize(os.environ["ADDRESS"], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))'
)
JOIN_BARE = "jax.distributed.initialize()"


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def shell_loop(folder: Path, count: int) -> list[str]:
    lines = [f"NUMBER={k} COUNT={count} {sys.executable} {folder}/by_hand.py &" for k in range(count)]
    return ["sh", "-c", "\n".join([*lines, "wait"])]


def contenders(folder: Path, count: int) -> dict[str, list[str]]:
    runs = ["--runs", str(folder / "runs")]
    found = {
        "shell loop": shell_loop(folder, count),
        "launch": [str(BIN / "launch"), "--local", str(count), *runs, str(folder / "bare.py")],
        "launch --cold": [str(BIN / "launch"), "--local", str(count), "--cold", *runs, str(folder / "bare.py")],
    }
    if (BIN / "torchrun").exists():
        rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={free_address()}"]
        found["torchrun"] = [str(BIN / "torchrun"), *rendezvous, f"--nproc-per-node={count}", f"{folder}/torchrun.py"]
    if shutil.which("mpirun"):
        root = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        found["mpirun"] = ["mpirun", *root, "-n", str(count), sys.executable, f"{folder}/bare.py"]
    return found


def measure(command: list[str], count: int) -> float:
    with tempfile.TemporaryDirectory() as done:
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "ADDRESS": free_address(), "DONE_FOLDER": done}
        began = time.time()
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        times = [float(file.read_text()) for file in Path(done).iterdir()]
        if len(times) != count:
            raise SystemExit(f"{command[0]}: {len(times)} of {count} processes finished\n{ended.stdout}{ended.stderr}")
        return max(times) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    options = parser.parse_args()
    everything: dict[int, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, join in {"by_hand": JOIN_BY_HAND, "bare": JOIN_BARE, "torchrun": JOIN_TORCHRUN}.items():
            (folder / f"{file}.py").write_text(JOB.format(join=join))
        for count in options.processes:
            times = everything[count] = {}
            for turn in range(options.rounds + 1):
                for contender, command in contenders(folder, count).items():
                    seconds = measure(command, count)
                    if turn:  # the first round only fills the caches
                        times.setdefault(contender, []).append(seconds)
            report(count, times)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


def report(count: int, times: dict[str, list[float]]) -> None:
    base = times["shell loop"]
    print(f"{count} processes, {len(base)} rounds: seconds and ratio to the shell loop (median, least, most)")
    for contender, seconds in times.items():
        ratios = [mine / loop for mine, loop in zip(seconds, base, strict=True)]
        middle = f"{statistics.median(seconds):6.2f} s   {statistics.median(ratios):.2f}"
        print(f"  {contender:<14} {middle}   {min(ratios):.2f} to {max(ratios):.2f}", flush=True)


if __name__ == "__main__":
    main()
