"""Batches of every library's making: taken for what they are, or asked about; never a batch for a record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
import pytest
from conftest import Launch, Script

import hostmesh
from hostmesh.worker.errors import DataError

COUNT = 24
SIZE = 6  # of the pipelines' own batches; the loader's have 8

ASKED = "nothing tells which: every array of the first one has .* rows; say which they are: as_stream"
CONTRADICTED = "makes batches of 6 on its way, but its first item has .*; say which they are: as_stream"


def make_record(n: int) -> dict[str, Any]:
    return {"n": np.int64(n), "x": np.full(3, n, np.float32)}


def drop_number(record: dict[str, Any]) -> dict[str, Any]:
    return {"x": record["x"]}


def load(data: Any, **options: Any) -> list[Any]:
    stream = hostmesh.as_stream(data, **options)
    return list(hostmesh.Loader(stream, hostmesh.make_mesh(data=4), 8, epochs=1, tail="pad"))


def check(make: Callable[[], Any], wanted: str) -> None:
    """`records`: the loader's batches hold all of them, one a row. Else an error says what to say, and that helps."""
    if wanted != "records":
        with pytest.raises(DataError, match=ASKED if wanted == "asked" else CONTRADICTED):
            load(make())
        assert load(make(), batched=wanted == "asked")
        return
    batches = load(make())
    assert {batch["x"].shape for batch in batches} == {(8, 3)}
    assert sorted(int(n) for batch in batches for n in np.asarray(batch["x"])[:, 0]) == list(range(COUNT))


def grain_pipelines() -> dict[str, tuple[Callable[[], Any], str]]:
    records = grain.MapDataset.range(COUNT).map(make_record)
    halves = records.slice(slice(COUNT // 2)), records.slice(slice(COUNT // 2, None))
    batched = records.to_iter_dataset().batch(SIZE)
    interleave = grain.experimental.InterleaveIterDataset

    class Own(grain.IterDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(self._parent)

    class BatchNoise(grain.transforms.Map):  # type: ignore[misc]
        def map(self, record: Any) -> Any:
            return record

    class Apart(grain.experimental.FlatMapTransform):  # type: ignore[misc]
        max_fan_out = SIZE

        def flat_map(self, batch: Any) -> Any:
            return [{"n": batch["n"][k], "x": batch["x"][k]} for k in range(len(batch["n"]))]

    def loader(*operations: Any, source: Any = records) -> Any:
        sampler = grain.samplers.IndexSampler(len(source), grain.sharding.NoSharding(), shuffle=False, num_epochs=1)
        return grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=0)

    return {
        "records": (lambda: records.to_iter_dataset(), "records"),
        "records of one array": (lambda: records.map(drop_number).to_iter_dataset(), "records"),
        "batch, map, shuffle": (lambda: batched.map(dict), "records"),
        "batch, options": (
            lambda: grain.experimental.WithOptionsIterDataset(batched, grain.experimental.DatasetOptions()),
            "records",
        ),
        "interleave of batches": (
            lambda: interleave([half.batch(SIZE).to_iter_dataset() for half in halves], cycle_length=2),
            "records",
        ),
        "interleave made when read": (
            lambda: interleave(
                grain.MapDataset.range(2).map(lambda k: halves[k].batch(SIZE).to_iter_dataset()), cycle_length=2
            ),
            "records",
        ),
        "interleave of records": (
            lambda: interleave([half.to_iter_dataset() for half in halves], cycle_length=2),
            "records",
        ),
        "mix of batches": (
            lambda: grain.IterDataset.mix([half.batch(SIZE).to_iter_dataset() for half in halves]),
            "records",
        ),
        "concatenated batches": (
            lambda: grain.MapDataset.concatenate([half.batch(SIZE) for half in halves]).to_iter_dataset(),
            "records",
        ),
        "limit, window shuffle": (
            lambda: grain.experimental.WindowShuffleIterDataset(
                grain.experimental.LimitIterDataset(batched, 4), window_size=2, seed=0
            ),
            "records",
        ),
        "rebatch": (lambda: grain.experimental.RebatchIterDataset(batched, 4), "records"),
        "taken apart": (lambda: grain.experimental.FlatMapIterDataset(batched, Apart()), "records"),
        "a kind of dataset of one's own": (lambda: Own(batched), "asked"),
        "batches mixed with records": (
            lambda: grain.IterDataset.mix([batched, Own(batched)]),
            "asked",
        ),
        "batches made one record": (lambda: batched.map(lambda batch: {"x": batch["x"].reshape(-1)}), "contradicted"),
        "DataLoader, a map called Batch": (lambda: loader(BatchNoise()), "records"),
        "DataLoader, batch, map": (lambda: loader(grain.transforms.Batch(SIZE), BatchNoise()), "records"),
        "DataLoader of batches": (lambda: loader(source=records.batch(SIZE)), "records"),
    }


@pytest.mark.parametrize("kind", grain_pipelines())
def test_grain(kind: str) -> None:
    check(*grain_pipelines()[kind])


WITH_PROCESSES = """
import grain, jax, numpy as np, hostmesh

def make_record(n):
    return {"n": np.int64(n), "x": np.full(3, n, np.float32)}

if __name__ == "__main__":
    hostmesh.join()
    records = grain.MapDataset.range(24).map(make_record).batch(6).to_iter_dataset()
    stream = records.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=2))
    batches = list(hostmesh.Loader(stream, hostmesh.make_mesh(data=-1), 8, epochs=1))
    print([batch["x"].shape for batch in batches], len(jax.devices()))
"""


@pytest.mark.slow
def test_grain_with_processes_of_its_own(launch: Launch, script: Script) -> None:
    """They want flags that nobody has parsed."""
    done = launch("--local", "2", script(WITH_PROCESSES), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[(8, 3), (8, 3), (8, 3)] 2") == 2, done.stdout


@pytest.mark.parametrize("kind", ["mix", "concatenate"])
def test_grain_sources_of_batches_are_refused(kind: str) -> None:
    records = grain.MapDataset.range(COUNT).map(make_record)
    datasets = [records.batch(SIZE)] * 2
    with pytest.raises(DataError, match="is made of batches: leave out .batch()"):
        hostmesh.Loader(getattr(grain.MapDataset, kind)(datasets).shuffle(seed=1), hostmesh.make_mesh(data=4), 2)


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="hostmesh[torch]")


TORCH = {
    "IterableDataset": "asked",
    "IterableDataset of records with a number": "records",
    "loader": "records",
    "loader without batches": "records",
    "loader without batches, of batches": "asked",
    "loader, sampled by batches": "records",
    "loader, records in a list": "contradicted",
    "loader, batches made one record": "contradicted",
}


@pytest.mark.xdist_group("torch")
@pytest.mark.parametrize("kind", TORCH)
def test_torch(torch: Any, kind: str) -> None:
    data = torch.utils.data
    records = [make_record(n) for n in range(COUNT)]
    blocks = [{"x": np.stack([r["x"] for r in records[k : k + SIZE]])} for k in range(0, COUNT, SIZE)]

    class Rows(data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, ids: list[int]) -> Any:
            return {"x": torch.stack([torch.as_tensor(records[n]["x"]) for n in ids])}

    class Stream(data.IterableDataset):  # type: ignore[misc]
        def __init__(self, items: list[Any]) -> None:
            self.items = items

        def __iter__(self) -> Iterator[Any]:
            return iter(self.items)

    def flatten(found: list[Any]) -> Any:
        return {"x": torch.cat([torch.as_tensor(record["x"]) for record in found])}

    makes: dict[str, Callable[[], Any]] = {
        "IterableDataset": lambda: Stream(blocks),
        "IterableDataset of records with a number": lambda: Stream(records),
        "loader": lambda: data.DataLoader(records, batch_size=SIZE),
        "loader without batches": lambda: data.DataLoader(records, batch_size=None),
        "loader without batches, of batches": lambda: data.DataLoader(Stream(blocks), batch_size=None),
        "loader, sampled by batches": lambda: data.DataLoader(
            Rows(), batch_size=None, sampler=data.BatchSampler(range(COUNT), SIZE, drop_last=False)
        ),
        "loader, records in a list": lambda: data.DataLoader(
            records, batch_size=SIZE, collate_fn=lambda found: {"x": [record["x"] for record in found]}
        ),
        "loader, batches made one record": lambda: data.DataLoader(records, batch_size=SIZE, collate_fn=flatten),
    }
    check(makes[kind], TORCH[kind])


HUGGING_FACE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "records": (lambda data: data, "records"),
    "batch": (lambda data: data.batch(SIZE), "records"),
    "numpy, batch": (lambda data: data.with_format("numpy").batch(SIZE), "records"),
    "batch, map, take": (lambda data: data.batch(SIZE).map(lambda batch: batch).take(4), "records"),
    "records, mapped in batches": (lambda data: data.map(lambda batch: batch, batched=True, batch_size=5), "records"),
    "batch, mapped in batches": (
        lambda data: data.batch(SIZE).map(lambda batch: batch, batched=True, batch_size=2),
        "asked",
    ),
}


@pytest.mark.xdist_group("hugging face")
@pytest.mark.parametrize("kind", HUGGING_FACE)
def test_hugging_face(kind: str) -> None:
    datasets = pytest.importorskip("datasets", reason="hostmesh[hugging-face]")
    make, wanted = HUGGING_FACE[kind]
    columns = {"x": [[n, n, n] for n in range(COUNT)]}
    check(lambda: make(datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=2)), wanted)


TF_DATA: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "records": (lambda tf, data: data, "records"),
    "batch, map, prefetch": (lambda tf, data: data.batch(SIZE).map(lambda batch: batch).prefetch(2), "records"),
    "batch, unbatch": (lambda tf, data: data.batch(SIZE).unbatch(), "records"),
    "rebatch": (lambda tf, data: data.batch(SIZE).rebatch(4), "records"),
    "batches, concatenated": (
        lambda tf, data: data.take(12).batch(SIZE).concatenate(data.skip(12).batch(4)),
        "records",
    ),
    "batches, chosen": (
        lambda tf, data: tf.data.Dataset.choose_from_datasets(
            [data.take(12).batch(SIZE), data.skip(12).batch(SIZE)], tf.data.Dataset.range(4).map(lambda n: n % 2)
        ),
        "records",
    ),
    "records, interleaved": (
        lambda tf, data: data.interleave(tf.data.Dataset.from_tensors, cycle_length=1).batch(SIZE),
        "records",
    ),
    "batches, interleaved": (
        lambda tf, data: tf.data.Dataset.range(2).interleave(lambda _: data.batch(SIZE), cycle_length=1),
        "asked",
    ),
    "from a generator": (
        lambda tf, data: tf.data.Dataset.from_generator(
            lambda: data.batch(SIZE).as_numpy_iterator(), output_signature={"x": tf.TensorSpec((None, 3))}
        ),
        "asked",
    ),
    "from tensors": (lambda tf, data: tf.data.Dataset.from_tensors({"x": np.zeros((COUNT, 3))}), "asked"),
    "batches made one record": (
        lambda tf, data: data.batch(SIZE).map(lambda batch: {"x": tf.reshape(batch["x"], [-1])}),
        "contradicted",
    ),
}


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.parametrize("kind", TF_DATA)
def test_tf_data(kind: str) -> None:
    tf = pytest.importorskip("tensorflow", reason="hostmesh[tensorflow]")
    make, wanted = TF_DATA[kind]
    rows = np.repeat(np.arange(COUNT, dtype=np.float32)[:, None], 3, axis=1)
    check(lambda: make(tf, tf.data.Dataset.from_tensor_slices({"x": rows})), wanted)


def in_blocks(shard: int, shards: int) -> Iterator[Any]:
    for start in range(0, COUNT, SIZE):
        yield {"x": np.stack([make_record(n)["x"] for n in range(start, start + SIZE)])}


def test_a_function_that_gives_batches_must_say_so() -> None:
    check(lambda: in_blocks, "asked")
    check(lambda: lambda shard, shards: map(make_record, range(shard, COUNT, shards)), "records")
    check(lambda: [next(in_blocks(0, 1))] * 4, "asked")


def test_what_is_asked_is_told_with_the_stream() -> None:
    with pytest.raises(DataError, match=re.escape("in_blocks gives records or batches")):
        load(in_blocks)
