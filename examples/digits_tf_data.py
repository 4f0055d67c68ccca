"""tf.data: a pipeline only comes in order, so it goes into the loader as a stream of a fixed number of shards."""

import os

import jax
import numpy as np

import hostmesh

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

BATCH, EPOCHS, STEPS = 128, 10, 1437 // 128


def open_digits(split):
    digits = hostmesh.open_source(f"digits:{split}")
    records = tf.data.Dataset.from_tensor_slices(digits.read(np.arange(len(digits))))
    batches = records.shuffle(1437, seed=0, reshuffle_each_iteration=False).batch(BATCH)
    return batches.map(lambda batch: {**batch, "image": tf.reshape(batch["image"], [-1, 64]) / 16}).prefetch(1)


def predict(params, images):
    for weights, bias in params[:-1]:
        images = jax.nn.relu(images @ weights + bias)
    return jax.nn.log_softmax(images @ params[-1][0] + params[-1][1])


def loss(params, batch):
    return -(predict(params, batch["image"]) * jax.nn.one_hot(batch["label"], 10)).sum(axis=1).mean()


@jax.jit
def update(params, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda param, grad: param - 0.2 * grad, params, grads), value


hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
random = np.random.default_rng(0)
params = [(random.normal(0, (2 / m) ** 0.5, (m, n)), np.zeros(n)) for m, n in ((64, 128), (128, 128), (128, 10))]
params = jax.device_put(jax.tree.map(np.float32, params), jax.NamedSharding(mesh, jax.P()))
tf.config.set_visible_devices([], "GPU")  # they are JAX's
# No .shard(process_count, process_index): with the same four shards, any number of processes makes the same batches.
loader = hostmesh.Loader(hostmesh.as_stream(open_digits("train"), shards=4), mesh, BATCH, steps=EPOCHS * STEPS)
for batch in loader:
    params, value = update(params, batch)
    if loader.step % STEPS == 0 and jax.process_index() == 0:
        print(f"epoch {loader.step // STEPS}: loss {value:.4f}")
correct = 0
for batch in hostmesh.Loader(hostmesh.as_stream(open_digits("test"), shards=4), mesh, BATCH, epochs=1, tail="pad"):
    is_correct = predict(params, batch["image"]).argmax(axis=1) == batch["label"]
    correct += int((is_correct & batch["mask"]).sum())
if jax.process_index() == 0:
    print(f"test accuracy {correct / 360:.2f} ({correct} of 360)")
