"""The tutorial "Introduction to Data Loaders for Multi-Device Training with JAX": the blocks that all its parts use.

Its functions are as it has them. Its network is smaller, and its data are the digits of small_mnist.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import device_put, grad, jit, random, vmap
from jax.scipy.special import logsumexp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import hostmesh

hostmesh.join()


def random_layer_params(m, n, key, scale=1e-2):
    w_key, b_key = random.split(key)
    return scale * random.normal(w_key, (n, m)), scale * random.normal(b_key, (n,))


def init_network_params(sizes, key):
    keys = random.split(key, len(sizes))
    return [random_layer_params(m, n, k) for m, n, k in zip(sizes[:-1], sizes[1:], keys, strict=False)]


layer_sizes = [784, 32, 10]
step_size = 0.01
num_epochs = 1
batch_size = 128
n_targets = 10
num_pixels = 28 * 28
params = init_network_params(layer_sizes, random.PRNGKey(0))


def relu(x):
    return jnp.maximum(0, x)


def predict(params, image):
    activations = image
    for w, b in params[:-1]:
        outputs = jnp.dot(w, activations) + b
        activations = relu(outputs)
    final_w, final_b = params[-1]
    logits = jnp.dot(final_w, activations) + final_b
    return logits - logsumexp(logits)


batched_predict = vmap(predict, in_axes=(None, 0))

num_devices = len(jax.devices())
devices = jax.devices()
mesh = Mesh(devices, ("device",))
sharding_spec = PartitionSpec("device")


def one_hot(x, k, dtype=jnp.float32):
    return jnp.array(x[:, None] == jnp.arange(k), dtype)


def accuracy(params, images, targets):
    target_class = jnp.argmax(targets, axis=1)
    predicted_class = jnp.argmax(batched_predict(params, images), axis=1)
    return jnp.mean(predicted_class == target_class)


def loss(params, images, targets):
    preds = batched_predict(params, images)
    return -jnp.mean(preds * targets)


@jit
def update(params, x, y):
    grads = grad(loss)(params, x, y)
    return [(w - step_size * dw, b - step_size * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]


def reshape_and_one_hot(x, y):
    x = jnp.reshape(x, (len(x), num_pixels))
    y = one_hot(y, n_targets)
    return x, y


def train_model(num_epochs, params, training_generator, data_loader_type="streamed"):
    """As the tutorial has it: every process has the whole batch, and device_put takes from it what is needed."""
    params = put_everywhere(params)
    for epoch in range(num_epochs):
        start_time = time.time()
        for x, y in training_generator() if data_loader_type == "streamed" else training_generator:
            x, y = reshape_and_one_hot(x, y)
            x, y = device_put(x, NamedSharding(mesh, sharding_spec)), device_put(y, NamedSharding(mesh, sharding_spec))
            params = update(params, x, y)
        print(f"Epoch {epoch + 1} in {time.time() - start_time:.2f} sec")
    return take_local(params)


def train_with_loader(params, loader):
    """The same with the batches of a loader, which has its epochs itself and gives arrays that are global already."""
    params = put_everywhere(params)
    for x, y in loader:
        x, y = reshape_and_one_hot(x, y)
        params = update(params, x, y)
    return take_local(params)


def put_everywhere(params):
    """One array over all processes, where the tutorial has one process."""
    return device_put(jax.tree.map(np.asarray, params), NamedSharding(mesh, PartitionSpec()))


def take_local(params):
    return jax.tree.map(lambda array: np.asarray(array.addressable_data(0)), params)


def assert_same_params(found, wanted):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7), found, wanted)
