"""What the guard finds, what it says of runs that are well, and what it costs.

`faults`: every fault several times, with other processes and steps: is it told, is the process right, are the rows
right, and how many seconds after the fault? `healthy`: how many of short runs that are well are told anything. `cost`:
a loader with the guard off, at `sample` and at `every`, in turn in one run of two processes that both hold all rows;
the ratios are of one round each. `jax`: jax's own comparison of an array that is given to several processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPO = Path(__file__).parent.parent
LAUNCH = [sys.executable, "-P", "-c", "from hostmesh.launcher.cli import main; main()"]
TIMEOUT = 240.0

# argv: the fault, the process that has it, the step from which it has it, and a seed. Each two processes hold the same
# rows; with `own` the arrays are the script's own.
JOB = """
import os, sys, time
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import hostmesh
from hostmesh.worker.loading import tampering

fault, who, at, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
own, kind = fault.startswith("own "), fault.removeprefix("own ")
hostmesh.join()
me, processes = jax.process_index(), jax.process_count()
odd = me == who
holders = 2 if processes % 2 == 0 else processes
mesh = Mesh(np.array(jax.devices()).reshape(-1, holders), ("data", "model"))
random = np.random.default_rng(seed)
BATCH, RECORDS, STEPS = 32, 512, 60
part = BATCH // (len(jax.devices()) // holders)
first, second = (int(row) for row in np.sort(random.permutation(part)[:2]))  # of the odd process's own rows
data = np.arange(RECORDS * 16, dtype=np.float32).reshape(RECORDS, 16)
options = {"steps": STEPS, "seed": seed, "verify": False}

def hit():
    if odd:
        print("fault", time.time(), flush=True)

is_hit = False
def change(step, arrays):
    global is_hit
    if not odd or step < at or kind == "flip" and step > at:
        return
    if not is_hit:
        is_hit = True
        hit()
    rows = arrays[0][0]
    if kind == "swap":
        rows[[first, second]] = rows[[second, first]]
    else:
        rows[first].view(np.uint8)[seed % 64] ^= 1 << seed % 8

if kind in ("swap", "flip"):
    tampering.change_rows = change
if kind == "seed" and odd:
    hit()
    options["seed"] = seed + 1
batch_size = BATCH
if kind == "batch" and odd:
    hit()
    batch_size = 2 * BATCH
if kind == "data" and odd:
    hit()
    data[random.permutation(RECORDS)[:32]] += 1
if kind == "map" and (odd or True):
    mine = np.random.default_rng(me)
    def draw(block):
        return {"x": block["x"] + mine.random(block["x"].shape, np.float32)}
    options["map"] = draw
    hit()

total = jax.jit(lambda x: x.sum())
def use(array, step):
    jax.block_until_ready(total(array))
    time.sleep(0.01)

if own:
    sharding = NamedSharding(mesh, P("data"))
    order = np.random.default_rng(options["seed"])
    for step in range(STEPS):
        ids = order.permutation(RECORDS)[:BATCH]
        group = me * len(jax.local_devices()) // holders
        rows = data[ids[group * part : (group + 1) * part]].copy()
        if kind == "map":
            rows = draw({"x": rows})["x"]
        if tampering.change_rows:
            tampering.change_rows(step, [[rows]])
        rows = rows[: part // 2] if kind == "batch" and odd else rows
        size = len(rows) * (len(jax.devices()) // holders)
        array = jax.make_array_from_process_local_data(sharding, rows, (size, 16))
        hostmesh.check({"x": array}, "images")
        if kind != "batch":
            use(array, step)
        if kind == "ends" and odd and step + 1 == at:
            hit()
            break
else:
    loader = hostmesh.Loader({"x": data}, mesh, batch_size, **options)
    for batch in loader:
        use(batch["x"], loader.step)
        if kind == "ends" and odd and loader.step == at:
            hit()
            break
print("done")
"""
FAULTS = ["swap", "flip", "map", "data", "ends", "seed", "batch"]
OWN = ["own swap", "own flip", "own map", "own seed", "own batch", "own ends"]


def launch(script: str, *words: str, how: tuple[str, ...], folder: str) -> subprocess.CompletedProcess[str]:
    Path(folder, "job.py").write_text(script)
    env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
    command = [*LAUNCH, *how, "--show", "all", "job.py", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def expected_rows(fault: str, who: int, seed: int, processes: int) -> str:
    """As the verdict should say it."""
    import numpy as np

    kind = fault.removeprefix("own ")
    holders = 2 if processes % 2 == 0 else processes
    groups = processes // holders
    part = 32 // groups
    base = part * (who // holders)
    first, second = (base + int(row) for row in np.sort(np.random.default_rng(seed).permutation(part)[:2]))
    if kind == "swap":
        return rf"rows {first} to {second}\b"
    if kind == "flip":
        return rf"row {first}\b"
    if kind in ("map", "seed"):
        return r"rows \d+ to \d+\b"
    return r"rows? \d+( to \d+)? \(records? \d+" if kind == "data" else ""


def names(text: str, fault: str, who: int) -> bool:
    """What the loader refuses when it is made is told by all. Of two that hold the same rows, and without a third that
    could read them again, both are named."""
    kind, processes = fault.removeprefix("own "), [who, who ^ 1]
    if kind == "map":
        return bool(re.search(r"processes \d+ and \d+ gave different rows", text))
    if "wanted the same on all" in text or kind in ("seed", "batch") or fault.startswith("own ") and kind != "ends":
        both = rf"processes {min(processes)} and {max(processes)} gave different rows"
        return bool(re.search(rf"process(es)? {who}\b|process {who} has|{both}", text))
    return f"process {who} on " in text


def judge(fault: str, run: int, processes: int, how: tuple[str, ...]) -> dict[str, Any]:
    who, at, seed = run % processes, 5 + 4 * run, 100 + run
    with tempfile.TemporaryDirectory() as folder:
        done = launch(JOB, fault, str(who), str(at), str(seed), how=how, folder=folder)
        (result,) = Path(folder, "runs").glob("*/result.json")
        ended = result.stat().st_mtime
    text = done.stderr
    caught = done.returncode == 1 and bool(
        re.search(r"\b(gave|has left|process 0 has|has x)\b|wanted the same on all", text)
    )
    began = [float(found) for found in re.findall(r"fault (\d+\.\d+)", done.stdout)]
    return {
        "caught": caught,
        "process": caught and names(text, fault, who),
        "rows": caught
        and ("wanted the same on all" in text or bool(re.search(expected_rows(fault, who, seed, processes), text))),
        "seconds": ended - min(began) if began else float("nan"),
        "text": text,
    }


def measure_faults(options: argparse.Namespace) -> None:
    print(f"| fault | told | process right | rows right | seconds, median | most |\n|{'---|' * 6}")
    how = ("--guard", "every", *(options.how.split() if options.how else ("--local", str(options.processes))))
    for fault in options.only.split(",") if options.only else [*FAULTS, *OWN]:
        found = [judge(fault, run, options.processes, how) for run in range(options.runs)]
        told, right, rows = (sum(each[key] for each in found) for key in ("caught", "process", "rows"))
        seconds = [each["seconds"] for each in found]
        median, most = f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}"
        print(f"| {fault} | {told} of {len(found)} | {right} | {rows} | {median} | {most} |", flush=True)
        for each in found:
            if not (each["caught"] and each["process"] and each["rows"]):
                print(each["text"][-600:], file=sys.stderr)


# argv: a choice of each kind by number. Each pass is broken off once, and goes on.
HEALTHY = """
import itertools, json, sys
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import hostmesh

chosen = json.loads(sys.argv[1])
hostmesh.join()
me, processes = jax.process_index(), jax.process_count()
devices = len(jax.devices())
BATCH, STEPS = 24, 30
axes = {
    "data": {"data": -1},
    "model": {"data": -1, "model": devices // processes},
    "across": {"data": -1, "model": devices},
    "replicas": {"data": processes if processes % 2 else processes // 2, "model": -1},
}[chosen["mesh"]]
mesh = hostmesh.make_mesh(**axes, span_processes=True)
rows = np.arange(300 * 16, dtype=np.float32).reshape(300, 16)
arrays = {"x": rows, "y": np.arange(300)}
whole = hostmesh.open_source(arrays)
documents = hostmesh.open_source([{"x": np.arange(1 + n % 23, dtype=np.int32) % 97} for n in range(200)])
options = {"steps": STEPS, "seed": chosen["run"]}

def prepare(block, ids, rng):
    return {**block, "x": block["x"] + rng.normal((16,)).astype(np.float32), "draw": rng.random()}

source = {
    "arrays": lambda: arrays,
    "mixture": lambda: hostmesh.mix({"a": 0.7, "b": 0.3}, sources={"a": arrays, "b": whole.take(77)}),
    "joined": lambda: hostmesh.concatenate(whole.take(100), whole.skip(150)),
    "filtered": lambda: whole.filter(lambda record: record["y"] % 3 > 0),
    "packed": lambda: hostmesh.pack(documents, 32, field="x"),
    "lengths": lambda: documents,
    "stream": lambda: lambda: ({"x": rows[n % 300], "y": n % 300} for n in itertools.count()),
}[chosen["source"]]()
if chosen["source"] in ("arrays", "mixture", "joined", "filtered") and chosen["map"]:
    options["map"] = prepare
if chosen["source"] == "lengths":
    options["lengths"] = (8, 16, 32)
if chosen["source"] != "stream":
    # Records whose lengths nobody knows are read by one thread.
    options.update({} if chosen["source"] == "lengths" else chosen["workers"], tail=chosen["tail"])
    if chosen["tail"] != "carry":
        options.update(epochs=3, steps=None)
loader = hostmesh.Loader(source, mesh, BATCH, loading=chosen["loading"], **options)
total = jax.jit(lambda batch: sum(leaf.astype("float32").sum() for leaf in jax.tree.leaves(batch)))
for batch in loader:
    jax.block_until_ready(total(batch))
    if loader.step == 11:
        break
state = loader.state()
for batch in loader:
    jax.block_until_ready(total(batch))
loader.restore(state)
for batch in itertools.islice(loader, 5):
    jax.block_until_ready(total(batch))
own = jax.make_array_from_process_local_data(NamedSharding(mesh, P()), rows, rows.shape)
hostmesh.check({"own": own}, "own")
print("well", loader.step)
"""
CHOICES = {
    "mesh": ("data", "model", "across", "replicas"),
    "source": ("arrays", "mixture", "joined", "filtered", "packed", "lengths", "stream"),
    "loading": ("per_process", "per_device", "global", "reshard"),
    "workers": ({}, {"workers": 0}, {"workers": 1}, {"workers": 4}, {"processes": 1}),
    "tail": ("carry", "pad", "drop"),
    "map": (True, False),
}


def measure_healthy(options: argparse.Namespace) -> None:
    """Runs that have nothing in common but that they are well: topology, mesh, strategy, source, workers, tail."""
    choose = random.Random(options.seed)

    def choose_all(run: int) -> tuple[int, int, dict[str, Any]]:
        chosen = {name: choose.choice(of) for name, of in CHOICES.items()}
        # Each pair of the two that matter most comes equally often.
        of_both = CHOICES["source"][run % 7], CHOICES["loading"][run // 7 % 4]
        processes, devices = choose.choice(((2, 1), (2, 2), (3, 1), (4, 1), (4, 2)))
        return processes, devices, {**chosen, **dict(zip(("source", "loading"), of_both, strict=True)), "run": run}

    def one(choice: tuple[int, int, dict[str, Any]]) -> bool:
        processes, devices, chosen = choice
        guard = ("every", "sample")[chosen["run"] % 2]
        with tempfile.TemporaryDirectory() as folder:
            how = ("--local", str(processes), "--devices", str(devices), "--guard", guard)
            done = launch(HEALTHY, json.dumps(chosen), how=how, folder=folder)
        if done.returncode != 0:
            print(processes, devices, chosen, done.stderr[-2000:], file=sys.stderr, flush=True)
        return done.returncode == 0

    choices = [choose_all(run) for run in range(options.runs)]
    with ThreadPoolExecutor(options.at_once) as pool:
        well = list(pool.map(one, choices))
    print(f"{len(well)} runs that are well: {len(well) - sum(well)} false alarms", flush=True)


COST = """
import json, sys, time
import jax
import numpy as np
from jax.sharding import PartitionSpec as P
import hostmesh
rounds, rows, width, steps = map(int, sys.argv[1:5])
hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
MODES = ("off", "sample", "every")
data = {"x": np.random.default_rng(0).integers(0, 255, (2 * rows, width), np.uint8)}
def make(mode):
    in_turn = {"prefetch": 0, "device_prefetch": 0, "workers": 0}
    return hostmesh.Loader(data, mesh, rows, spec=P(), guard=mode, verify=False, **in_turn)
loaders = {mode: make(mode) for mode in MODES}
def run(mode):
    loader, clocks = loaders[mode], (time.perf_counter, time.process_time, time.thread_time)
    began = [clock() for clock in clocks]
    for _ in range(steps):
        next(loader)
    return [round((clock() - then) / steps, 7) for clock, then in zip(clocks, began)]
found = []
for number in range(-2, rounds):
    order = MODES[number % 3 :] + MODES[: number % 3]
    took = {mode: run(mode) for mode in order}
    if number >= 0:
        found.append(took)
print(json.dumps({"found": found}) if jax.process_index() == 0 else "")
"""
JAX = """
import json, sys, time
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import hostmesh
rounds, rows, width = map(int, sys.argv[1:4])
hostmesh.join()
sharding = NamedSharding(hostmesh.make_mesh(data=-1), P())
data = np.random.default_rng(0).integers(0, 255, (rows, width), np.uint8)
def compare():
    jax.block_until_ready(jax.device_put(data, sharding))
def put():
    jax.block_until_ready(jax.make_array_from_process_local_data(sharding, data, data.shape))
def look():
    array = jax.make_array_from_process_local_data(sharding, data, data.shape)
    hostmesh.check(array, "rows", guard="every")
found = []
for number in range(-1, rounds):
    took = {}
    for what in (compare, put, look):
        began = time.perf_counter()
        what()
        took[what.__name__] = time.perf_counter() - began
    if number >= 0:
        found.append(took)
print(json.dumps({"found": found}) if jax.process_index() == 0 else "")
"""


def collect(script: str, *words: object, processes: int = 2) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        done = launch(script, *map(str, words), how=("--local", str(processes)), folder=folder)
    if done.returncode:
        raise SystemExit(done.stderr)
    (line,) = [line for line in done.stdout.splitlines() if '{"found"' in line]
    found: list[dict[str, Any]] = json.loads(line[line.index("{") :])["found"]
    return found


def tell_ratios(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def measure_cost(options: argparse.Namespace) -> None:
    for rows, width, steps in ((256, 224 * 224 * 3, 4), (1024, 784, 100), (128, 784, 400), (64, 16, 1000)):
        found = collect(COST, options.rounds, rows, width, steps)
        for number, clock in enumerate(("wall", "processor", "training thread")):
            off = statistics.median(each["off"][number] for each in found)
            ratios = {
                mode: tell_ratios([each[mode][number] / each["off"][number] for each in found])
                for mode in ("sample", "every")
            }
            least = {mode: min(each[mode][number] for each in found) for mode in ("off", "sample", "every")}
            of_least = ", ".join(f"{mode} {least[mode] / least['off']:.3f}" for mode in ("sample", "every"))
            more = statistics.median(each["every"][number] - each["off"][number] for each in found)
            print(
                f"{rows} rows of {width:,} B ({rows * width / 1e6:.1f} MB), {clock}: off {1e6 * off:,.0f} µs; of it "
                f"sample {ratios['sample']}, every {ratios['every']} ({1e6 * more:,.0f} µs more); least: {of_least}",
                flush=True,
            )


def measure_jax(options: argparse.Namespace) -> None:
    for processes in (2, 4):
        found = collect(JAX, options.rounds, 256, 224 * 224 * 3, processes=processes)
        for name, what in (("compare", "jax.device_put"), ("put", "process-local"), ("look", "process-local, checked")):
            seconds = [1e3 * each[name] for each in found]
            told = f"{statistics.median(seconds):.0f} ms ({min(seconds):.0f}–{max(seconds):.0f})"
            print(f"{processes} processes, 38.5 MB, {what}: {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("faults", "healthy", "cost", "jax"))
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--only", help="faults, with commas between them")
    parser.add_argument("--seed", type=int, default=0, help="of what healthy runs do")
    parser.add_argument("--how", help="options of launch instead of --local")
    options = parser.parse_args()
    began = time.monotonic()
    measure = {"faults": measure_faults, "healthy": measure_healthy, "cost": measure_cost, "jax": measure_jax}
    measure[options.what](options)
    print(f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)


if __name__ == "__main__":
    main()
