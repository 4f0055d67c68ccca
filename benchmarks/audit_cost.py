"""What the audit of used records costs a step with a batch of 1,024 rows.

In one process of a real run two loaders take turns, 64 steps each: one that counts and tells what it hands out, and one
that does not. Then the same with a state taken at every step, as for a snapshot after each. All reading is done in
the step (no read-ahead), so nothing is hidden behind a computation. The times are processor time of the training
thread, which a busy machine disturbs less than wall time; the figure is the median of the differences of pairs.
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
pairs, steps, rows = int(sys.argv[1]), 64, 1024
hostmesh.join()
def make(counts):
    address = os.environ.pop("HOSTMESH_FACTS_SOCKET")
    if counts:
        os.environ["HOSTMESH_FACTS_SOCKET"] = address
    # Another seed, because loaders of the same order share what was computed of it.
    options = {"seed": int(counts), "prefetch": 0, "device_prefetch": 0}
    loader = hostmesh.Loader({"x": np.ones((100_000, 8), "f4")}, None, rows, **options)
    os.environ["HOSTMESH_FACTS_SOCKET"] = address
    return loader
loaders = {True: make(True), False: make(False)}
def run(counts, saves):
    loader, began = loaders[counts], time.thread_time()
    for step in range(steps):
        next(loader)
        if saves:
            loader.state()
    return 1e6 * (time.thread_time() - began) / steps
found = {}
for saves in (False, True):
    took = {True: [], False: []}
    for pair in range(-10, pairs):
        for counts in ((True, False) if pair % 2 else (False, True)):
            cost = run(counts, saves)
            if pair >= 0:
                took[counts].append(cost)
    more = sorted(a - b for a, b in zip(took[True], took[False]))
    quarter = len(more) // 4
    found["saves" if saves else "steps"] = [statistics.median(more), more[quarter], more[-quarter - 1]]
    found["without"] = statistics.median(took[False])
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(JOB)
        env = {**os.environ, "PYTHONPATH": str(REPO / "src")}
        command = [*LAUNCH, "--local", "1", "--cold", "job.py", str(options.pairs)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if '{"steps"' in line]
    found = json.loads(line[line.index("{") :])
    print(f"a batch of 1,024 rows takes {found['without']:.0f} µs without; {options.pairs} pairs:")
    for name, what in (("steps", "counted and told"), ("saves", "and a state taken at every step")):
        more, low, high = found[name]
        print(f"  {what}: {more:.1f} µs more (quartiles {low:.1f} to {high:.1f}), {more / 10:.1f} % of a step of 1 ms")


if __name__ == "__main__":
    main()
