"""The tutorial's part on Hugging Face datasets."""

import jax
import numpy as np
import small_mnist
from ai_stack import assert_same_params, batch_size, mesh, num_epochs, one_hot, params, train_model, train_with_loader
from blocks import block, run_all
from datasets import Dataset, DatasetDict
from datasets.distributed import split_dataset_by_node
from everywhere import message_of, whole

import hostmesh


def load_dataset(train):
    """In place of load_dataset("mnist"), which downloads."""
    images, labels = small_mnist.load(train)
    return Dataset.from_dict({"image": images, "label": labels})


mnist_dataset = DatasetDict({"train": load_dataset(True), "test": load_dataset(False)}).with_format("numpy")


def hf_training_generator():
    """Yield batches for training."""
    for batch in mnist_dataset["train"].iter(batch_size):
        x, y = batch["image"], batch["label"]
        yield x, y


@block
def images_and_labels_are_extracted():
    train_images = mnist_dataset["train"]["image"][:]
    image_shape = train_images.shape[1:]
    num_features = image_shape[0] * image_shape[1]
    assert train_images.reshape(-1, num_features).shape == (512, 784)
    assert one_hot(mnist_dataset["test"]["label"][:], 10).shape == (128, 10)


@block
def a_generator_of_batches_must_be_called_one():
    message = message_of(lambda: hostmesh.Loader(hf_training_generator, mesh, batch_size))
    assert "hf_training_generator gives records or batches" in message and "batched=True" in message


@block
def training_with_the_loader_gives_what_the_tutorials_loop_gives():
    wanted = train_model(num_epochs, params, hf_training_generator)
    stream = hostmesh.as_stream(hf_training_generator, batched=True)
    assert_same_params(train_with_loader(params, hostmesh.Loader(stream, mesh, batch_size, epochs=num_epochs)), wanted)


@block
def its_dataset_is_a_source_that_the_loader_shuffles():
    loader = hostmesh.Loader(mnist_dataset["train"], mesh, batch_size, epochs=1)
    labels = np.concatenate([whole(batch["label"]) for batch in loader])
    assert sorted(labels.tolist()) == sorted(small_mnist.load()[1].tolist())


@block
def a_stream_split_by_node_needs_sharded():
    node = {"rank": jax.process_index(), "world_size": jax.process_count()}
    stream = split_dataset_by_node(mnist_dataset["train"].to_iterable_dataset(num_shards=4), **node)
    wanted = "as its split_dataset_by_node says, wanted all records: give the loader sharded=True"
    assert wanted in message_of(lambda: hostmesh.Loader(stream, mesh, 64))
    found = [whole(batch["label"]) for batch in hostmesh.Loader(stream, mesh, 64, epochs=1, sharded=True)]
    assert sorted(np.concatenate(found).tolist()) == sorted(small_mnist.load()[1].tolist())


@block
def a_dataset_split_by_node_is_shuffled_within_its_process():
    node = {"rank": jax.process_index(), "world_size": jax.process_count()}
    own = split_dataset_by_node(mnist_dataset["train"], **node)
    loader = hostmesh.Loader(own, mesh, 64, epochs=2, sharded=True)
    labels = [whole(batch["label"]) for batch in loader]
    assert len(labels) == 16
    halves = [np.concatenate(labels[:8]), np.concatenate(labels[8:])]
    assert halves[0].tolist() != halves[1].tolist()
    for half in halves:
        assert sorted(half.tolist()) == sorted(small_mnist.load()[1].tolist())
    loader.restore(0)
    for _ in range(9):
        next(loader)
    again = hostmesh.Loader(own, mesh, 64, epochs=2, sharded=True)
    again.restore(loader.state())
    assert np.array_equal([whole(batch["label"]) for batch in again], labels[9:])


run_all()
