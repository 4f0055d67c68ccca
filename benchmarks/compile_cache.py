"""What keeping compiled programs saves at a second start, and what it costs at a first, on four local processes.

Each round starts every program three times, in turn: plain (`compile_cache: off`), with an empty store, and again with
what that start has kept. Seconds are from the command to the end of the first step in all processes; processor seconds
are those of the four processes together, which a busy machine stretches less.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests"))

from conftest import LAUNCH, clean_env  # noqa: E402

COUNT = 4
TIMEOUT = 300.0
# Each layer is written out, as in a model of many different ones, so there is much to compile and little to compute.
DEEP = """
import time
import jax, jax.numpy as jnp, numpy as np
import hostmesh
hostmesh.join()
sharding = jax.sharding.NamedSharding(hostmesh.make_mesh(data=-1), jax.sharding.PartitionSpec("data"))
rows = jax.make_array_from_process_local_data(sharding, np.ones((8, 32), "f4"))
weights = [np.eye(32, dtype="f4") * (1 + number / 100) for number in range(LAYERS)]
def loss(weights, rows):
    for number, weight in enumerate(weights):
        rows = jnp.tanh(rows @ weight) + jnp.cos(rows * number).mean(axis=0)
    return (rows ** 2).mean()
step = jax.jit(jax.value_and_grad(loss))
jax.block_until_ready(step(weights, rows))
open(f"first-{jax.process_index()}", "w").write(f"{time.time()} {time.process_time()}")
"""
# One small program, as the least that a script may have.
TINY = DEEP.replace("LAYERS", "1")
# The built-in job writes no file after its first step; its end is what counts.
JOBS: dict[str, list[str]] = {
    "a script with one layer": ["tiny.py"],
    "a script with 40 layers": ["deep.py"],
    "the built-in job, 1 step, to its end": ["-m", "hostmesh.worker", "--steps", "1"],
}


class Start(NamedTuple):
    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=[*JOBS], action="append")
    options = parser.parse_args()
    rows = []
    for name in options.only or JOBS:
        found: dict[str, list[Start]] = {"plain": [], "first": [], "second": []}
        for number in range(options.rounds):
            for kind, start in measure_round(JOBS[name], is_plain_first=number % 2 == 0).items():
                found[kind].append(start)
            told = ", ".join(f"{kind} {each[-1].wall:.2f} ({each[-1].processor:.2f})" for kind, each in found.items())
            print(f"# {name}: {told} s", flush=True)
        rows.append(summarise(name, found))
    print("| four local processes | plain start | first start | second start |")
    print("\n".join(["|---|---|---|---|", *rows]))


def summarise(name: str, found: dict[str, list[Start]]) -> str:
    """Medians; the ratios are to the plain start of the same round."""
    cells = [name]
    for kind, starts in found.items():
        wall, processor = (statistics.median(values) for values in zip(*starts, strict=True))
        ratio = statistics.median(start.wall / plain.wall for start, plain in zip(starts, found["plain"], strict=True))
        beside = "" if kind == "plain" else f": **{ratio:.2f}**"
        cells.append(f"{wall:.2f} s{beside}" + ("" if math.isnan(processor) else f" ({processor:.2f} s)"))
    return f"| {' | '.join(cells)} |"


def measure_round(command: list[str], is_plain_first: bool) -> dict[str, Start]:
    with tempfile.TemporaryDirectory() as folder:
        starts: dict[str, Callable[[], Start]] = {
            "plain": lambda: measure(command, Path(folder), "off"),
            "first": lambda: measure(command, Path(folder), "on"),
            "second": lambda: measure(command, Path(folder), "on"),
        }
        order = ("plain", "first", "second") if is_plain_first else ("first", "second", "plain")
        done = {kind: starts[kind]() for kind in order}
    return {kind: done[kind] for kind in starts}


def measure(command: list[str], folder: Path, compile_cache: str) -> Start:
    hosts = [{"address": "here", "processes": COUNT}]
    settings = {"transport": "local", "hosts": hosts, "env": {"JAX_PLATFORMS": "cpu"}, "compile_cache": compile_cache}
    (folder / "c.yaml").write_text(json.dumps(settings))
    (folder / "tiny.py").write_text(TINY)
    (folder / "deep.py").write_text(DEEP.replace("LAYERS", "40"))
    for path in folder.glob("first-*"):
        path.unlink()
    began = time.time()
    done = subprocess.run(
        [*LAUNCH, "--hosts", "c.yaml", *command],
        cwd=folder,
        env=clean_env({"XDG_CACHE_HOME": str(folder / "cache")}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    ended = time.time()
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    firsts = [[float(word) for word in path.read_text().split()] for path in folder.glob("first-*")]
    if not firsts:
        return Start(ended - began, math.nan)
    return Start(max(at for at, _ in firsts) - began, sum(processor for _, processor in firsts))


if __name__ == "__main__":
    main()
