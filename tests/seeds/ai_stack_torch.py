"""The tutorial's common blocks, and its part on PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import small_mnist
import torch
from ai_stack import (
    accuracy,
    assert_same_params,
    batch_size,
    batched_predict,
    layer_sizes,
    mesh,
    n_targets,
    num_devices,
    num_epochs,
    one_hot,
    params,
    predict,
    reshape_and_one_hot,
    sharding_spec,
    train_model,
    train_with_loader,
)
from blocks import block, run_all
from everywhere import by_process, message_of, whole
from jax.sharding import NamedSharding
from jax.tree_util import tree_map
from torch.utils import data

import hostmesh


class MNIST(data.Dataset):
    """In place of torchvision's, which downloads."""

    def __init__(self, train=True, transform=None):
        images, labels = small_mnist.load(train)
        self.data, self.targets, self.transform = torch.from_numpy(images), torch.from_numpy(labels), transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = self.data[index].numpy()
        return image if self.transform is None else self.transform(image), int(self.targets[index])


def numpy_collate(batch):
    return tree_map(np.asarray, data.default_collate(batch))


class NumpyLoader(data.DataLoader):
    def __init__(
        self,
        dataset,
        batch_size=1,
        shuffle=False,
        sampler=None,
        batch_sampler=None,
        num_workers=0,
        pin_memory=False,
        drop_last=False,
        timeout=0,
        worker_init_fn=None,
    ):
        super(self.__class__, self).__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=numpy_collate,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
        )


class FlattenAndCast:
    def __call__(self, pic):
        return np.ravel(np.array(pic, dtype=jnp.float32))


mnist_dataset = MNIST(transform=FlattenAndCast())


def pytorch_training_generator(mnist_dataset):
    return NumpyLoader(mnist_dataset, batch_size=batch_size, num_workers=0)


@block
def all_devices_are_seen():
    assert len(jax.devices()) == num_devices == 8 and len(jax.local_devices()) == 4


@block
def parameters_are_the_same_everywhere():
    assert [w.shape for w, _ in params] == [(n, m) for m, n in zip(layer_sizes[:-1], layer_sizes[1:], strict=True)]
    first, second = by_process([[float(w.sum()), float(b.sum())] for w, b in params])
    assert first == second


@block
def prediction_is_batched():
    images = small_mnist.load()[0][:3].reshape(3, -1).astype(np.float32)
    alone = np.stack([predict(params, image) for image in images])
    np.testing.assert_allclose(batched_predict(params, images), alone, rtol=1e-4)


@block
def the_mesh_has_all_devices():
    assert mesh.shape == {"device": 8}
    array = jax.device_put(np.arange(16.0), NamedSharding(mesh, sharding_spec))
    assert [shard.data.shape for shard in array.addressable_shards] == [(2,)] * 4


@block
def labels_become_one_hot():
    x, y = reshape_and_one_hot(np.zeros((4, 28, 28)), np.array([0, 3, 9, 3]))
    assert x.shape == (4, 784) and np.argmax(y, 1).tolist() == [0, 3, 9, 3]


@block
def the_full_sets_are_arrays():
    train_images = jnp.array(mnist_dataset.data.numpy().reshape(len(mnist_dataset.data), -1), dtype=jnp.float32)
    train_labels = one_hot(np.array(mnist_dataset.targets), n_targets)
    test = MNIST(train=False)
    test_images = jnp.array(test.data.numpy().reshape(len(test.data), -1), dtype=jnp.float32)
    test_labels = one_hot(np.array(test.targets), n_targets)
    assert train_images.shape == (512, 784) and train_labels.shape == (512, 10)
    assert test_images.shape == (128, 784) and test_labels.shape == (128, 10)


@block
def a_numpy_loader_gives_numpy_batches():
    x, y = next(iter(pytorch_training_generator(mnist_dataset)))
    assert isinstance(x, np.ndarray) and x.shape == (128, 784) and x.dtype == np.float32 and y.shape == (128,)


@block
def training_with_the_loader_gives_what_the_tutorials_loop_gives():
    training = pytorch_training_generator(mnist_dataset)
    wanted = train_model(num_epochs, params, training, data_loader_type="iterable")
    loader = hostmesh.Loader(training, NamedSharding(mesh, sharding_spec), batch_size, epochs=num_epochs)
    found = train_with_loader(params, loader)
    assert_same_params(found, wanted)
    images, labels = small_mnist.load()
    flat = images.reshape(-1, 784).astype(np.float32)
    assert accuracy(found, flat, one_hot(labels, 10)) > accuracy(params, flat, one_hot(labels, 10))


@block
def its_dataset_is_a_source_that_the_loader_shuffles():
    loader = hostmesh.Loader(mnist_dataset, NamedSharding(mesh, sharding_spec), batch_size, epochs=1)
    labels = np.concatenate([whole(y) for _, y in loader])
    assert sorted(labels.tolist()) == sorted(mnist_dataset.targets.tolist())


@block
def a_distributed_sampler_needs_sharded():
    """What the Datarax guide's table calls DistributedSampler."""
    sampler = data.distributed.DistributedSampler(
        mnist_dataset, jax.process_count(), jax.process_index(), shuffle=False
    )
    training = NumpyLoader(mnist_dataset, batch_size=64, sampler=sampler)
    wanted = "give the loader sharded=True, or leave out the sampler"
    assert wanted in message_of(lambda: hostmesh.Loader(training, mesh, batch_size))
    batches = [whole(y) for _, y in hostmesh.Loader(training, mesh, batch_size, epochs=1, sharded=True)]
    assert len(batches) == 4
    halves = [mnist_dataset.targets[:128][process::2] for process in (0, 1)]
    assert batches[0].tolist() == np.concatenate(halves).tolist()


run_all()
