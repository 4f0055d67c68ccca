"""Datarax: a source goes into the loader as it is, and a Pipeline as a stream, whose uneven last batch is padded.

A single device needs no path of its own: it is a mesh of one.
"""

import jax
import numpy as np
from datarax.pipeline import Pipeline
from datarax.sources import MemorySource, MemorySourceConfig
from flax import nnx

import hostmesh

BATCH, EPOCHS, STEPS = 128, 10, 1437 // 128


def open_digits(split):
    digits = hostmesh.open_source(f"digits:{split}")
    return MemorySource(MemorySourceConfig(), digits.read(np.arange(len(digits))), rngs=nnx.Rngs(0))


def flatten(batch):
    return {**batch, "image": batch["image"].reshape(-1, 64).astype("float32") / 16}


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
loader = hostmesh.Loader(open_digits("train"), mesh, BATCH, epochs=EPOCHS, tail="drop", map=flatten)
for batch in loader:
    params, value = update(params, batch)
    if loader.step % STEPS == 0 and jax.process_index() == 0:
        print(f"epoch {loader.step // STEPS}: loss {value:.4f}")
correct = 0
pipeline = Pipeline(source=open_digits("test"), stages=[flatten], batch_size=BATCH, rngs=nnx.Rngs(0))
for batch in hostmesh.Loader(pipeline, mesh, BATCH, epochs=1, tail="pad"):  # 360 rows: 128, 128 and 104
    is_correct = predict(params, batch["image"]).argmax(axis=1) == batch["label"]
    correct += int((is_correct & batch["mask"]).sum())
if jax.process_index() == 0:
    print(f"test accuracy {correct / 360:.2f} ({correct} of 360)")
