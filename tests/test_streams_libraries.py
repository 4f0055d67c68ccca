"""Streams of every library: each pass begins anew, each record is in one shard, and none shuffles behind our back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain
import numpy as np
import pytest

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import leaves
from hostmesh.worker.sources import as_source, as_stream
from hostmesh.worker.streams.stream import Stream

COUNT = 22


def numbers(stream: Stream, shard: int, shards: int) -> list[int]:
    """The field `n` of all records of one pass."""
    found: list[int] = []
    for item in stream.open(shard, shards):
        assert all(isinstance(leaf, (np.ndarray, np.generic)) for _, leaf in leaves(item)), item
        found += np.atleast_1d(item["n"]).tolist()
    return found


def check_stream(make: Callable[..., Stream], batched: bool) -> None:
    """Twice, because the second epoch opens it again; interleaved, because one process may read several shards."""
    for shards in (1, 2, 3):
        stream = make(shards=shards)
        assert (stream.batched, stream.shards) == (batched, shards)
        for _ in range(2):
            found = [numbers(stream, shard, shards) for shard in range(shards)]
            assert sorted(n for part in found for n in part) == list(range(COUNT))
            assert max(map(len, found)) - min(map(len, found)) <= 1
        together = zip(*(stream.open(shard, shards) for shard in range(shards)), strict=False)
        firsts = [int(np.atleast_1d(item["n"])[0]) for item in next(together)]
        assert len(set(firsts)) == shards


def make_record(n: int) -> dict[str, Any]:
    return {"n": np.int64(n), "x": np.full((2, 3), n, np.float32)}


def grain_datasets() -> dict[str, tuple[Any, bool]]:
    records = grain.MapDataset.range(COUNT).map(make_record)
    sampler = grain.samplers.IndexSampler(COUNT, grain.sharding.NoSharding(), shuffle=False, num_epochs=1)
    plain: dict[str, Any] = {"data_source": records, "sampler": sampler, "worker_count": 0}
    return {
        "iter": (records.to_iter_dataset(), False),
        "iter, batched": (records.to_iter_dataset().batch(4).map(lambda batch: batch), True),
        "map, batched": (records.batch(4).to_iter_dataset(), True),
        "loader": (grain.DataLoader(**plain), False),
        "loader, batched": (grain.DataLoader(**plain, operations=[grain.transforms.Batch(4)]), True),
    }


@pytest.mark.parametrize("kind", grain_datasets())
def test_grain_streams(kind: str) -> None:
    dataset, batched = grain_datasets()[kind]
    check_stream(lambda **options: as_stream(dataset, **options), batched)
    assert isinstance(as_source(dataset), Stream)


def refuse(dataset: Any, message: str) -> None:
    """Such a dataset is refused, unless the loader is told that it is sharded."""
    with pytest.raises(DataError, match=message):
        hostmesh.Loader(dataset, batch_size=4)
    assert next(hostmesh.Loader(dataset, batch_size=4, sharded=True))["n"].shape == (4,)


def test_a_grain_loader_of_one_shard_is_refused() -> None:
    sampler = grain.samplers.IndexSampler(COUNT, grain.sharding.ShardOptions(1, 4), num_epochs=1, seed=0)
    loader = grain.DataLoader(data_source=[make_record(n) for n in range(COUNT)], sampler=sampler)
    wanted = r"give the loader sharded=True, or pass shard_options=NoSharding\(\) and let the loader shard"
    refuse(loader, rf"reads only part 1 of 4, as its ShardOptions says, wanted all records: {wanted}")


def test_a_batch_that_is_taken_apart_gives_records() -> None:
    class Apart(grain.experimental.FlatMapTransform):  # type: ignore[misc]
        max_fan_out = 4

        def flat_map(self, batch: Any) -> Any:
            return list(batch)

    batches = grain.MapDataset.range(COUNT).batch(4)
    assert as_stream(batches.to_iter_dataset()).batched
    apart = grain.experimental.FlatMapIterDataset(batches.to_iter_dataset(), Apart())
    assert not as_stream(apart).batched
    assert as_stream(apart, batched=True).batched


needs_torch = pytest.mark.xdist_group("torch")


@pytest.fixture(scope="session")
def torch() -> Any:
    return pytest.importorskip("torch", reason="hostmesh[torch]")


def torch_records(torch: Any) -> Any:
    class Records(torch.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return ({**make_record(n), "x": torch.full((2,), n)} for n in range(COUNT))

    return Records()


@needs_torch
def test_torch_iterable_datasets(torch: Any) -> None:
    check_stream(lambda **options: as_stream(torch_records(torch), **options), batched=False)


@needs_torch
@pytest.mark.parametrize("batch_size", [None, 4])
def test_torch_loaders(torch: Any, batch_size: int | None) -> None:
    loader = torch.utils.data.DataLoader(torch_records(torch), batch_size=batch_size)
    check_stream(lambda **options: as_stream(loader, **options), batched=batch_size is not None)
    assert isinstance(as_source(loader), Stream)


@needs_torch
def test_text_that_torch_collates_is_an_array(torch: Any) -> None:
    records = [{"n": np.int64(n), "pair": (str(n), n)} for n in range(4)]
    (block,) = as_stream(torch.utils.data.DataLoader(records, batch_size=4)).open(0, 1)
    assert block["pair"][0].tolist() == ["0", "1", "2", "3"] and block["pair"][0].dtype == object


@needs_torch
def test_a_torch_loader_that_shuffles_without_a_seed_is_refused(torch: Any) -> None:
    records = [make_record(n) for n in range(COUNT)]
    samplers = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(records), 4, drop_last=False)
    for loader in (
        torch.utils.data.DataLoader(records, batch_size=4, shuffle=True),
        torch.utils.data.DataLoader(records, batch_sampler=samplers),
    ):
        with pytest.raises(DataError, match=r"torch.Generator\(\).manual_seed\(0\), or better, pass the dataset"):
            as_stream(loader)
    seeded = [
        torch.utils.data.DataLoader(records, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0))
        for _ in range(2)
    ]
    with pytest.raises(DataError, match="shuffles anew for each of 2 shards"):
        as_stream(seeded[0], shards=2)
    first, second = ([numbers(as_stream(loader), 0, 1) for _ in range(2)] for loader in seeded)
    assert first == second and sorted(first[0]) == list(range(COUNT))
    assert first[0] != first[1]


@needs_torch
def test_a_torch_loader_of_one_part_is_refused(torch: Any) -> None:
    records = [make_record(n) for n in range(COUNT)]
    sampler = torch.utils.data.distributed.DistributedSampler(records, num_replicas=4, rank=1)
    loader = torch.utils.data.DataLoader(records, sampler=sampler, batch_size=3)
    refuse(loader, "part 1 of 4, as its DistributedSampler says, .* or leave out the sampler and let the loader shard")
    stream = as_stream(loader)
    assert stream.rewind is not None
    passes = [numbers(stream, 0, 1) for _ in range(2)]
    stream.rewind(0)
    assert passes[0] != passes[1] and numbers(stream, 0, 1) == passes[0]  # each pass is an epoch of its sampler


@pytest.mark.xdist_group("hugging face")
@pytest.mark.parametrize("num_shards", [1, 3, 6])
def test_hugging_face_iterable_datasets(num_shards: int) -> None:
    datasets = pytest.importorskip("datasets", reason="hostmesh[hugging-face]")
    columns = {"n": list(range(COUNT)), "x": [[n, n] for n in range(COUNT)]}
    dataset = datasets.Dataset.from_dict(columns).to_iterable_dataset(num_shards=num_shards)
    for shards in (1, 2, 3):
        stream = as_stream(dataset, shards)
        for _ in range(2):
            found = [[int(item["n"]) for item in stream.open(shard, shards)] for shard in range(shards)]
            assert sorted(n for part in found for n in part) == list(range(COUNT))
            assert all(len(part) > COUNT // 4 for part in found)
    first = next(iter(as_stream(dataset).open(0, 1)))
    assert isinstance(first["x"], np.ndarray) and first["x"].dtype == np.int64


@pytest.mark.xdist_group("hugging face")
def test_a_hugging_face_stream_of_one_node_is_refused() -> None:
    datasets = pytest.importorskip("datasets", reason="hostmesh[hugging-face]")
    from datasets.distributed import split_dataset_by_node

    dataset = datasets.Dataset.from_dict({"n": list(range(COUNT))}).to_iterable_dataset()
    refuse(split_dataset_by_node(dataset, rank=1, world_size=2), "part 1 of 2, as its split_dataset_by_node says")


@pytest.mark.xdist_group("hugging face")
def test_a_format_of_a_hugging_face_stream_is_kept() -> None:
    datasets = pytest.importorskip("datasets", reason="hostmesh[hugging-face]")
    dataset = datasets.Dataset.from_dict({"n": list(range(COUNT))}).to_iterable_dataset()
    check_stream(lambda **options: as_stream(dataset.with_format("numpy"), **options), batched=False)
    check_stream(lambda **options: as_stream(dataset.batch(4), batched=True, **options), batched=True)


# In the process that imports TensorFlow for all tests.
needs_tensorflow = pytest.mark.xdist_group("tensorflow")


@pytest.fixture(scope="session")
def tf() -> Any:
    return pytest.importorskip("tensorflow", reason="hostmesh[tensorflow]")


@needs_tensorflow
@pytest.mark.parametrize("batched", [False, True])
def test_tf_data(tf: Any, batched: bool) -> None:
    dataset = tf.data.Dataset.from_tensor_slices({"n": np.arange(COUNT), "x": np.zeros((COUNT, 2, 3))})
    dataset = dataset.batch(4).map(lambda batch: batch).prefetch(2) if batched else dataset
    check_stream(lambda **options: as_stream(dataset, **options), batched)
    assert isinstance(as_source(dataset), Stream)


@needs_tensorflow
def test_tf_data_tells_batches_from_records(tf: Any) -> None:
    dataset = tf.data.Dataset.range(COUNT)
    assert as_stream(dataset.padded_batch(4).cache()).batched
    assert as_stream(dataset.batch(4).rebatch(3)).batched
    assert not as_stream(dataset.batch(4).unbatch()).batched
    assert not as_stream(dataset.batch(4), batched=False).batched


@needs_tensorflow
def test_tf_data_that_shuffles_without_a_seed_is_refused(tf: Any) -> None:
    dataset = tf.data.Dataset.from_tensor_slices({"n": np.arange(COUNT)})
    with pytest.raises(DataError, match=r"shuffles differently in every process: give .shuffle\(\) a seed"):
        as_stream(dataset.shuffle(10).batch(4))
    with pytest.raises(DataError, match="shuffles anew for each of 2 shards"):
        as_stream(dataset.shuffle(10, seed=3), shards=2)
    fixed = dataset.shuffle(10, seed=3, reshuffle_each_iteration=False)
    check_stream(lambda **options: as_stream(fixed, **options), batched=False)
    anew = as_stream(dataset.shuffle(COUNT, seed=3))
    passes = [numbers(anew, 0, 1) for _ in range(2)]
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1])


@needs_tensorflow
def test_what_tfds_makes_numpy_of_is_read_as_tf_data(tf: Any) -> None:
    tfds = pytest.importorskip("tensorflow_datasets", reason="hostmesh[tensorflow]")
    dataset = tf.data.Dataset.from_tensor_slices({"n": np.arange(COUNT), "x": np.zeros((COUNT, 2, 3))}).batch(4)
    check_stream(lambda **options: as_stream(tfds.as_numpy(dataset), **options), batched=True)
    assert as_source(lambda: tfds.as_numpy(dataset)).batched  # type: ignore[union-attr]


@needs_tensorflow
def test_a_shard_of_tf_data_is_known_as_one(tf: Any) -> None:
    part = as_stream(tf.data.Dataset.range(COUNT).shard(4, 1).batch(2)).part
    assert part is not None and (part.said_by, part.index, part.count) == (".shard(4, 1)", 1, 4)
    assert as_stream(tf.data.Dataset.range(COUNT).shard(1, 0)).part is None


@pytest.fixture(scope="session")
def make_pipeline() -> Callable[..., Any]:
    pytest.importorskip("datarax", reason="hostmesh[datarax]")
    import jax
    from datarax.pipeline import Pipeline
    from datarax.sources import MemorySource, MemorySourceConfig
    from flax import nnx

    class Noise(nnx.Module):  # type: ignore[misc]
        def __init__(self, rngs: Any) -> None:
            self.rngs = rngs

        def __call__(self, batch: Any) -> Any:
            return {**batch, "noise": jax.random.uniform(self.rngs.noise(), batch["n"].shape)}

    def make(shuffle: bool = False) -> Any:
        data = {"n": np.arange(COUNT, dtype=np.int32)}
        source = MemorySource(MemorySourceConfig(shuffle=shuffle), data, rngs=nnx.Rngs(0, shuffle=1))
        rngs = nnx.Rngs(0, noise=1)
        return Pipeline(source=source, stages=[Noise(rngs)], batch_size=4, rngs=rngs)

    return make


@pytest.mark.xdist_group("datarax")
def test_datarax_pipelines(make_pipeline: Callable[..., Any]) -> None:
    """22 records in batches of 4: the last batch of a pipeline would hold two of the first again."""
    pipeline = make_pipeline()
    check_stream(lambda **options: as_stream(pipeline, **options), batched=True)
    assert isinstance(as_source(pipeline), Stream)


@pytest.mark.xdist_group("datarax")
def test_a_datarax_stream_is_the_same_in_every_process(make_pipeline: Callable[..., Any]) -> None:
    """One that reads both shards sees in each what another sees that reads only one; each pass has its own noise."""

    def noise(stream: Stream, shard: int) -> list[float]:
        return [value for block in stream.open(shard, 2) for value in block["noise"].tolist()]

    both, one = as_stream(make_pipeline(), shards=2), as_stream(make_pipeline(), shards=2)
    passes = [(noise(both, 0), noise(both, 1)) for _ in range(2)]
    assert [noise(one, 1) for _ in range(2)] == [second for _, second in passes]
    assert passes[0] != passes[1]


def test_a_datarax_pipeline_that_repeats_records_is_refused(make_pipeline: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match="shuffles anew for every batch, so that records repeat"):
        as_stream(make_pipeline(shuffle=True))


def make_mix() -> Any:
    pytest.importorskip("datarax", reason="hostmesh[datarax]")
    from datarax.sources import MemorySource, MemorySourceConfig, MixDataSourcesConfig, MixDataSourcesNode
    from flax import nnx

    parts = [np.arange(start, start + 12, dtype=np.int32) for start in (0, 100)]
    sources = [MemorySource(MemorySourceConfig(), {"n": part}, rngs=nnx.Rngs(0)) for part in parts]
    config = MixDataSourcesConfig(num_sources=2, weights=(0.25, 0.75))
    return MixDataSourcesNode(config, sources, rngs=nnx.Rngs(0))


def test_a_mix_of_datarax_sources_and_a_pipeline_of_one() -> None:
    """The mix alone gives each record once, until one of its sources ends; its Pipeline draws with replacement."""
    stream = as_source(make_mix())
    assert isinstance(stream, Stream) and not stream.batched
    passes = [numbers(stream, 0, 1) for _ in range(2)]
    assert passes[0] == passes[1] and passes[0][:5] == [0, 100, 101, 102, 1]
    assert sorted(n for shard in (0, 1) for n in numbers(stream, shard, 2)) == sorted(passes[0])
    items = iter(stream.open(0, 1))
    for _ in range(3):
        next(items)
    other = iter(stream.open(0, 1))
    other.set_state(items.get_state())  # type: ignore[attr-defined]
    assert [int(item["n"]) for item in other] == passes[0][3:]

    from datarax.pipeline import Pipeline
    from flax import nnx

    made = [as_stream(Pipeline(source=make_mix(), stages=[], batch_size=5, rngs=nnx.Rngs(0))) for _ in range(2)]
    first, second = ([numbers(pipeline, 0, 1) for _ in range(2)] for pipeline in made)
    assert first == second and first[0] != first[1] and len(first[0]) == 24
    assert 12 < sum(n >= 100 for one in first for n in one) < 48


def test_what_has_random_access_is_sent_to_the_loader() -> None:
    with pytest.raises(DataError, match="RangeMapDataset can be read in any order"):
        as_stream(grain.MapDataset.range(3))
