"""The guide "Distributed data loading": its two blocks of tf.data, by hand as it has them, and with the loader."""

import jax
import numpy as np
import tensorflow as tf
from blocks import block, run_all
from everywhere import message_of, whole

import hostmesh

hostmesh.join()
BATCHES = [np.ones((16, 3)) * i for i in range(100)]


def make_dataset():
    ds = tf.data.Dataset.from_tensor_slices(BATCHES)
    return ds.shard(num_shards=jax.process_count(), index=jax.process_index())


def data_parallel_sharding():
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    return jax.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))


def model_parallel_sharding():
    num_model_replicas_per_process = 2
    num_model_replicas_total = num_model_replicas_per_process * jax.process_count()
    mesh_devices = np.array([jax.local_devices(process_idx) for process_idx in range(jax.process_count())])
    mesh_devices = mesh_devices.reshape(num_model_replicas_total, -1)
    for replica_devices in mesh_devices:
        num_processes = len(set(d.process_index for d in replica_devices))
        assert num_processes == 1
    mesh = jax.sharding.Mesh(mesh_devices, ["model_replicas", "data_parallelism"])
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("model_replicas"))


def compare(sharding):
    """The first batches as the guide makes them by hand, and as a loader gives them."""
    per_process = make_dataset().as_numpy_iterator()
    # Its elements are batches already, which nothing in the pipeline says.
    stream = hostmesh.as_stream(make_dataset(), batched=True)
    loader = hostmesh.Loader(stream, sharding, 32, epochs=1, sharded=True)
    for step in range(3):
        by_hand = jax.make_array_from_process_local_data(sharding, next(per_process))
        batch = next(loader)
        assert batch.sharding == by_hand.sharding
        assert np.array_equal(whole(batch), whole(by_hand))
        assert sorted(set(whole(batch).ravel())) == [2 * step, 2 * step + 1]
    assert sum(1 for _ in loader) == 47


@block
def pure_data_parallelism():
    compare(data_parallel_sharding())


@block
def model_parallelism_within_a_process():
    compare(model_parallel_sharding())


@block
def without_sharded_the_cause_is_named():
    stream = hostmesh.as_stream(make_dataset(), batched=True)
    message = message_of(lambda: hostmesh.Loader(stream, data_parallel_sharding(), 32))
    assert "is sharded by process already: process 0 with .shard(2, 0), process 1 with .shard(2, 1)" in message
    assert "give the loader sharded=True, or leave it out" in message


@block
def the_same_part_on_every_process_is_a_smaller_dataset():
    half = hostmesh.as_stream(tf.data.Dataset.range(64).shard(2, 0))
    loader = hostmesh.Loader(half, data_parallel_sharding(), 16, epochs=1)
    assert np.concatenate([whole(batch) for batch in loader]).tolist() == list(range(0, 64, 2))


@block
def records_of_a_shard_become_batches():
    own = tf.data.Dataset.range(64).shard(jax.process_count(), jax.process_index()).batch(5)
    loader = hostmesh.Loader(own, data_parallel_sharding(), 16, epochs=1, sharded=True)
    first = whole(next(loader))
    assert first.tolist() == [*range(0, 16, 2), *range(1, 16, 2)]
    again = hostmesh.Loader(own, data_parallel_sharding(), 16, epochs=1, sharded=True)
    again.restore(loader.state())
    assert [whole(batch).tolist() for batch in again] == [whole(batch).tolist() for batch in loader]


run_all()
