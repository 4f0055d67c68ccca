"""Saved steps: restored on any mesh as they were saved, never torn or foreign, and no failure lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Launch, Script, Start, await_true

from hostmesh.worker.checkpoint import Checkpoint
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving.folder import CheckpointFolder

ABOUT = {"source": "digits:train", "batch_size": 64, "seed": 0}

# What scripts of several processes share: a mesh of all devices, and a state that is a function of one number.
BEGIN = """
import os, signal, sys, threading, time
from pathlib import Path
from typing import Any, NamedTuple
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from hostmesh.worker.saving import folder
from hostmesh.worker.checkpoint import Checkpoint
from hostmesh.worker.distributed import join
from hostmesh.worker.errors import CheckpointError

join()
me = jax.process_index()
ABOUT = {"source": "digits:train", "batch_size": 64, "seed": 0}

def no_collective(*args):
    raise AssertionError("a device collective has no timeout")

multihost_utils.sync_global_devices = no_collective

def make_mesh(*sizes):
    return jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)

def put(values, mesh, spec):
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])
"""

RESUME = (
    BEGIN
    + """
class Moments(NamedTuple):
    count: Any
    mean: Any

data, model, *axes, step = sys.argv[2:]
step = int(step)
mesh = make_mesh(int(data), int(model))
spec = P(*(axis if axis != "-" else None for axis in axes))
bits = np.random.default_rng(5).integers(0, 1 << 32, (16, 8), np.uint32)
values = {
    "w": bits.view(np.float32),  # not a number, infinite and subnormal ones too
    "half": bits.astype(np.uint16).view(jax.numpy.bfloat16),
    "opt": (Moments(np.int32(7), bits.astype(np.int8)), None, ()),
}
spread = lambda array: put(array, mesh, spec if array.ndim else P())
make_key = jax.jit(lambda: jax.random.key(3), out_shardings=NamedSharding(mesh, P()))
state = {**jax.tree.map(spread, values), "key": make_key(), "epoch": 2, "table": np.arange(5)}

kept = Checkpoint(sys.argv[1], data_spec=ABOUT)
restored = kept.restore(state)
if step == 1:
    assert restored is None
else:
    found, loader_state = restored
    assert loader_state == 100 * (step - 1)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert found["epoch"] == 2 and (found["table"] == np.arange(5)).all()
    assert (np.asarray(jax.random.key_data(found["key"]).addressable_data(0)) == [0, 3]).all()
    for wanted, leaf in zip(jax.tree.leaves(values), jax.tree.leaves({name: found[name] for name in values})):
        assert leaf.dtype == wanted.dtype
        assert leaf.sharding.is_equivalent_to(NamedSharding(mesh, spec if leaf.ndim else P()), leaf.ndim)
        for shard in leaf.addressable_shards:
            assert np.asarray(shard.data).tobytes() == wanted[shard.index].tobytes()
    part = kept.restore({"w": state["w"]}, weights_only=True)["w"]
    for shard in part.addressable_shards:
        assert np.asarray(shard.data).tobytes() == values["w"][shard.index].tobytes()
kept.save(step, state, 100 * step)
kept.close()
"""
)


@pytest.mark.newest
@pytest.mark.slow
def test_a_state_goes_bit_for_bit_to_other_processes_devices_and_meshes(
    start: Start, script: Script, tmp_path: Path
) -> None:
    """Also: the launcher is told of each complete step, and orbax uses no collective and says nothing."""
    name = script(RESUME)
    shapes = [
        ("2", "2", "2 2 data model"),
        ("1", "4", "2 2 model -"),
        ("4", "1", "4 1 - data"),
        ("2", "2", "1 4 model -"),
    ]
    for step, (processes, devices, layout) in enumerate(shapes, 1):
        run = start("--local", processes, "--devices", devices, name, "kept", *layout.split(), str(step))
        assert run.wait() == 0, run.stderr
        assert run.await_event("saved")["detail"] == {"step": step}
        said = [line for line in run.stderr.splitlines() if "[Gloo]" not in line and not line.startswith("launch:")]
        assert said == []
    assert sorted(os.listdir(tmp_path / "kept")) == ["2", "3", "4"]


FOLDERS = (
    BEGIN
    + """
folder.TOKEN_TIMEOUT = 0.2

def attempt(folder, **about):
    try:
        Checkpoint(folder, data_spec={**ABOUT, **about})
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("no error for", folder)

Path("a-file").touch()
attempt(f"folder-{me}")
attempt("a-file/kept")
attempt("/proc/kept")
attempt("kept", batch_size=64 + me)
try:
    Checkpoint("kept", data_spec=ABOUT).save(1, {"n": jax.numpy.zeros(3)}, 0)
except CheckpointError as error:
    print(error)
"""
)


def test_what_not_all_processes_share_is_refused_on_every_one(launch: Launch, script: Script, tmp_path: Path) -> None:
    run = launch("--local", "2", script(FOLDERS))
    assert run.returncode == 0, run.stdout + run.stderr
    for process in (0, 1):
        prefix = f"[{process} localhost] "
        said = [line.removeprefix(prefix) for line in run.stdout.splitlines() if line.startswith(prefix)]
        assert said == [
            f"CheckpointError {tmp_path}/folder-{process} is not shared: process 1 (host localhost) does not see what "
            "process 0 wrote; wanted one folder that all hosts mount and may write",
            f"CheckpointError {tmp_path}/a-file/kept cannot hold checkpoints: Not a directory ({tmp_path}/a-file/kept)",
            "CheckpointError /proc/kept cannot hold checkpoints: No such file or directory (/proc/kept)",
            "DisagreementError wanted the same on all processes to open the checkpoint; found "
            "data_spec.batch_size: process 0 has 64, process 1 has 65",
            "['n'] of the state lives on one process, wanted a global array: give it a sharding over the whole mesh",
        ]
    assert os.listdir(tmp_path / "folder-0") == []


TORN = (
    BEGIN
    + """
kept = Checkpoint("kept", data_spec=ABOUT)
values = np.random.default_rng(0).standard_normal((1 << 12, 1 << 11), np.float32)
state = {"w": put(values, make_mesh(2, 1), P("data"))}

def die_in_the_middle():
    while not any(Path("kept").glob("2.orbax-checkpoint-tmp*/**/ocdbt*")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)

restored = kept.restore(state)
if restored is None:
    kept.save(1, state, 10)
    kept.wait()
    threading.Thread(target=die_in_the_middle, daemon=True).start()
    kept.save(2, state, 20)
    kept.wait()
else:
    found, loader_state = restored
    assert loader_state == 10 and sorted(os.listdir("kept")) == [".owner-2", "1"], os.listdir("kept")
    kept.save(2, found, 20)
    kept.close()
"""
)


def test_a_torn_save_is_never_picked_up(launch: Launch, script: Script, tmp_path: Path) -> None:
    name = script(TORN)
    run = launch("--local", "2", name)
    assert run.returncode == 128 + signal.SIGKILL, run.stdout + run.stderr
    owner, first, torn = sorted(os.listdir(tmp_path / "kept"))
    assert owner == ".owner-1" and first == "1" and torn.startswith("2.orbax-checkpoint-tmp-")
    run = launch("--local", "2", name)
    assert run.returncode == 0, run.stdout + run.stderr
    assert sorted(os.listdir(tmp_path / "kept")) == ["1", "2"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """16 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


FULL = (
    BEGIN
    + """
kept = Checkpoint("disk/kept", data_spec=ABOUT)
values = np.random.default_rng(0).integers(0, 256, 6 << 20, np.uint8)
state = {"w": put(values, make_mesh(2, 1), P("data"))}
if "check" in sys.argv:
    found, loader_state = kept.restore(state)
    assert loader_state == 20
    assert all((np.asarray(shard.data) == values[shard.index]).all() for shard in found["w"].addressable_shards)
else:
    for step in (1, 2, 3):
        kept.save(step, state, 10 * step)
kept.close()
"""
)


@pytest.mark.slow
def test_a_full_disk_is_an_error_at_once_and_older_steps_stay(launch: Launch, script: Script, tiny_disk: Path) -> None:
    name = script(FULL)
    run = launch("--local", "2", name, timeout=240)
    assert run.returncode == 1
    assert (
        f"step 3 could not be saved in {tiny_disk}/kept: no space left on the device; "
        "still there: steps 1, 2" in run.stderr
    )
    assert "site-packages/orbax" not in run.stdout, "orbax's own traceback or log"
    run = launch("--local", "2", name, "check")
    assert run.returncode == 0, run.stdout + run.stderr


STOP = """
import os, sys
from pathlib import Path
import jax
from hostmesh.worker.distributed import join
from hostmesh.worker.preemption import preemption_requested, handle_preemption

join()
handle_preemption()
me = jax.process_index()
Path(f"ready-{me}").write_text(str(os.getpid()))
step = 0
while not preemption_requested(step):
    step += 1
    jax.numpy.sum(jax.numpy.ones(3)).block_until_ready()
assert preemption_requested(step + 1), "forgotten"
Path(f"stopped-{me}").write_text(str(step))
"""


@pytest.mark.newest
@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.quick("3")
def test_sigterm_at_one_process_stops_all_at_the_same_step(
    start: Start, script: Script, tmp_path: Path, processes: int
) -> None:
    run = start("--local", str(processes), script(STOP))
    ready = [tmp_path / f"ready-{process}" for process in range(processes)]
    await_true(lambda: all(file.exists() and file.read_text() for file in ready), 30, "every process is at its loop")
    os.kill(int(ready[-1].read_text()), signal.SIGTERM)
    assert run.wait() == 0, run.stderr
    steps = {(tmp_path / f"stopped-{process}").read_text() for process in range(processes)}
    assert len(steps) == 1 and int(steps.pop()) > 0
    assert run.await_event("saves_when_stopped", count=processes)["detail"] == {"seconds": 60}


# From here on alone, in this process.


class Pair(NamedTuple):
    w: Any
    b: Any


def make_state(value: float = 1.0) -> dict[str, Any]:
    return {"params": Pair(jnp.full((4, 2), value), jnp.zeros(2)), "step": np.arange(3)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "kept"


def save_steps(folder: Path, *steps: int, keep: int = 3, about: dict[str, Any] = ABOUT) -> None:
    kept = Checkpoint(folder, data_spec=about, keep=keep)
    for step in steps:
        kept.save(step, make_state(float(step)), 64 * step)
    kept.close()


def test_nothing_saved_is_nothing_restored(folder: Path) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT)
    assert kept.restore(make_state()) is None
    kept.close()


def test_the_newest_steps_are_kept_in_numeric_order(folder: Path) -> None:
    save_steps(folder, 8, 9, 10, 100, keep=3)
    assert sorted(os.listdir(folder)) == ["10", "100", "9"]
    kept = Checkpoint(folder, data_spec=ABOUT)
    restored = kept.restore(make_state())
    kept.close()
    assert restored is not None
    state, loader_state = restored
    assert loader_state == 6400 and (state["params"].w == 100).all()


def test_an_old_step_removed_by_hand_is_no_error(folder: Path) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT, keep=1)
    kept.save(1, make_state(), 0)
    kept.wait()
    (folder / "1").rename(folder.parent / "elsewhere")
    kept.save(2, make_state(), 0)
    kept.close()
    assert os.listdir(folder) == ["2"]


def test_a_donated_or_changed_state_is_saved_as_it_was(folder: Path) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT)
    update = jax.jit(lambda array: array * 0 - 1, donate_argnums=0)
    state = {"w": jnp.ones((2048, 1024)), "host": np.ones(1 << 20)}
    for step in (1, 2, 3):
        kept.save(step, state, step)
        state["w"] = update(state["w"]).block_until_ready()
        state["host"][:] = -1
        found, _ = kept.restore(state) or ({}, 0)
        assert (found["w"] == 1).all() and (found["host"] == 1).all()
        state = {"w": found["w"], "host": np.ones(1 << 20)}
    kept.close()


def test_a_step_of_another_format_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr("hostmesh.worker.checkpoint.VERSION", 1)
        save_steps(folder, 5)
    with pytest.raises(CheckpointError, match=f"step 5 in {folder} has format 1, wanted 2; use another folder"):
        Checkpoint(folder, data_spec=ABOUT).restore(make_state())


def test_a_step_about_other_data_is_refused(folder: Path) -> None:
    save_steps(folder, 5)
    other = {"source": "digits:train", "batch_size": 128, "tail": "pad"}
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder, data_spec=other).restore(make_state())
    assert str(caught.value) == (
        f"step 5 in {folder} was saved with other data: batch_size: found 64, wanted 128; "
        "tail: found none, wanted pad; seed: found 0, wanted none; "
        "use the old values, or another folder (--checkpoint-dir), or take its state alone: "
        "restore(like, weights_only=True)"
    )


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (
            lambda: {"params": Pair(jnp.ones((4, 3)), jnp.zeros(2))},
            "['params'].w: found float32[4,2], wanted float32[4,3]",
        ),
        (
            lambda: {"params": Pair(jnp.ones((4, 2), jnp.bfloat16), jnp.zeros(2))},
            "found float32[4,2], wanted bfloat16[4,2]",
        ),
        (lambda: {"params": (jnp.ones((4, 2)), jnp.zeros(2))}, "['params'][0]: found none, wanted float32[4,2]"),
        (lambda: {"more": 1.5}, "['more']: found none, wanted float"),
    ],
)
def test_a_step_with_another_state_is_refused_by_its_leaf(
    folder: Path, change: Callable[[], dict[str, Any]], difference: str
) -> None:
    save_steps(folder, 5)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(folder, data_spec=ABOUT).restore({**make_state(), **change()})
    assert f"step 5 in {folder} holds another state: " in str(caught.value) and difference in str(caught.value)


def test_weights_alone_go_on_with_other_data_also_in_part(folder: Path) -> None:
    """Beside a program that owns the folder, which this one neither waits for nor changes."""
    kept = Checkpoint(folder, data_spec=ABOUT)
    kept.save(5, make_state(5.0), 320)
    kept.wait()
    reading = Checkpoint(folder, data_spec={"batch_size": 1}, read_only=True)
    whole = reading.restore(make_state(), weights_only=True)
    assert (
        isinstance(whole["params"], Pair) and (whole["params"].w == 5).all() and (whole["step"] == np.arange(3)).all()
    )
    part = reading.restore({"params": {"w": jnp.zeros((4, 2))}}, weights_only=True)
    assert list(part) == ["params"] and (part["params"]["w"] == 5).all()
    with pytest.raises(
        CheckpointError, match=r"holds another state: params/w: found float32\[4,2\], wanted float32\[2\]"
    ):
        reading.restore({"params": {"w": jnp.zeros(2)}}, weights_only=True)
    with pytest.raises(CheckpointError, match="was saved with other data: batch_size"):
        reading.restore(make_state())
    with pytest.raises(CheckpointError, match="opened with read_only=True"):
        reading.save(6, make_state(), 0)
    kept.save(6, make_state(6.0), 384)
    kept.close()
    newest = reading.restore(make_state(), weights_only=True)
    assert (newest["params"].w == 6).all() and sorted(os.listdir(folder)) == ["5", "6"]
    reading.close()


def test_a_folder_that_is_only_read_is_not_made(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{folder} cannot be read: No such file or directory"):
        Checkpoint(folder, data_spec=ABOUT, read_only=True)
    assert not folder.exists()


def test_a_program_may_open_its_own_folder_twice(folder: Path) -> None:
    """A save that is still being written is no leftover then."""
    first = Checkpoint(folder, data_spec=ABOUT)
    state = {"w": jnp.ones((2048, 1024))}
    first.save(1, state, 1)
    second = Checkpoint(folder, data_spec=ABOUT)
    first.close()
    assert (folder / "1").exists() and (folder / ".owner-1").exists()
    second.close()
    assert os.listdir(folder) == ["1"]


def test_who_lost_the_folder_fails_at_the_next_save_and_writes_nothing(folder: Path) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT)
    kept.save(1, make_state(), 64)
    kept.wait()
    owner = json.loads((folder / ".owner-1").read_text())
    (folder / ".owner-2").write_text(json.dumps({**owner, "token": "another", "run": "1117-xyz", "host": "gpu-b"}))
    with pytest.raises(CheckpointError, match=f"step 2 could not be saved in {folder}: .* taken over by run 1117-xyz"):
        kept.save(2, make_state(), 128)
    assert sorted(os.listdir(folder)) == [".owner-1", ".owner-2", "1"]


def test_a_save_that_was_overtaken_half_way_never_gets_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT)
    answers = iter([None, "the folder was taken over"])  # before the save, and when it is complete
    monkeypatch.setattr(CheckpointFolder, "why_not_owned", lambda _: next(answers))
    kept.save(1, make_state(), 64)
    with pytest.raises(CheckpointError, match="step 1 could not be saved in .*: the folder was taken over"):
        kept.wait()
    assert not (folder / "1").exists()


def test_a_leaf_without_a_sharding_is_named(folder: Path) -> None:
    save_steps(folder, 5)
    like = {**make_state(), "params": Pair(jax.ShapeDtypeStruct((4, 2), jnp.float32), jnp.zeros(2))}
    with pytest.raises(CheckpointError, match=r"\['params'\].w of the state has no sharding"):
        Checkpoint(folder, data_spec=ABOUT).restore(like)


def test_a_damaged_step_is_named_with_the_way_back(folder: Path) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT)
    state = {"w": jnp.ones(8)}  # one leaf: of two broken reads the second ends when nobody listens, and warns
    kept.save(5, state, 320)
    kept.close()
    for file in (folder / "5" / "state").rglob("*"):
        if file.is_file() and file.parent.name == "d":
            file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"step 5 in {folder} cannot be read: .*; remove {folder}/5 to go back"):
        Checkpoint(folder, data_spec=ABOUT).restore(state)


def test_the_same_step_again_is_no_error_but_an_older_one_is(folder: Path) -> None:
    save_steps(folder, 5, 5)
    kept = Checkpoint(folder, data_spec=ABOUT)
    with pytest.raises(CheckpointError, match=f"found step 5 in {folder}, wanted only steps before 3 there"):
        kept.save(3, make_state(), 0)
    assert kept.restore(make_state()) is not None
    kept.save(5, make_state(-1), 0)
    kept.save(6, make_state(), 0)
    kept.close()
    assert sorted(os.listdir(folder)) == ["5", "6"]


def test_a_save_into_a_folder_that_vanished_is_an_error(folder: Path) -> None:
    kept = Checkpoint(folder, data_spec=ABOUT)
    kept.save(1, make_state(), 0)
    kept.wait()
    folder.rename(folder.with_name("gone"))
    folder.touch()
    with pytest.raises(CheckpointError, match=f"step 2 could not be saved in {folder}: .*; still there: steps 1"):
        kept.save(2, make_state(), 0)
        kept.wait()


def test_a_url_of_an_unknown_store_is_refused() -> None:
    with pytest.raises(CheckpointError, match="found az://bucket/kept, wanted a folder that every host mounts, gs://"):
        Checkpoint("az://bucket/kept", data_spec=ABOUT)


def test_at_least_one_step_is_kept(folder: Path) -> None:
    with pytest.raises(ValueError, match="keep wants at least 1 step, found 0"):
        Checkpoint(folder, data_spec=ABOUT, keep=0)
