"""The tutorial's part on TensorFlow Datasets."""

import contextlib
import logging
import sys

import jax
import numpy as np
import small_mnist
import tensorflow_datasets as tfds
from ai_stack import assert_same_params, batch_size, mesh, num_epochs, one_hot, params, train_model, train_with_loader
from blocks import block, run_all
from everywhere import whole

import hostmesh

logging.disable(logging.WARNING)
data_dir = f"tfds-{jax.process_index()}"


def prepare():
    """In place of a download: a dataset in TFDS's own format."""
    splits = {}
    for split, train in (("train", True), ("test", False)):
        images, labels = small_mnist.load(train)
        rows = zip(images[..., None], labels, strict=True)
        splits[split] = [(n, {"image": image, "label": int(label)}) for n, (image, label) in enumerate(rows)]
    features = {"image": tfds.features.Image(shape=(28, 28, 1)), "label": tfds.features.ClassLabel(num_classes=10)}
    with contextlib.redirect_stdout(sys.stderr):
        tfds.dataset_builders.store_as_tfds_dataset(
            name="small_mnist",
            version="1.0.0",
            data_dir=data_dir,
            features=tfds.features.FeaturesDict(features),
            split_datasets=splits,
            disable_shuffling=True,
        )


prepare()


def training_generator():
    # The tutorial asks for as_supervised=True; what was stored here has no supervised keys, so a map does it.
    ds = tfds.load(name="small_mnist", split="train", data_dir=data_dir)
    ds = ds.map(lambda record: (record["image"], record["label"]))
    ds = ds.batch(batch_size).prefetch(1)
    return tfds.as_numpy(ds)


@block
def the_full_dataset_is_fetched():
    mnist_data, info = tfds.load(name="small_mnist", batch_size=-1, data_dir=data_dir, with_info=True)
    mnist_data = tfds.as_numpy(mnist_data)
    train_data, test_data = mnist_data["train"], mnist_data["test"]
    assert np.array_equal(train_data["image"][..., 0], small_mnist.load()[0])
    assert one_hot(test_data["label"], 10).shape == (128, 10) and info.splits["train"].num_examples == 512


@block
def training_with_the_loader_gives_what_the_tutorials_loop_gives():
    """Batches are told by the pipeline's own steps, which are seen through the function and tfds.as_numpy."""
    wanted = train_model(num_epochs, params, training_generator)
    loader = hostmesh.Loader(training_generator, mesh, batch_size, epochs=num_epochs)
    assert_same_params(train_with_loader(params, loader), wanted)


@block
def what_as_numpy_gives_is_a_stream():
    labels = [whole(y) for _, y in hostmesh.Loader(training_generator(), mesh, 64, epochs=1)]
    assert np.array_equal(np.concatenate(labels), small_mnist.load()[1])


@block
def two_shards_are_read_by_their_processes():
    stream = hostmesh.as_stream(training_generator, shards=2)
    labels = [whole(y) for _, y in hostmesh.Loader(stream, mesh, 64, epochs=1)]
    assert sorted(np.concatenate(labels).tolist()) == sorted(small_mnist.load()[1].tolist())


run_all()
