"""Grain: a MapDataset goes into the loader as it is; the loader shuffles, batches and puts rows on the devices."""

import grain
import jax
import numpy as np

import hostmesh

BATCH, EPOCHS, STEPS = 128, 10, 1437 // 128


def open_digits(split):
    digits = hostmesh.open_source(f"digits:{split}")
    records = grain.MapDataset.source(digits.records(np.arange(len(digits))))
    return records.map(lambda record: {**record, "image": record["image"].ravel() / np.float32(16)})


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
# Grain's three tiers of transfer are two numbers here, on any number of hosts:
#   A, device_put between the steps: prefetch=0, device_prefetch=0
#   B, a thread reads ahead: prefetch=4, device_prefetch=0
#   C, and batches wait on the devices too: prefetch=4, device_prefetch=2
loader = hostmesh.Loader(open_digits("train"), mesh, BATCH, epochs=EPOCHS, tail="drop", prefetch=4, device_prefetch=2)
for batch in loader:
    params, value = update(params, batch)
    if loader.step % STEPS == 0 and jax.process_index() == 0:
        print(f"epoch {loader.step // STEPS}: loss {value:.4f}")
correct = 0
for batch in hostmesh.Loader(open_digits("test"), mesh, BATCH, epochs=1, tail="pad"):
    is_correct = predict(params, batch["image"]).argmax(axis=1) == batch["label"]
    correct += int((is_correct & batch["mask"]).sum())
if jax.process_index() == 0:
    print(f"test accuracy {correct / 360:.2f} ({correct} of 360)")
