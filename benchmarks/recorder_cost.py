"""What the recorder costs a training loop with steps of a millisecond, and what looking at it costs the agent.

In one process of a real run, blocks of steps with and without the changes of phase that a loader makes at each step
take turns, while the agent looks at the record once a second.
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
from hostmesh.worker.recording.recorder import RECORDER
blocks, steps = int(sys.argv[1]), 250
matrix = np.ones((160, 160), "f4")
def run(records):
    began = time.perf_counter()
    for step in range(steps):
        if records:
            RECORDER.end_loading(RECORDER.begin_loading(), step)
        for _ in range(rounds):
            matrix @ matrix[:16].T
    return time.perf_counter() - began
began = time.perf_counter()
for _ in range(2000):
    matrix @ matrix[:16].T
rounds = max(1, round(0.001 / ((time.perf_counter() - began) / 2000)))
def cpu_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
agent = os.getppid()
took = {True: [], False: []}
cpu, wall = cpu_of(agent), time.perf_counter()
for block in range(blocks):
    for records in ((True, False) if block % 2 else (False, True)):
        took[records].append(run(records))
cpu, wall = cpu_of(agent) - cpu, time.perf_counter() - wall
ratios = [a / b for a, b in zip(took[True], took[False])]
if os.environ["HOSTMESH_PROCESS_ID"] == "0":
    print(json.dumps({"step": statistics.median(took[False]) / steps, "ratio": statistics.median(ratios),
                      "low": sorted(ratios)[len(ratios) // 4], "high": sorted(ratios)[3 * len(ratios) // 4],
                      "agent": cpu / wall}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.py").write_text(JOB)
        env = {**os.environ, "PYTHONPATH": str(REPO / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        where = ["--local", str(options.processes), "--cold", "--show", "0"]
        done = subprocess.run(
            [*LAUNCH, *where, "job.py", str(options.blocks)],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
    (line,) = [line for line in done.stdout.splitlines() if "{" in line]
    found = json.loads(line[line.index("{") :])
    print(
        f"steps of {1e3 * found['step']:.2f} ms: with the recorder {found['ratio']:.4f} times as long "
        f"(quartiles {found['low']:.4f} to {found['high']:.4f}); its agent used {found['agent']:.2%} of a core"
    )


if __name__ == "__main__":
    main()
