"""Datarax's guide to distributed loading with sharding; and what it has beside it: process shards and mixes."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import small_mnist
from blocks import block, run_all
from datarax.pipeline import Pipeline
from datarax.sharding import JaxProcessSharderModule
from datarax.sources import MemorySource, MemorySourceConfig, MixDataSourcesConfig, MixDataSourcesNode
from everywhere import assert_holds, message_of, whole
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.sharding import PartitionSpec as P

import hostmesh

hostmesh.join()
images, labels = small_mnist.load()
images, labels = images[..., None].astype(np.float32) / 255, labels.astype(np.int32)
devices = jax.devices()
mesh_1d = Mesh(np.array(devices), axis_names=("data",))
# Four devices in the guide, eight here.
mesh_2d = Mesh(np.array(devices).reshape(4, 2), axis_names=("data", "model"))


def make_source(**data):
    return MemorySource(MemorySourceConfig(), data or {"image": images, "label": labels}, rngs=nnx.Rngs(0))


def create_sharded_pipeline(source, mesh, batch_size_per_device=64):
    total_batch_size = batch_size_per_device * mesh.shape["data"]
    pipeline = Pipeline(source=source, stages=[], batch_size=total_batch_size, rngs=nnx.Rngs(0))
    image_sharding = NamedSharding(mesh, PartitionSpec("data", None, None, None))
    label_sharding = NamedSharding(mesh, PartitionSpec("data"))
    return pipeline, image_sharding, label_sharding


@block
def partition_specs():
    specs = {
        "batch_sharded": P("data", None, None, None),
        "replicated": P(None, None, None, None),
        "model_sharded": P(None, None, None, "model"),
    }
    values = np.arange(8 * 2 * 2 * 4, dtype=np.float32).reshape(8, 2, 2, 4)
    for spec in specs.values():
        array = hostmesh.load_array(values, NamedSharding(mesh_2d, spec))
        assert_holds(array, values)


@block
def device_meshes():
    assert mesh_1d.shape == {"data": 8} and mesh_2d.shape == {"data": 4, "model": 2}
    made = hostmesh.make_mesh(data=-1, model=2)
    assert made.shape == mesh_2d.shape
    assert all(len({device.process_index for device in replica}) == 1 for replica in made.devices)


@block
def sharded_batch_distribution():
    pipeline, img_shard, lbl_shard = create_sharded_pipeline(make_source(), mesh_1d, batch_size_per_device=16)
    with jax.set_mesh(mesh_1d):
        for batch in pipeline:
            by_hand = jax.device_put(np.asarray(batch["image"]), img_shard)
            break
    pipeline, _, _ = create_sharded_pipeline(make_source(), mesh_1d, batch_size_per_device=16)
    loader = hostmesh.Loader(pipeline, {"image": img_shard, "label": lbl_shard}, 128, epochs=1)
    batches = list(loader)
    assert batches[0]["image"].sharding == by_hand.sharding
    assert_holds(batches[0]["image"], images[:128])
    assert_holds(by_hand, images[:128])
    assert np.array_equal(np.concatenate([whole(batch["label"]) for batch in batches]), labels)
    assert [shard.data.shape[0] for shard in batches[0]["image"].addressable_shards] == [16] * 4


@block
def data_and_model_parallelism():
    pipeline, img_shard, lbl_shard = create_sharded_pipeline(make_source(), mesh_2d, batch_size_per_device=32)
    for batch in hostmesh.Loader(pipeline, {"image": img_shard, "label": lbl_shard}, 128, epochs=1):
        assert [shard.data.shape[0] for shard in batch["image"].addressable_shards] == [32] * 4


@block
def throughput_is_measured():
    pipeline, img_shard, lbl_shard = create_sharded_pipeline(make_source(), mesh_1d, batch_size_per_device=8)
    times = []
    for batch in hostmesh.Loader(pipeline, {"image": img_shard, "label": lbl_shard}, 64, epochs=1):
        start = time.time()
        jax.block_until_ready(batch)
        times.append(time.time() - start)
    assert len(times) == 8


@block
def uneven_batches():
    def handle_uneven_batches(batch, mesh):
        current_size = batch["image"].shape[0]
        devices_per_axis = mesh.shape["data"]
        if current_size % devices_per_axis != 0:
            pad_size = devices_per_axis - (current_size % devices_per_axis)
            padded_images = jnp.pad(batch["image"], ((0, pad_size), (0, 0), (0, 0), (0, 0)))
            return {"image": padded_images, "valid_mask": current_size}
        return batch

    padded = handle_uneven_batches({"image": images[:100]}, mesh_1d)
    assert padded["image"].shape[0] == 104 and padded["valid_mask"] == 100
    assert jax.device_put(np.asarray(padded["image"]), NamedSharding(mesh_1d, P("data"))).shape[0] == 104
    uneven = make_source(image=images[:100], label=labels[:100])
    pipeline = Pipeline(source=uneven, stages=[], batch_size=64, rngs=nnx.Rngs(0))
    for data in (pipeline, uneven):
        found = list(hostmesh.Loader(data, mesh_1d, 64, epochs=1, tail="pad", shuffle=False))
        masks = [whole(batch["mask"]) for batch in found]
        assert [int(mask.sum()) for mask in masks] == [64, 36]
        real = [whole(batch["label"])[mask] for batch, mask in zip(found, masks, strict=True)]
        assert np.array_equal(np.concatenate(real), labels[:100])


@block
def single_device_fallback():
    def create_pipeline_with_fallback(source, batch_size, devices):
        if len(devices) >= 2:
            mesh = Mesh(np.array(devices), ("data",))
            use_sharding = True
        else:
            mesh = None
            use_sharding = False
        pipeline = Pipeline(source=source, stages=[], batch_size=batch_size, rngs=nnx.Rngs(0))
        return pipeline, mesh, use_sharding

    assert create_pipeline_with_fallback(make_source(), 8, jax.devices())[2]
    pipeline, mesh, _ = create_pipeline_with_fallback(make_source(), 64, jax.local_devices()[:1])
    assert mesh is None
    # Without a mesh the loader takes one over all devices, one or many.
    assert np.array_equal(whole(next(hostmesh.Loader(pipeline, batch_size=64))["label"]), labels[:64])


@block
def a_process_sharder_needs_sharded():
    sharder = JaxProcessSharderModule()
    own = {"image": sharder.shard_data(images), "label": sharder.shard_data(labels)}
    pipeline = Pipeline(source=make_source(**own), stages=[], batch_size=32, rngs=nnx.Rngs(0))
    assert "give the loader sharded=True" in message_of(lambda: hostmesh.Loader(pipeline, mesh_1d, 64))
    pipeline = Pipeline(source=make_source(**own), stages=[], batch_size=32, rngs=nnx.Rngs(0))
    found = [whole(batch["label"]) for batch in hostmesh.Loader(pipeline, mesh_1d, 64, epochs=1, sharded=True)]
    assert found[0].tolist() == [*labels[:32], *labels[256:288]]
    assert sorted(np.concatenate(found).tolist()) == sorted(labels.tolist())


@block
def a_mix_of_sources():
    parts = [make_source(n=np.arange(start, start + 64, dtype=np.int32)) for start in (0, 1000)]
    config = MixDataSourcesConfig(num_sources=2, weights=(0.25, 0.75))
    alone = MixDataSourcesNode(config, parts, rngs=nnx.Rngs(0))
    numbers = np.concatenate([whole(batch["n"]) for batch in hostmesh.Loader(alone, mesh_1d, 16, epochs=1)])
    assert len(set(numbers.tolist())) == len(numbers) and 3 * sum(numbers < 1000) == sum(numbers >= 1000)
    pipeline = Pipeline(source=alone, stages=[], batch_size=16, rngs=nnx.Rngs(0))
    drawn = [whole(batch["n"]) for batch in hostmesh.Loader(pipeline, mesh_1d, 16, epochs=1)]
    assert len(drawn) == 8 and 60 < sum(np.concatenate(drawn) >= 1000) < 128


run_all()
