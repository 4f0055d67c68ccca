"""What the audit of used records costs a training loop with steps of a millisecond and batches of 1,024 rows.

In one process of a real run, blocks of steps of two loaders take turns: one that counts and tells what it hands out,
and one that does not. Then the same with a state taken at every step, as for a snapshot after each. All reading is done
in the step (no read-ahead), so nothing is hidden behind the computation. Ratios are of the step as a whole, in wall and
in processor time; the microseconds are processor time of the parts alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parent.parent
LAUNCH = [sys.executable, "-P", "-c", "from hostmesh.launcher.cli import main; main()"]
JOB = """
import json, os, statistics, sys, time
import numpy as np
import hostmesh
from hostmesh.worker.audit.used import count_used
blocks, steps, rows = int(sys.argv[1]), 250, 1024
hostmesh.join()
matrix = np.ones((160, 160), "f4")
def make(counts):
    address = os.environ.pop("HOSTMESH_FACTS_SOCKET")
    if counts:
        os.environ["HOSTMESH_FACTS_SOCKET"] = address
    # Another seed, because loaders of the same order share what was computed of it.
    options = {"seed": int(counts), "prefetch": 0, "device_prefetch": 0}
    loader = hostmesh.Loader({"x": np.zeros((100_000, 8), "f4")}, None, rows, **options)
    os.environ["HOSTMESH_FACTS_SOCKET"] = address
    return loader
loaders = {True: make(True), False: make(False)}
def run(counts, saves):
    loader = loaders[counts]
    began, cpu = time.perf_counter(), time.process_time()
    for step in range(steps):
        next(loader)
        if saves:
            loader.state()
        for _ in range(rounds):
            matrix @ matrix[:16].T
    return time.perf_counter() - began, time.process_time() - cpu
def measure(call, times=2000):
    began = time.thread_time()
    for number in range(times):
        call(number)
    return 1e6 * (time.thread_time() - began) / times
rounds = 0
loading = min(run(True, False)[0] for _ in range(5)) / steps
began = time.perf_counter()
for _ in range(2000):
    matrix @ matrix[:16].T
rounds = max(1, round((0.001 - loading) / ((time.perf_counter() - began) / 2000)))
found = {}
for saves in (False, True):
    took = {True: [], False: []}
    for block in range(blocks):
        for counts in ((True, False) if block % 2 else (False, True)):
            took[counts].append(run(counts, saves))
    for name, nth in (("wall", 0), ("cpu", 1)):
        ratios = sorted(a[nth] / b[nth] for a, b in zip(took[True], took[False]))
        quarter = len(ratios) // 4
        key = f"{'saves' if saves else 'steps'} {name}"
        found[key] = [statistics.median(ratios), ratios[quarter], ratios[-quarter - 1]]
    found["step"] = statistics.median(each[0] for each in took[False]) / steps
ids, all_rows = np.random.default_rng(0).permutation(100_000)[:rows], np.arange(rows)
own = slice(0, rows)
found["count"] = statistics.median(measure(lambda n: count_used(n, ids, all_rows, own, rows)) for _ in range(9))
account = loaders[True]._deliveries
last = loaders[True].step
found["note"] = statistics.median(measure(lambda n: account.note(last + n, (rows, n)), 20_000) for _ in range(9))
def note_and_keep(number):
    account.note(last + number, (rows, number))
    account.keep()
found["keep"] = statistics.median(measure(note_and_keep) for _ in range(9))
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(JOB)
        env = {**os.environ, "PYTHONPATH": str(REPO / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [*LAUNCH, "--local", "1", "--cold", "job.py", str(options.blocks)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if '{"steps wall"' in line]
    found = json.loads(line[line.index("{") :])
    print(f"steps of {1e3 * found['step']:.2f} ms, batches of 1,024 rows, {options.blocks} pairs of blocks:")
    for name, what in (("steps", "counted and told"), ("saves", "and a state taken at every step")):
        for kind in ("wall", "cpu"):
            ratio, low, high = found[f"{name} {kind}"]
            print(f"  {what}, {kind}: {ratio:.4f} times as long (quartiles {low:.4f} to {high:.4f})")
    print(
        f"  of a step: count {found['count']:.1f} µs, note {found['note']:.2f} µs, with a state {found['keep']:.1f} µs"
    )


if __name__ == "__main__":
    main()
