"""The guide "Plugging Grain into JAX training", in both of its versions; its source is small_mnist."""

import functools

import grain
import jax
import jax.numpy as jnp
import numpy as np
import small_mnist
from blocks import block, run_all
from everywhere import assert_holds, data_mesh, message_of, whole
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh

hostmesh.join()
source = small_mnist.Source()
BATCH_SIZE = 256
# The guide has Grain's default of 500 batches read ahead, which an endless pipeline reads on at the program's end.
READING = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)


def preprocess(r):
    return {"image": r["image"].astype(np.float32) / 255.0, "label": r["label"]}


def records():
    return grain.MapDataset.source(source).seed(42).shuffle().map(preprocess)


def batches():
    return records().batch(128, drop_remainder=True).to_iter_dataset(READING)


def sharding():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), axis_names=("data",))
    return NamedSharding(mesh, P("data"))


def first_batches(dataset, count):
    return [batch for _, batch in zip(range(count), dataset, strict=False)]


def load(dataset, batch_size=128, **options):
    return hostmesh.Loader(dataset, sharding(), batch_size, **options)


def compare(loader, wanted):
    """The batches of a loader and those of Grain's own iterator, of which a loader's first ones are made."""
    for batch, own in zip(loader, wanted, strict=False):
        for name in own:
            assert_holds(batch[name], own[name])


@block
def minimal_end_to_end_pipeline():
    for batch in batches():
        put = jax.device_put(batch)  # on a device of this process
        break
    kinds = jax.tree.map(lambda x: (x.shape, str(x.dtype)), put)
    assert kinds == {"image": ((128, 28, 28, 1), "float32"), "label": ((128,), "int32")}
    compare(load(batches(), steps=2), first_batches(batches(), 2))


@block
def stable_shapes_by_repeating():
    dataset = grain.MapDataset.source(source).seed(42).shuffle().repeat().map(preprocess)
    dataset = dataset.batch(128, drop_remainder=True)
    assert len(dataset) > 1 << 50
    stream = dataset.to_iter_dataset(READING)
    compare(load(stream, steps=6), first_batches(stream, 6))  # more than an epoch of 4
    assert "never ends: leave out .repeat()" in message_of(lambda: load(dataset))


def pad_collate(items):
    max_len = max(x["tokens"].shape[0] for x in items)
    tokens = np.stack([np.pad(x["tokens"], (0, max_len - x["tokens"].shape[0])) for x in items])
    return {"tokens": tokens}


def make_ragged():
    random = np.random.RandomState(0)  # the same in every process
    return [{"tokens": np.arange(random.randint(2, 6))} for _ in range(16)]


@block
def custom_collation():
    ragged = grain.MapDataset.source(make_ragged()).batch(4, batch_fn=pad_collate, drop_remainder=True)
    assert {ragged[i]["tokens"].shape[0] for i in range(3)} == {4}

    def pad_to_six(items):
        return {"tokens": np.stack([np.pad(x["tokens"], (0, 6 - len(x["tokens"]))) for x in items])}

    loader = load(grain.MapDataset.source(make_ragged()), 8, collate=pad_to_six, shuffle=False, epochs=1)
    tokens = np.concatenate([whole(batch["tokens"]) for batch in loader])
    assert np.array_equal(tokens, pad_to_six(make_ragged())["tokens"])


@block
def batch_and_pad_keeps_the_last_records():
    pad = functools.partial(grain.experimental.batch_and_pad, batch_size=8, pad_value=-1)
    padded = grain.MapDataset.range(20).batch(8, batch_fn=pad).to_iter_dataset(READING)
    found = [np.asarray(batch) for batch in padded]
    assert found[-1].tolist() == [16, 17, 18, 19, -1, -1, -1, -1]
    assert [whole(batch).tolist() for batch in load(padded, 8, epochs=1)] == [batch.tolist() for batch in found]
    masked = load({"n": np.arange(20)}, 8, shuffle=False, epochs=1, tail="pad")
    assert np.concatenate([whole(batch["mask"]) for batch in masked]).sum() == 20


@block
def option_a_plain_device_put():
    for _, batch in zip(range(2), batches(), strict=False):
        assert jax.device_put(batch)["image"].is_fully_addressable
    compare(load(batches(), steps=2, prefetch=0, device_prefetch=0), first_batches(batches(), 2))


@block
def option_b_a_thread_reads_ahead():
    dataset = grain.experimental.ThreadPrefetchIterDataset(batches(), prefetch_buffer_size=4)
    put = dataset.map(jax.device_put)
    assert [batch["image"].shape for batch in first_batches(put, 3)] == [(128, 28, 28, 1)] * 3
    compare(load(dataset, steps=3, prefetch=2, device_prefetch=0), first_batches(batches(), 3))


@block
def option_c_a_buffer_on_the_device():
    put = grain.experimental.device_put(
        ds=batches(), device=jax.local_devices()[0], cpu_buffer_size=4, device_buffer_size=2
    )
    assert all(batch["image"].devices() == {jax.local_devices()[0]} for batch in first_batches(put, 2))
    compare(load(batches(), steps=2, prefetch=4, device_prefetch=2), first_batches(batches(), 2))


@block
def a_batch_cut_over_all_devices():
    dataset = grain.MapDataset.source(source).seed(42).shuffle().repeat().map(preprocess)
    dataset = dataset.batch(128, drop_remainder=True).to_iter_dataset(READING)
    loader = load(dataset, steps=3)
    for batch, own in zip(loader, first_batches(dataset, 3), strict=True):
        assert batch["image"].sharding.spec == P("data") and batch["image"].shape == (128, 28, 28, 1)
        assert_holds(batch["label"], own["label"])
    assert "wanted a multiple of 8, found 100" in message_of(lambda: load(records(), 100))


@block
def putting_it_all_together():
    dataset = grain.MapDataset.source(source).seed(42).shuffle().repeat().map(preprocess)
    dataset = dataset.batch(BATCH_SIZE, drop_remainder=True).to_iter_dataset(READING)

    @jax.jit
    def train_step(params, batch):
        return params + batch["image"].mean()

    params = jax.device_put(jnp.zeros(()), NamedSharding(sharding().mesh, P()))
    wanted = 0.0
    for batch, own in zip(load(dataset, BATCH_SIZE, steps=3), first_batches(dataset, 3), strict=True):
        params = train_step(params, batch)
        wanted += own["image"].mean()
    np.testing.assert_allclose(float(params), wanted, rtol=1e-5)


@block
def slices_by_process_and_shard_options():
    """What the guide calls distributed-training shards."""
    me, count = jax.process_index(), jax.process_count()
    numbers = grain.MapDataset.range(64)[me::count].batch(4).to_iter_dataset(READING)
    found = [whole(batch) for batch in hostmesh.Loader(numbers, data_mesh(), 16, epochs=1, sharded=True)]
    assert found[0].tolist() == [*range(0, 16, 2), *range(1, 16, 2)]
    assert sorted(np.concatenate(found).tolist()) == list(range(64))
    wanted = "read different records in shard 0"
    assert wanted in message_of(lambda: hostmesh.Loader(numbers, data_mesh(), 16))
    options = grain.sharding.ShardOptions(me, count, drop_remainder=True)
    sampler = grain.samplers.IndexSampler(65, options, shuffle=True, seed=3, num_epochs=1)
    loader = grain.DataLoader(data_source=range(65), sampler=sampler, worker_count=0)
    rows = np.concatenate([whole(batch) for batch in hostmesh.Loader(loader, data_mesh(), 16, epochs=1, sharded=True)])
    assert len(rows) == len(set(rows.tolist())) == 64


run_all()
