"""Snapshots of real processes: what was killed goes on a step before, together, and memory is given back."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, Launch, LiveRun, Script, Start, await_true, processes_of

SHM = Path("/dev/shm")

# A training whose every step depends on all processes and on its batch; the state is donated at each.
TRAIN = """
import hashlib, os, signal, sys, time
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import hostmesh
from hostmesh.worker.saving.generation import Generation

hostmesh.join()
me, attempt, how = jax.process_index(), int(os.environ["HOSTMESH_ATTEMPT"]), sys.argv[1]
STEPS, DIES_AT = 12, 8
mesh = hostmesh.make_mesh(data=-1)
loader = hostmesh.Loader("digits:train", mesh, batch_size=16, seed=3, steps=STEPS)
spread = lambda array, spec: jax.make_array_from_callback(
    array.shape, NamedSharding(mesh, spec), lambda index: array[index])
state = {"w": spread(np.linspace(0, 1, 16 * 64, dtype="f4").reshape(16, 64), P("data")),
         "m": spread(np.zeros(64, "f4"), P())}

def train_step(state, batch):
    image = batch["image"].reshape(16, -1).astype("f4") / 16
    m = 0.9 * state["m"] + (state["w"] * image).sum(0)
    return {"w": state["w"] + 0.01 * jnp.sin(m + image), "m": m}

step_of = jax.jit(train_step, donate_argnums=0)
kept = hostmesh.Checkpoint(f"kept-{how}", data_spec=loader.data_spec, memory_every=1)

def generations(process):
    folder = Path(os.environ["HOSTMESH_SNAPSHOTS"])
    return [Generation(path) for path in folder.glob(f"*-{jax.process_count()}-{process}-?")]

def newest(process):
    return max((header["step"] for each in generations(process) if (header := each.read_header())), default=0)

def await_snapshot(step):
    deadline = time.monotonic() + 60
    while any(newest(process) < step for process in range(jax.process_count())):
        assert time.monotonic() < deadline, [newest(process) for process in range(jax.process_count())]
        time.sleep(0.005)

def never_complete():
    # The others do, and have time to go on; then this process dies.
    def wait_for_others(self, header, at):
        while any(newest(process) < DIES_AT for process in range(jax.process_count()) if process != me):
            time.sleep(0.005)
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    Generation.seal = wait_for_others

def die_while_writing():
    write = Generation.write
    def write_half(self, at, data):
        if at and len(data := memoryview(data).cast("B")) > 1000:
            write(self, at, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, at, data)
    Generation.write = write_half

if found := kept.restore(state):
    state, position = found
    loader.restore(position)
print("from", loader.step, kept.restored_from, flush=True)
for batch in loader:
    state = step_of(state, batch)
    step = loader.step
    is_last = attempt == 1 and step == DIES_AT and how != "calm"
    if is_last:
        await_snapshot(step - 1)  # as they would be by the end of a step that takes a while
        if how in ("writing", "slow") and me == 1:
            die_while_writing() if how == "writing" else never_complete()
    kept.snapshot(step, state, loader.state())
    if step == 4:
        kept.save(step, state, loader.state())
        kept.wait()
    if is_last:
        jax.block_until_ready(state)
        if how == "slow" and me != 1:
            continue  # to the next snapshot, which must not be begun
        if how in ("writing", "slow"):
            time.sleep(60)
        await_snapshot(step)
        if me == 1:
            for each in generations(1) if how == "nobody" else ():
                each.drop()
            os.kill(os.getpid(), signal.SIGKILL)
kept.close()
print("digest", hashlib.sha256(b"".join(np.asarray(each.addressable_data(0)).tobytes()
      for each in jax.tree.leaves(state))).hexdigest()[:16], flush=True)
"""


def lines_of(run: LiveRun, word: str) -> list[str]:
    """What processes said after that word, attempt by attempt."""
    lines = [line.partition("] ")[2] for line in run.stderr.splitlines()]
    return [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")]


def folders_of(run: LiveRun) -> list[Path]:
    return [*SHM.glob(f"hostmesh-{run.id}.*"), *Path(tempfile.gettempdir()).glob(f"hostmesh-{run.id}.*")]


def train(start: Start, name: str, processes: int, how: str) -> LiveRun:
    run = start("--local", str(processes), "--restarts", "2", name, how)
    assert run.wait(HANGS) == 0, run.stderr
    assert lines_of(run, "from")[:processes] == ["0 None"] * processes
    assert not processes_of(run.id) and not folders_of(run)
    return run


KILLED, SLOW = {"killed": (8, "memory"), "writing": (7, "memory")}, {"slow": (7, "memory"), "nobody": (4, "disk")}


@pytest.mark.parametrize(
    ("processes", "crashes"), [(2, KILLED), (4, KILLED), (4, SLOW)], ids=["killed-2", "killed-4", "slow-4"]
)
@pytest.mark.quick("killed-2")
def test_a_crash_costs_one_step_at_most_and_all_go_on_together(
    start: Start, script: Script, processes: int, crashes: dict[str, tuple[int, str]]
) -> None:
    """However it comes: between two snapshots, while one is written, when the others have a newer one, and when all
    is gone."""
    name = script(TRAIN)
    undisturbed = sorted(lines_of(train(start, name, processes, "calm"), "digest"))
    assert len(set(undisturbed)) == processes
    for how, (step, source) in crashes.items():
        run = train(start, name, processes, how)
        assert lines_of(run, "from")[processes:] == [f"{step} {source}"] * processes
        assert sorted(lines_of(run, "digest")) == undisturbed
        last = run.result["attempts"][-1]
        assert (last["resumed_from"], last["resumed_source"], last["saved_step"]) == (step, source, 4)
        told = f"launch: attempt 2 goes on from step {step}, kept in memory; "
        assert (told in run.stderr) == (source == "memory")


WAITING = """
import os, sys, time
import jax, jax.numpy as jnp
import hostmesh
hostmesh.join()
kept = hostmesh.Checkpoint("kept", data_spec={"seed": 0}, memory_every=1)
mesh = hostmesh.make_mesh(data=-1)
ones = jax.make_array_from_callback((64, 1024), jax.sharding.NamedSharding(mesh, jax.P("data")),
    lambda index: jnp.ones((64, 1024))[index])
for step in (1, 2, 3):
    kept.snapshot(step, {"w": ones}, step)
kept.close()
print("up", flush=True)
if sys.argv[1] == "fails":
    sys.exit(3)
if sys.argv[1] != "succeeds":
    time.sleep(1000)
"""


def end(run: LiveRun, what: str) -> None:
    if what in ("worker", "agent", "guardian", "launcher"):
        os.kill(run.pid_of(what), signal.SIGKILL)
    if what == "Ctrl-C":
        run.launcher.send_signal(signal.SIGINT)


@pytest.mark.parametrize("what", ["succeeds", "fails", "Ctrl-C", "worker", "agent", "guardian", "launcher"])
@pytest.mark.quick("agent", "launcher")
def test_memory_is_given_back_however_a_run_ends(start: Start, script: Script, what: str) -> None:
    run = start("--local", "2", script(WAITING), what)
    folder = SHM / f"hostmesh-{run.id}.0"
    await_true(lambda: run.stderr.count("] up") == 2, HANGS, "two processes with snapshots")
    if what not in ("succeeds", "fails"):
        assert folder.stat().st_mode & 0o777 == 0o700
        kept = [path for path in folder.iterdir() if path.name not in ("lock", "code")]
        assert len(kept) == 4 and all(path.stat().st_mode & 0o077 == 0 for path in kept)
    end(run, what)
    run.wait()
    await_true(lambda: not folders_of(run), 60, "nothing left in memory")


def test_what_an_agent_and_its_guardian_leave_when_killed_together_is_removed_by_the_next(
    start: Start, script: Script
) -> None:
    """With the launcher, which is on the same machine here, and would clean up after them."""
    run = start("--local", "1", script(WAITING), "waits")
    folder = SHM / f"hostmesh-{run.id}.0"
    await_true(lambda: "] up" in run.stderr, HANGS, "a process with snapshots")
    connected = run.await_event("host connected")
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (run.launcher.pid, connected["guardian_pid"], connected["agent_pid"]):
            os.kill(pid, number)
    run.wait()
    await_true(lambda: not processes_of(run.id), 30, "its process gone")
    assert len(list(folder.iterdir())) == 4
    os.utime(folder, (0, 0))
    again = start("--local", "1", script("import time; time.sleep(2)", "short.py"))
    await_true(lambda: not folder.exists(), 30, "the snapshots are gone")
    assert again.wait() == 0
    for left in folders_of(run):
        subprocess.run(["rm", "-r", str(left)], check=True)


def in_small_memory(size: str) -> list[str]:
    """A program in which what it is given runs with so much shared memory; nobody else notices."""
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mount, "sh"]


def test_where_memory_is_short_that_is_said_once_and_the_run_goes_on(
    start: Start, script: Script, tmp_path: Path
) -> None:
    below: Any = in_small_memory("400k")
    if subprocess.run([*below, "true"], capture_output=True).returncode:
        pytest.skip("no memory can be mounted here")
    run = start("--local", "2", script(WAITING), "succeeds", below=below)
    assert run.wait() == 0, run.stderr
    (said,) = [line for line in run.stderr.splitlines() if "snapshots" in line]
    assert said == (
        "[0 localhost] checkpoint: no snapshots are kept in memory: localhost needs 1 MB for two copies "
        "of the state of 2 processes, and its /dev/shm has 0 MB free; training goes on"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--memory-every", "5"), "--memory-every wants --checkpoint-dir too"),
        (("--memory-every", "-1", "--checkpoint-dir", "kept"), "--memory-every wants a number of steps"),
    ],
)
def test_what_the_job_cannot_do_is_said(launch: Launch, options: tuple[str, ...], said: str) -> None:
    done = launch("--local", "1", "--steps", "2", *options)
    assert done.returncode == 2 and said in done.stderr
