"""Hugging Face: a Dataset, saved to disk and loaded again, goes into the loader in the format it was given."""

import tempfile

import jax
import numpy as np
from datasets import Dataset, disable_progress_bars, load_from_disk

import hostmesh

BATCH, EPOCHS, STEPS = 128, 10, 1437 // 128


def save_and_load(split, folder):
    digits = hostmesh.open_source(f"digits:{split}")
    Dataset.from_dict(digits.read(np.arange(len(digits)))).save_to_disk(f"{folder}/{split}")
    return load_from_disk(f"{folder}/{split}").with_format("numpy")


def flatten(batch):
    return {"image": batch["image"].reshape(-1, 64) / np.float32(16), "label": batch["label"].astype(np.int32)}


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
disable_progress_bars()
with tempfile.TemporaryDirectory() as folder:  # each process has its own here; hosts would share one
    train, test = save_and_load("train", folder), save_and_load("test", folder)
    loader = hostmesh.Loader(train, mesh, BATCH, epochs=EPOCHS, tail="drop", map=flatten)
    for batch in loader:
        params, value = update(params, batch)
        if loader.step % STEPS == 0 and jax.process_index() == 0:
            print(f"epoch {loader.step // STEPS}: loss {value:.4f}")
    correct = 0
    for batch in hostmesh.Loader(test, mesh, BATCH, epochs=1, tail="pad", map=flatten):
        is_correct = predict(params, batch["image"]).argmax(axis=1) == batch["label"]
        correct += int((is_correct & batch["mask"]).sum())
    if jax.process_index() == 0:
        print(f"test accuracy {correct / 360:.2f} ({correct} of 360)")
