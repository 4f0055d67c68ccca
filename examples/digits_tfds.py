"""TFDS: a dataset that was prepared as ArrayRecord is opened by its name, and read without TensorFlow."""

import contextlib
import logging
import tempfile

import jax
import numpy as np
import tensorflow_datasets as tfds

import hostmesh

BATCH, EPOCHS, STEPS = 128, 10, 1437 // 128


def list_digits():
    for n, record in enumerate(hostmesh.open_source("digits:all").records(np.arange(1797))):
        yield n, {**record, "image": record["image"].ravel() / np.float32(16)}


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
tfds.disable_progress_bar()
logging.disable(logging.WARNING)
features = tfds.features.FeaturesDict({"image": tfds.features.Tensor(shape=(64,), dtype=np.float32), "label": np.int32})
with tempfile.TemporaryDirectory() as folder:  # each process has its own here; hosts would share one
    with contextlib.redirect_stdout(None):
        options = {"data_dir": folder, "file_format": "array_record", "disable_shuffling": True}
        tfds.dataset_builders.store_as_tfds_dataset("digits", "1.0.0", features, {"train": list_digits()}, **options)
    loader = hostmesh.Loader(f"tfds:digits/train[:1437]?data_dir={folder}", mesh, BATCH, epochs=EPOCHS, tail="drop")
    for batch in loader:
        params, value = update(params, batch)
        if loader.step % STEPS == 0 and jax.process_index() == 0:
            print(f"epoch {loader.step // STEPS}: loss {value:.4f}")
    correct = 0
    for batch in hostmesh.Loader(f"tfds:digits/train[1437:]?data_dir={folder}", mesh, BATCH, epochs=1, tail="pad"):
        is_correct = predict(params, batch["image"]).argmax(axis=1) == batch["label"]
        correct += int((is_correct & batch["mask"]).sum())
    if jax.process_index() == 0:
        print(f"test accuracy {correct / 360:.2f} ({correct} of 360)")
