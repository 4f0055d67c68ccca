"""Restored streams: the same batches as without the interruption, by the states of their iterators if they have any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
import pytest
from conftest import Launch, Script

import hostmesh
from hostmesh.worker.process import progress
from hostmesh.worker.streams import shard, state

COUNT = 50


@pytest.fixture(autouse=True)
def note_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one a second: these streams are over before that."""
    monkeypatch.setattr(shard, "NOTE_EVERY", 0.0)
    monkeypatch.setattr(shard, "SHARE_OF_TIME", 0)


@pytest.fixture(autouse=True)
def quiet(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Whatever is read again from its start is told; a test that wants it reads what was told."""
    yield
    assert "is read again" not in capfd.readouterr().err


class Numbers:
    """Records 0, 1, … of a shard, by an iterator that can tell where it is; `given` counts what all of them gave."""

    def __init__(self, count: int = COUNT, size: int | None = None) -> None:
        self.count, self.size, self.given = count, size, 0

    def __call__(self, shard: int, shards: int) -> Iterator[Any]:
        numbers = self

        class Pass:
            at = shard

            def __iter__(self) -> Pass:
                return self

            def __next__(self) -> Any:
                if self.at >= numbers.count:
                    raise StopIteration
                ids = np.arange(self.at, numbers.count, shards)[: numbers.size or 1]
                self.at += shards * len(ids)
                numbers.given += len(ids)
                return {"id": ids if numbers.size else ids[0]}

            def get_state(self) -> Any:
                return {"at": self.at, "key": b"\\x00\\xff"}

            def set_state(self, state: Any) -> None:
                assert state["key"] == b"\\x00\\xff"
                self.at = state["at"]

        return Pass()


def make_loader(stream: Any, **options: Any) -> hostmesh.Loader:
    return hostmesh.Loader(stream, hostmesh.make_mesh(data=4), **{"batch_size": 8, "epochs": 3, **options})


def show(batches: Any) -> list[Any]:
    return [{name: np.asarray(array).tolist() for name, array in batch.items()} for batch in batches]


def check_resumed(make: Callable[[], Any], *, has_state: bool = True, **options: Any) -> None:
    """In a loader of its own, as in another process; and after a second interruption as after the first."""
    loader = make_loader(make(), **options)
    whole: list[Any] = []
    states: list[Any] = [loader.state()]
    for batch in loader:
        whole += show([batch])
        states.append(loader.state())
    assert bool(states[-2]["shards"]) == has_state
    for step in sorted({0, 1, len(whole) // 2, len(whole) - 1, len(whole)}):
        again = make_loader(make(), **options)
        again.restore(json.loads(json.dumps(states[step])))
        assert again.step == step
        found = show([next(again)]) if step < len(whole) else []
        after = again.state()
        assert found + show(again) == whole[step:]
        if step == len(whole) // 2:
            again.restore(after)
            assert show(again) == whole[step + 1 :]


@pytest.mark.parametrize("tail", ["carry", "pad", "drop"])
@pytest.mark.parametrize(("shards", "size"), [(1, None), (4, None), (1, 20), (2, 3)])
def test_batches_go_on_as_they_would_have(shards: int, size: int | None, tail: str) -> None:
    check_resumed(lambda: hostmesh.Stream(Numbers(size=size), shards, batched=size is not None), tail=tail)


def test_shards_of_different_lengths_go_on_too() -> None:
    def make() -> Any:
        parts = [Numbers(5), Numbers(29)]
        return hostmesh.Stream(lambda shard, _: parts[shard](0, 1), 2)

    check_resumed(make, tail="pad", epochs=1)


@pytest.mark.parametrize("state", [{1: 2}, (1, 2), object(), None, NotImplementedError()])
def test_a_state_that_cannot_be_kept_is_none(state: Any) -> None:
    class Records:
        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return {"id": 1}

        def get_state(self) -> Any:
            if isinstance(state, Exception):
                raise state
            return state

    loader = make_loader(hostmesh.Stream(lambda *_: Records()))
    next(loader), next(loader), next(loader)
    assert loader.state() == {"step": 3, "shards": {}}
    loader.close()


def test_little_is_read_again() -> None:
    loader = make_loader(hostmesh.Stream(Numbers(4000), 2))
    for _ in range(300):
        next(loader)
    numbers = Numbers(4000)
    again = make_loader(hostmesh.Stream(numbers, 2))
    again.restore(loader.state())
    assert show([next(again)]) == show([next(loader)])
    again.close()
    assert numbers.given < 100
    assert show([next(again)]) == show([next(loader)])  # a loader that was closed and goes on
    assert numbers.given < 200


def test_without_a_state_it_is_read_again_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)

    def tape(shard: int, shards: int) -> Iterator[Any]:
        return ({"id": n} for n in range(shard, 2000, shards))

    for shards in (1, 2):
        loader = make_loader(hostmesh.as_stream(tape, shards))
        loader.restore(400)  # in the second pass
        assert show([next(loader)])[0]["id"][:3] == [1200 + shards * k for k in range(3)]
    assert "skipping to batch 400 of tape: 0% after 0 s, about " in capfd.readouterr().err


@pytest.mark.parametrize("problem", ["records", "error", "end", "later"])
def test_a_place_that_is_no_longer_there_is_told_and_read_again(
    problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = make_loader(hostmesh.Stream(Numbers()))
    for _ in range(4):
        next(loader)
    state: Any = json.loads(json.dumps(loader.state()))
    place = state["shards"]["0"]
    if problem == "error":
        place["state"] = "{}"
    elif problem == "later":
        place["rows"] = 40
    elif problem == "end":
        place["state"] = place["state"].replace(f'"at": {place["rows"]}', '"at": 1000')
    else:
        place["fingerprint"] = "00000000"
    again = make_loader(hostmesh.Stream(Numbers(), name="tape"))
    again.restore(state)
    assert show([next(again)]) == show([next(loader)])
    assert "tape: shard 0 is read again from its start, because " in capfd.readouterr().err


def test_a_state_that_is_too_large_is_told_and_not_saved(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(state, "MAX_BYTES", 20)
    loader = make_loader(hostmesh.Stream(Numbers(), name="a large one"))
    next(loader), next(loader)
    assert loader.state() == {"step": 2, "shards": {}}
    loader.state()
    assert capfd.readouterr().err.count("a large one: the state of its iterator has ") == 1


def test_what_is_no_state_is_refused() -> None:
    stream = make_loader(hostmesh.Stream(Numbers()), steps=9)
    for wrong in (-1, True, 10, "3", {"step": 10, "shards": {}}, {"step": 3}):
        with pytest.raises(ValueError, match="wants a number of batches from 0 to 9, found"):
            stream.restore(wrong)  # type: ignore[arg-type]
    source = make_loader({"id": np.arange(80)})
    with pytest.raises(ValueError, match="wants a number of batches from 0 to 30, found"):
        source.restore({"step": 3, "shards": {}})


PIPELINE = """
import grain, numpy as np, hostmesh

def make_record(n):
    return {"id": np.int64(n)}

def make_loader(batched, tail):
    records = grain.MapDataset.range(203).seed(3).shuffle()
    parts = [records.slice(slice(k, None, 3)).to_iter_dataset().map(make_record) for k in range(3)]
    interleaved = grain.experimental.InterleaveIterDataset(parts, cycle_length=2)
    stream = hostmesh.as_stream(interleaved.batch(5) if batched else interleaved, shards=4)
    return hostmesh.Loader(stream, hostmesh.make_mesh(data=4), 16, epochs=2, tail=tail)
"""

PROCESSES = (
    PIPELINE
    + """
import json, sys
import jax
from jax.sharding import NamedSharding, PartitionSpec
from hostmesh.worker.streams import shard

shard.NOTE_EVERY = shard.SHARE_OF_TIME = 0
start, stop = map(int, sys.argv[1:])
hostmesh.join()

for batched, tail in ((False, "pad"), (True, "carry")):
    loader = make_loader(batched, tail)
    mesh = hostmesh.make_mesh(data=4)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    state = jax.make_array_from_callback((4,), sharding, lambda index: np.zeros(4)[index])
    checkpoint = hostmesh.Checkpoint(f"kept-{tail}", data_spec=loader.data_spec)
    found = checkpoint.restore(state)
    assert (found is None) == (start == 0)
    if found:
        loader.restore(found[1])
        assert loader.step == start and sorted(found[1]["shards"]) == ["0", "1", "2", "3"], found[1]
    gather = jax.jit(lambda batch: batch, out_shardings=NamedSharding(mesh, PartitionSpec()))
    seen = []
    for batch in loader:
        seen.append({name: np.asarray(array.addressable_data(0)).tolist() for name, array in gather(batch).items()})
        if loader.step == stop:
            break
    checkpoint.save(loader.step, state, loader.state())
    checkpoint.close()
    if jax.process_index() == 0:
        print("seen", json.dumps(seen))
"""
)


@pytest.mark.slow
def test_other_numbers_of_processes_go_on(launch: Launch, script: Script) -> None:
    """2, then 4, then 1, each from what all of the last saved."""
    name = script(PROCESSES)
    seen: list[list[Any]] = [[], []]
    for processes, start, stop in ((2, 0, 11), (4, 11, 19), (1, 19, 99)):
        devices = str(4 // processes)
        done = launch("--local", str(processes), "--devices", devices, name, str(start), str(stop), timeout=240)
        assert done.returncode == 0 and "is read again" not in done.stderr, done.stdout + done.stderr
        said = [json.loads(line.partition("seen ")[2]) for line in done.stdout.splitlines() if "seen " in line]
        seen = [before + now for before, now in zip(seen, said, strict=True)]
    here: dict[str, Any] = {}
    exec(PIPELINE, here)
    for kind, (batched, tail) in enumerate(((False, "pad"), (True, "carry"))):
        assert seen[kind] == show(here["make_loader"](batched, tail))


def make_grain(kind: str) -> Any:
    records = grain.MapDataset.range(COUNT).map(lambda n: {"id": np.int64(n)})
    if kind == "shuffled":
        return records.seed(3).shuffle().random_map(_add_noise).to_iter_dataset()
    if kind == "batched":
        return records.shuffle(seed=3).to_iter_dataset().batch(7)
    if kind == "interleaved":
        parts = [records.slice(slice(k, None, 3)).shuffle(seed=k).to_iter_dataset().batch(4) for k in range(3)]
        return grain.experimental.InterleaveIterDataset(parts, cycle_length=2)
    if kind == "window":
        return grain.experimental.WindowShuffleIterDataset(records.to_iter_dataset(), window_size=11, seed=4)
    sampler = grain.samplers.IndexSampler(COUNT, grain.sharding.NoSharding(), shuffle=True, seed=5, num_epochs=1)
    return grain.DataLoader(data_source=records, sampler=sampler, worker_count=0)


def _add_noise(record: Any, rng: Any) -> Any:
    return {**record, "noise": np.float32(rng.random())}


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", ["shuffled", "batched", "interleaved", "window", "loader"])
@pytest.mark.quick("shuffled", "batched-2", "window-1", "loader-1")
def test_grain(kind: str, shards: int) -> None:
    check_resumed(lambda: hostmesh.as_stream(make_grain(kind), shards), epochs=2)


@pytest.mark.xdist_group("hugging face")
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("kind", ["plain", "mapped", "shuffled", "batched", "interleaved"])
def test_hugging_face(kind: str, shards: int) -> None:
    datasets = pytest.importorskip("datasets", reason="hostmesh[hugging-face]")

    def make() -> Any:
        data = datasets.Dataset.from_dict({"id": list(range(COUNT))}).to_iterable_dataset(num_shards=4)
        if kind == "mapped":
            data = data.map(lambda one: {"id": one["id"] + 1}).filter(lambda one: one["id"] % 5).take(38)
        if kind == "shuffled":
            data = data.shuffle(seed=3, buffer_size=10)
        if kind == "interleaved":
            data = datasets.interleave_datasets([data, data.skip(3)], probabilities=[0.3, 0.7], seed=2)
        return hostmesh.as_stream(data.batch(6) if kind == "batched" else data, shards)

    check_resumed(make, epochs=2, has_state=kind != "shuffled")  # what a shuffle's buffer holds is not in its state


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.parametrize("kind", ["plain", "reshuffled", "batched", "large buffer", "generator"])
@pytest.mark.quick("plain", "reshuffled")
def test_tf_data(kind: str) -> None:
    tf = pytest.importorskip("tensorflow", reason="hostmesh[tensorflow]")

    def make() -> Any:
        data = tf.data.Dataset.from_tensor_slices({"id": np.arange(COUNT)})
        if kind == "reshuffled":
            data = data.shuffle(20, seed=3)
        if kind == "large buffer":
            data = data.shuffle(1 << 20, seed=3, reshuffle_each_iteration=False)
        if kind == "batched":
            data = data.shuffle(20, seed=3, reshuffle_each_iteration=False).batch(6).prefetch(2)
        if kind == "generator":
            data = tf.data.Dataset.from_generator(
                lambda: ({"id": n} for n in range(COUNT)), output_signature={"id": tf.TensorSpec((), tf.int64)}
            )
        return hostmesh.as_stream(data, 1 if kind == "reshuffled" else 2)

    check_resumed(make, epochs=2, batch_size=16)


@pytest.mark.xdist_group("torch")
def test_torch() -> None:
    torch = pytest.importorskip("torch", reason="hostmesh[torch]")

    class Stateful(torch.utils.data.IterableDataset):  # type: ignore[misc]
        at = 0

        def __iter__(self) -> Iterator[Any]:
            start, self.at = self.at, 0
            for n in range(start, COUNT):
                self.at = n + 1
                yield {"id": torch.tensor(n)}
            self.at = 0

        def state_dict(self) -> Any:
            return {"at": self.at}

        def load_state_dict(self, state: Any) -> None:
            self.at = state["at"]

    check_resumed(lambda: hostmesh.as_stream(Stateful()))

    def shuffled() -> Any:
        records = [{"id": np.int64(n)} for n in range(COUNT)]
        seeded = torch.Generator().manual_seed(0)
        return hostmesh.as_stream(torch.utils.data.DataLoader(records, batch_size=4, shuffle=True, generator=seeded))

    check_resumed(shuffled, has_state=False)


@pytest.mark.xdist_group("datarax")
def test_datarax() -> None:
    pytest.importorskip("datarax", reason="hostmesh[datarax]")
    from datarax.pipeline import Pipeline
    from datarax.sources import MemorySource, MemorySourceConfig
    from flax import nnx
    from jax import random

    class Noise(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.rngs = rngs

        def __call__(self, batch: Any) -> Any:
            return {**batch, "noise": random.uniform(self.rngs.noise(), batch["id"].shape)}

    def make() -> Any:
        source = MemorySource(MemorySourceConfig(), {"id": np.arange(COUNT)}, rngs=nnx.Rngs(0))
        rngs = nnx.Rngs(0, noise=1)
        return hostmesh.as_stream(Pipeline(source=source, stages=[Noise(rngs)], batch_size=6, rngs=rngs))

    check_resumed(make, epochs=2, batch_size=16)
