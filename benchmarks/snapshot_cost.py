"""What snapshots in memory cost a training loop: 100 MB of state a process, kept every 10 steps of 50 ms.

In two processes of a real run, blocks of steps with and without snapshots take turns; a block ends when its last
snapshot is written. Ratios are of blocks side by side; processor time says more where others use the machine. Steps
either compute on all cores, as in a simulation on the CPU; or they wait, as for an accelerator, whose own copy of the
state takes none of the host's time and is left out: what is measured is the way from there to memory.
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
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import hostmesh
hostmesh.join()
blocks, size, every = map(int, sys.argv[1:4])
seconds, kind = float(sys.argv[4]), sys.argv[5]
mesh = hostmesh.make_mesh(data=-1)
count = jax.process_count()
def put(shape, spec):
    make = lambda index: np.ones([len(range(*each.indices(n))) for each, n in zip(index, shape)], "f4")
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), make)
rows = size // 4 // 1024 // 10
state = {f"w{number}": put((count * rows, 1024), P("data")) for number in range(10)}
state["m"] = put((count, 256, 256), P("data"))
def compute(state, rounds):
    m = jax.lax.fori_loop(0, rounds, lambda _, m: jnp.tanh(m @ m) * 0.5, state["m"])
    return {**state, "m": m + 1e-9 * m.sum()}  # the sum is of all processes
step_of = jax.jit(compute, donate_argnums=0)
if kind == "waiting":
    from hostmesh.worker.saving import pieces, writer
    step_of = jax.jit(lambda state, rounds: {**state, "m": compute(state, rounds)["m"]})
    pieces.is_on_host = writer.is_on_host = lambda piece: False
    pieces.copy_on_devices = lambda shards: shards
kept = hostmesh.Checkpoint("kept", data_spec={"seed": 0}, memory_every=every)
def run_step(state, rounds):
    state = step_of(state, rounds)
    jax.block_until_ready(state["m"])
    if kind == "waiting":
        time.sleep(seconds)
    return state
state = run_step(state, 10)
rounds = 1
if kind == "computing":
    began = time.perf_counter()
    state = run_step(state, 200)
    mine = 200 * seconds / (time.perf_counter() - began)
    from hostmesh.worker.process.coordination import exchange
    rounds = max(1, round(min(exchange("calibrate", mine))))
step, calls = 0, []
def run(snapshots):
    global state, step
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(2 * every):
        state = run_step(state, rounds)
        step += 1
        if snapshots:
            at = time.perf_counter()
            kept.snapshot(step, state, step)
            if step % every == 0:
                calls.append(time.perf_counter() - at)
    kept._snapshots._writer.wait()
    return time.perf_counter() - began, time.process_time() - cpu
for _ in range(every // 2):  # so that snapshots fall into the middle of blocks
    step, state = step + 1, run_step(state, rounds)
run(True), run(False)
took = {True: [], False: []}
for block in range(blocks):
    for snapshots in ((True, False) if block % 2 else (False, True)):
        took[snapshots].append(run(snapshots))
folder = Path(os.environ["HOSTMESH_SNAPSHOTS"])
held = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
kept.close()
def compare(which):
    pairs = zip(took[True], took[False])
    ratios = sorted(one[which] / other[which] for one, other in pairs)
    return [ratios[len(ratios) // 4], statistics.median(ratios), ratios[3 * len(ratios) // 4]]
if jax.process_index() == 0:
    print(json.dumps({"step": statistics.median(wall for wall, _ in took[False]) / 2 / every, "wall": compare(0),
                      "cpu": compare(1), "call": statistics.median(calls[2:]), "held": held / count}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--size", type=int, default=100_000_000, help="bytes of state a process")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.05, help="of a step")
    parser.add_argument("--steps", choices=("computing", "waiting"), default="computing")
    options = parser.parse_args()
    job = (options.blocks, options.size, options.every, options.seconds, options.steps)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "job.py").write_text(JOB)
        done = subprocess.run(
            [*LAUNCH, "--local", str(options.processes), "job.py", *map(str, job)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPO / "src")},
            capture_output=True,
            text=True,
        )
        run_id = next((Path(folder) / "runs").iterdir()).name
    found = [line.partition("] ")[2] for line in done.stdout.splitlines() if line.startswith("[0 ")]
    if done.returncode or not found:
        sys.exit(done.stdout + done.stderr)
    told = json.loads(found[-1])
    left = [path for path in Path("/dev/shm").glob(f"hostmesh-{run_id}.*") if path.exists()]
    wall, cpu = (f"{ratio:.3f} ({low:.3f} to {high:.3f})" for low, ratio, high in (told["wall"], told["cpu"]))
    print(
        f"{options.steps}, steps of {told['step'] * 1e3:.1f} ms: time {wall}, processor time {cpu}; "
        f"a call takes {told['call'] * 1e3:.1f} ms; {told['held'] / options.size:.2f} copies a process in memory, "
        f"{len(left)} files left"
    )


if __name__ == "__main__":
    main()
