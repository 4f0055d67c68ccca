"""Snapshots in memory: whole or not there, the same step for all, and safe from what becomes of the state."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import await_true
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from hostmesh.worker.checkpoint import Checkpoint
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving.completion import Completion, Taken, find_newest_common, may_overwrite
from hostmesh.worker.saving.generation import DATA_AT, Generation
from hostmesh.worker.saving.pieces import Layout, list_needed, put_together, to_bytes
from hostmesh.worker.saving.room import find_shortage
from hostmesh.worker.saving.writer import Snapshot, Writer

ABOUT = {"source": "digits:train", "batch_size": 64, "seed": 0}


# One generation, cut off anywhere.


class Killed(BaseException):
    pass


def fill(generation: Generation, step: int, size: int = 3000) -> None:
    generation.begin(DATA_AT + size)
    for at in range(0, size, 1000):
        generation.write(DATA_AT + at, np.full(1000, step, np.uint8))
    generation.seal({"step": step}, DATA_AT + size)


def is_whole(generation: Generation, step: int, size: int = 3000) -> bool:
    is_sealed = generation.read_header() == {"step": step}
    return is_sealed and generation.read(DATA_AT, size) == bytes([step]) * size


def kill_at(call: int, share: float, patch: pytest.MonkeyPatch) -> None:
    """At the call of that number that writes, after so much of it was written."""
    calls = iter(range(100))
    write_data, write_file = Generation.write, os.pwrite

    def write(self: Generation, at: int, data: Any) -> None:
        is_last = next(calls) == call
        write_data(self, at, data[: int(len(data) * share)] if is_last else data)
        if is_last:
            raise Killed

    def pwrite(file: int, data: bytes, at: int) -> int:
        is_last = next(calls) == call
        count = write_file(file, data[: int(len(data) * share)] if is_last else data, at)
        if is_last:
            raise Killed
        return count

    patch.setattr(Generation, "write", write)
    patch.setattr(os, "pwrite", pwrite)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_generation_that_is_cut_off_anywhere_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    for call in range(6):  # the seal is broken, three pieces, the header, the seal
        path = tmp_path / f"cut-{call}"
        fill(Generation(path), 1)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(call, share, patch)
            fill(Generation(path), 2)
        found = Generation(path)
        if (call, share) == (0, 0.0):
            assert is_whole(found, 1)
        elif (call, share) == (5, 1.0):
            assert is_whole(found, 2)
        else:
            assert found.read_header() is None
    with monkeypatch.context() as patch:
        kill_at(6, share, patch)
        fill(Generation(path), 3)
    assert is_whole(Generation(path), 3)


def test_a_generation_takes_its_memory_before_a_byte_is_written_and_gives_back_what_is_too_much(tmp_path: Path) -> None:
    generation = Generation(tmp_path / "a")
    generation.begin(1 << 20)
    assert generation.allocated() >= 1 << 20
    fill(generation, 3)
    assert is_whole(generation, 3) and generation.allocated() < 1 << 16
    generation.drop()
    assert generation.read_header() is None


def test_what_is_no_snapshot_is_none(tmp_path: Path) -> None:
    for content in (b"", b"x" * 100, bytes(DATA_AT)):
        (tmp_path / "a").write_bytes(content)
        assert Generation(tmp_path / "a").read_header() is None
    assert Generation(tmp_path / "missing").read_header() is None


# Which generation may be overwritten.


class Simulated:
    """A process that writes the snapshots of steps 1, 2, 3, …: each call does one thing that a crash may follow."""

    def __init__(self, number: int, completed: dict[int, int], may: Any) -> None:
        self.number, self.completed, self.may = number, completed, may
        self.held: list[int | None] = [None, None]
        self.newest = 0
        self.writing: int | None = None

    def go_on(self, num_processes: int) -> None:
        if self.writing is not None:
            self.newest += 1
            self.held[self.writing], self.writing = self.newest, None
        elif self.newest and self.completed.get(self.number) != self.newest:
            self.completed[self.number] = self.newest
        elif not self.newest or self.may(self.completed, num_processes, self.newest):
            self.writing = 1 - self.held.index(self.newest) if self.newest else 0
            self.held[self.writing] = None


def crash_somewhere(seed: int, may: Any) -> bool:
    """Whether processes that all stop at some moment have a step in common, once each had one."""
    chance = random.Random(seed)
    completed: dict[int, int] = {}
    processes = [Simulated(number, completed, may) for number in range(chance.randint(2, 4))]
    quick = chance.choice(processes)
    for _ in range(chance.randint(20, 200)):
        (quick if chance.random() < 0.5 else chance.choice(processes)).go_on(len(processes))
    if not all(each.newest for each in processes):
        return True
    return find_newest_common([[Taken(1, step) for step in each.held if step] for each in processes]) is not None


def test_processes_that_crash_at_any_moment_have_a_step_in_common() -> None:
    assert all(crash_somewhere(seed, may_overwrite) for seed in range(2000))


def test_without_the_rule_they_would_not() -> None:
    assert not all(crash_somewhere(seed, lambda *_: True) for seed in range(200))


class SlowOthers(Completion):
    """The others complete their snapshots when the test says so."""

    def __init__(self) -> None:
        super().__init__("test")
        self.told: list[int] = []
        self.are_ready = threading.Event()

    def tell(self, step: int) -> None:
        self.told.append(step)

    def await_all(self, step: int, timeout: float = 60.0) -> None:
        assert self.told[-1] == step and self.are_ready.wait(timeout)
        self.are_ready.clear()


def test_the_next_snapshot_is_not_begun_before_all_have_the_last(tmp_path: Path) -> None:
    generations, others = [Generation(tmp_path / name) for name in "ab"], SlowOthers()
    writer, state = Writer(generations, others), {"w": np.arange(4)}
    layout = Layout(state, DATA_AT)
    for step in (1, 2, 3):
        writer.begin(Snapshot(step, layout, layout.copy([state["w"]]), {"step": step}))
        await_true(lambda step=step: others.told[-1:] == [step], 30, "a whole snapshot")
        assert not writer._idle.is_set(), "training may go on to the next"
        others.are_ready.set()
        writer.wait()
    writer.stop()
    assert [each.read_header() for each in generations] == [{"step": 3}, {"step": 2}]


class Broken(Generation):
    """Takes the first piece only."""

    def write(self, at: int, data: Any) -> None:
        if at > DATA_AT:
            raise OSError(5, "Input/output error")
        super().write(at, data)


def test_a_snapshot_that_fails_half_way_is_not_sealed(tmp_path: Path) -> None:
    generations = [Generation(tmp_path / "a"), Broken(tmp_path / "b")]
    others, state = SlowOthers(), {"v": np.arange(4), "w": np.arange(4)}
    writer, layout = Writer(generations, others), Layout(state, DATA_AT)
    others.are_ready.set()
    for step in (1, 2):
        writer.begin(Snapshot(step, layout, layout.copy(list(state.values())), {"step": step}))
        writer.wait()
    writer.stop()
    assert [each.read_header() for each in generations] == [{"step": 1}, None]
    assert others.told == [1] and writer.is_own and writer.why_over == "Input/output error"


@pytest.mark.parametrize(
    ("held", "common"),
    [
        ([{(1, 4), (1, 5)}, {(1, 3), (1, 4)}], (1, 4)),
        ([{(1, 4), (1, 5)}, {(1, 5), (1, 4)}], (1, 5)),
        ([{(1, 4), (1, 5)}, {(1, 2), (1, 3)}], None),
        ([{(1, 4), (1, 5)}, set()], None),
        ([{(1, 4), (2, 5)}, {(1, 4), (1, 5)}], (1, 4)),  # step 5 of another attempt is another step
        ([{(1, 40), (2, 5)}, {(1, 40), (2, 5)}], (2, 5)),
        ([{(1, 7)}], (1, 7)),
    ],
)
def test_all_go_back_to_the_newest_that_everybody_has(
    held: list[set[tuple[int, int]]], common: tuple[int, int] | None
) -> None:
    assert find_newest_common([[Taken(*each) for each in theirs] for theirs in held]) == common


def room(machine: str, wanted: int, in_folder: float = 1e9, in_memory: float = 1e9) -> dict[str, Any]:
    sizes = {"wanted": wanted, "in_folder": in_folder, "in_memory": in_memory}
    return {"host": f"host-{machine}", "machine": machine, **sizes}


def test_what_all_processes_of_a_host_want_must_be_there() -> None:
    assert find_shortage([room("a", 400_000_000), room("a", 400_000_000), room("b", 900_000_000)]) is None
    assert find_shortage([room("a", 1), room("b", 600_000_000), room("b", 600_000_000)]) == (
        "host-b needs 1.2 GB for two copies of the state of 2 processes, and its /dev/shm has 1.0 GB free"
    )
    assert find_shortage([room("a", 600_000_000, in_memory=5e8)]) == (
        "host-a needs 600 MB for two copies of the state of 1 process, and of its memory there are 500 MB free"
    )


# From here on alone, in this process, as if an agent had started it.


@pytest.fixture
def mesh() -> Any:
    return jax.make_mesh((2, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def make_state(mesh: Any, value: float = 1.0) -> dict[str, Any]:
    values = np.full((8, 4), value, np.float32) + np.arange(4, dtype=np.float32)
    put = lambda spec, array=values: jax.device_put(array, NamedSharding(mesh, spec))  # noqa: E731
    return {
        "cut": put(P("data", "model")),
        "replica": put(P()),
        "half": put(P("model"), values.astype(jnp.bfloat16)),
        "key": jax.device_put(jax.random.key(int(value)), NamedSharding(mesh, P())),
        "count": jnp.int32(value),
        "table": np.arange(5) * value,
        "epoch": int(value),
        "rate": 0.1 * value,
    }


def assert_same(found: Any, wanted: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert type(one) is type(other)
        if isinstance(other, jax.Array):
            assert one.dtype == other.dtype and one.sharding.is_equivalent_to(other.sharding, other.ndim)
            if jax.dtypes.issubdtype(other.dtype, jax.dtypes.prng_key):
                one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_state_comes_back_bit_for_bit_and_equal_shards_are_kept_once(mesh: Any) -> None:
    state = make_state(mesh)
    leaves = jax.tree.leaves(state)
    layout = Layout(state, 128)
    memory = bytearray(layout.end)
    for piece, data in zip(layout.pieces, layout.copy(leaves), strict=True):
        memory[piece.at : piece.at + piece.size] = to_bytes(data).tobytes()
    per_leaf = [sum(piece.leaf == number for piece in layout.pieces) for number in range(len(leaves))]
    assert dict(zip(sorted(state), per_leaf, strict=True)) == {
        **{"count": 1, "cut": 4, "epoch": 0, "half": 2, "key": 1, "rate": 0, "replica": 1, "table": 1}
    }
    found = put_together(state, layout.pieces, layout.values(leaves), lambda at, size: memory[at : at + size])
    assert_same(found, state)
    assert {(piece.leaf, piece.index) for piece in layout.pieces} == list_needed(state)
    assert layout.signature == Layout(make_state(mesh, 2.0), 128).signature


def test_what_is_no_number_is_named(mesh: Any) -> None:
    with pytest.raises(CheckpointError, match=r"\['name'\] of the state is object\[1\], wanted numbers"):
        Layout({"name": np.array([None])}, 0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv("HOSTMESH_SNAPSHOTS", str(folder))
    monkeypatch.setenv("HOSTMESH_PID", str(os.getpid()))
    yield folder


def open_kept(tmp_path: Path, **options: Any) -> Checkpoint:
    return Checkpoint(tmp_path / "kept", **{"data_spec": ABOUT, "memory_every": 1, **options})


def test_a_snapshot_is_gone_on_from_and_saves_go_on_after_it(memory: Path, tmp_path: Path, mesh: Any) -> None:
    first = open_kept(tmp_path, memory_every=2)
    assert first.restore(make_state(mesh)) is None
    first.save(30, make_state(mesh, 30.0), 300)
    for step in range(30, 38):
        first.snapshot(step, make_state(mesh, float(step)), {"step": step, "shards": {"0": "here"}})
    first.close()
    second = open_kept(tmp_path, memory_every=2)
    found = second.restore(make_state(mesh))
    assert found is not None and second.restored_from == "memory"
    assert_same(found[0], make_state(mesh, 36.0))
    assert found[1] == {"step": 36, "shards": {"0": "here"}}
    second.snapshot(38, make_state(mesh, 38.0), 380)
    second.save(40, make_state(mesh, 40.0), 400)
    second.close()
    third = open_kept(tmp_path)
    found = third.restore(make_state(mesh))
    assert found is not None and found[1] == 400 and third.restored_from == "disk"
    third.close()
    assert sorted(os.listdir(tmp_path / "kept")) == ["30", "40"] and len(os.listdir(memory)) == 2


@pytest.mark.parametrize("devices", ["the host's", "their own"])
def test_the_state_may_be_donated_and_arrays_of_the_host_changed_at_once(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: str
) -> None:
    """Devices that have memory of their own copy the state there, and a thread does the rest."""
    if devices == "their own":
        for module in ("pieces", "writer"):
            monkeypatch.setattr(f"hostmesh.worker.saving.{module}.is_on_host", lambda _: False)
    kept = open_kept(tmp_path)
    update = jax.jit(lambda array: array * 0 - 1, donate_argnums=0)
    for step in (1, 2, 3):
        state = {"w": jnp.full((2048, 1024), float(step)), "host": np.full(1 << 20, step)}
        kept.snapshot(step, state, step)
        state["w"] = update(state["w"]).block_until_ready()
        state["host"][:] = -1
        found, _ = kept.restore(state) or ({}, 0)
        assert (found["w"] == step).all() and (found["host"] == step).all()
    kept.close()


@pytest.mark.parametrize("change", ["data", "shape", "sharding"])
def test_what_was_kept_of_something_else_is_not_used(memory: Path, tmp_path: Path, mesh: Any, change: str) -> None:
    first = open_kept(tmp_path)
    first.snapshot(7, make_state(mesh), 70)
    first.close()
    like = make_state(mesh)
    if change == "shape":
        like["table"] = np.arange(6.0)
    if change == "sharding":
        like["cut"] = jax.device_put(like["cut"], NamedSharding(mesh, P(None, "data")))
    second = open_kept(tmp_path, data_spec={**ABOUT, "seed": 1} if change == "data" else ABOUT)
    assert second.restore(like) is None
    second.close()


def test_weights_alone_and_readers_ignore_memory(memory: Path, tmp_path: Path, mesh: Any) -> None:
    kept = open_kept(tmp_path)
    kept.save(3, make_state(mesh, 3.0), 30)
    kept.wait()
    kept.snapshot(5, make_state(mesh, 5.0), 50)
    assert kept.restore(make_state(mesh), weights_only=True)["epoch"] == 3
    reading = open_kept(tmp_path, read_only=True)
    found = reading.restore(make_state(mesh))
    assert found is not None and found[1] == 30
    reading.snapshot(6, make_state(mesh), 0)
    found = kept.restore(make_state(mesh))
    assert found is not None and found[1] == 50
    kept.close()


def test_a_torn_snapshot_leaves_the_one_before(memory: Path, tmp_path: Path, mesh: Any) -> None:
    kept = open_kept(tmp_path)
    for step in (1, 2, 3):
        kept.snapshot(step, make_state(mesh, float(step)), step)
    kept.close()
    torn = max(map(Generation, memory.iterdir()), key=lambda each: (each.read_header() or {})["step"])
    torn.drop()
    again = open_kept(tmp_path)
    found = again.restore(make_state(mesh))
    again.close()
    assert found is not None and found[1] == 2
    assert_same(found[0], make_state(mesh, 2.0))


def test_a_step_that_was_not_gone_back_to_never_comes_back(memory: Path, tmp_path: Path, mesh: Any) -> None:
    """Step 3 of a script that went back to step 2 is another one, even if it is never kept."""
    kept = open_kept(tmp_path)
    for step in (1, 2, 3):
        kept.snapshot(step, make_state(mesh, float(step)), step)
    kept.save(3, make_state(mesh, 3.0), 33)
    kept.wait()
    kept.save(4, make_state(mesh, 4.0), 44)
    assert (kept.restore(make_state(mesh)) or ({}, 0))[1] == 44, "disk is newer"
    assert all(Generation(path).read_header() is None for path in memory.iterdir())
    kept.close()


def test_a_step_before_the_newest_is_an_error_and_the_same_again_is_not(
    memory: Path, tmp_path: Path, mesh: Any
) -> None:
    kept = open_kept(tmp_path)
    kept.snapshot(5, make_state(mesh), 5)
    kept.snapshot(5, make_state(mesh), 5)
    with pytest.raises(CheckpointError, match="found a snapshot of step 5, wanted only steps before 4"):
        kept.snapshot(4, make_state(mesh), 4)
    kept.close()


def test_at_most_two_copies_are_kept_and_what_another_number_of_processes_left_goes(
    memory: Path, tmp_path: Path
) -> None:
    kept = open_kept(tmp_path)
    state = {"w": jnp.ones(1 << 20)}
    for step in range(1, 8):
        kept.snapshot(step, state, step)
    kept.close()
    (found, _) = sorted(memory.iterdir())
    sizes = [path.stat().st_blocks * 512 for path in memory.iterdir()]
    assert sum(sizes) < 2 * (4 << 20) + (1 << 16)
    found.rename(memory / found.name.replace("-1-", "-4-"))
    open_kept(tmp_path).close()
    assert len(list(memory.iterdir())) == 1


def test_a_failure_to_write_is_told_once_and_training_goes_on(
    memory: Path, tmp_path: Path, mesh: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    kept = open_kept(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    for step in (1, 2, 3):
        kept.snapshot(step, make_state(mesh), step)
    kept.save(3, make_state(mesh), 30)
    kept.close()
    said = capfd.readouterr().err
    assert said == (
        "checkpoint: no snapshots are kept in memory: process 0: No space left on device; training goes on\n"
    )


def test_without_a_launcher_it_is_said_once_and_has_no_effect(
    tmp_path: Path, mesh: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = open_kept(tmp_path)
    for step in (1, 2):
        kept.snapshot(step, make_state(mesh), step)
    assert kept.restore(make_state(mesh)) is None
    kept.close()
    assert capfd.readouterr().err.count("only processes that `launch` starts can keep any; training goes on") == 1


def test_a_program_that_a_process_starts_has_no_memory(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mesh: Any
) -> None:
    monkeypatch.setenv("HOSTMESH_PID", "1")
    kept = open_kept(tmp_path)
    kept.snapshot(1, make_state(mesh), 1)
    kept.close()
    assert os.listdir(memory) == []


def test_numbers_of_steps_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="memory_every wants a number of steps, or 0 for no snapshots; found -1"):
        open_kept(tmp_path, memory_every=-1)


def test_the_header_is_plain_json(memory: Path, tmp_path: Path, mesh: Any) -> None:
    kept = open_kept(tmp_path)
    kept.snapshot(1, make_state(mesh), 11)
    kept.close()
    header = Generation(next(path for path in memory.iterdir() if path.stat().st_size)).read_header()
    assert header is not None and (header["step"], header["attempt"], header["loader_state"]) == (1, 1, 11)
    assert json.loads(json.dumps(header)) == header
