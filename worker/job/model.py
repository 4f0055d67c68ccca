"""A small classifier in plain JAX: its parameters, how they lie on a mesh, its loss, and one step of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Params: TypeAlias = list[dict[str, Any]]
Batch: TypeAlias = dict[str, jax.Array]

HIDDEN = 128, 128


class TrainState(NamedTuple):
    params: Params
    optimizer: optax.OptState


class Scores(NamedTuple):
    """Sums over the real rows of a batch."""

    loss: jax.Array
    correct: jax.Array
    rows: jax.Array
    strange: jax.Array  # labels that are no class


def make_optimizer(learning_rate: float, steps: int) -> optax.GradientTransformation:
    schedule = optax.cosine_decay_schedule(learning_rate, max(1, steps))
    return optax.sgd(schedule, momentum=0.9, nesterov=True)


def init_params(seed: int, features: int, classes: int) -> Params:
    """On the host, so that the numbers are the same wherever they go."""
    random = np.random.default_rng(seed)
    sizes = features, *HIDDEN, classes
    return [
        {
            "weights": (random.standard_normal((rows, columns)) * (2 / rows) ** 0.5).astype(np.float32),
            "bias": np.zeros(columns, np.float32),
        }
        for rows, columns in zip(sizes, sizes[1:], strict=False)
    ]


def init_state(params: Params, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Each weight on the devices that hold it; what the optimizer keeps of a weight lies where the weight does."""
    of_params = shard_params(params, mesh)
    kept = optimizer.init(params)
    of_kept = optax.tree_utils.tree_map_params(
        optimizer,
        lambda _, sharding: sharding,
        kept,
        of_params,
        transform_non_params=lambda _: NamedSharding(mesh, PartitionSpec()),
    )
    return TrainState(jax.tree.map(_put, params, of_params), jax.tree.map(_put, kept, of_kept))


def shard_params(params: Params, mesh: Mesh) -> Any:
    """Hidden layers split their columns and their rows in turn over `model`: only every second one communicates.

    The last layer stays whole: its few columns would cost more talk than they save work.
    """
    model = mesh.shape.get("model", 1)

    def shard(number: int, layer: dict[str, Any]) -> dict[str, NamedSharding]:
        splits = model > 1 and number + 1 < len(params) and layer["weights"].shape[1 - number % 2] % model == 0
        names: list[str | None] = [None, None]
        names[1 - number % 2] = "model" if splits else None
        weights, bias = PartitionSpec(*names), PartitionSpec(names[1])
        return {"weights": NamedSharding(mesh, weights), "bias": NamedSharding(mesh, bias)}

    return [shard(number, layer) for number, layer in enumerate(params)]


def predict(params: Params, images: jax.Array) -> jax.Array:
    activations = images.reshape(len(images), -1)
    for number, layer in enumerate(params):
        activations = jnp.dot(activations, layer["weights"], precision="highest") + layer["bias"]
        if number + 1 < len(params):
            activations = jax.nn.relu(activations)
    return activations


def score(params: Params, batch: Batch) -> Scores:
    logits = predict(params, batch["image"])
    real = batch["mask"] if "mask" in batch else jnp.ones(len(logits), bool)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    correct = logits.argmax(axis=1) == batch["label"]
    strange = (batch["label"] < 0) | (batch["label"] >= logits.shape[1])
    return Scores(jnp.sum(losses, where=real), jnp.sum(correct, where=real), jnp.sum(real), jnp.sum(strange))


def are_finite(state: TrainState) -> jax.Array:
    """Whether all numbers of a state are. Counted, because a maximum over CPU devices does not hand on a NaN; in
    float32, which compiles faster than whole numbers."""
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.asarray(sum(jnp.sum(~jnp.isfinite(leaf), dtype=jnp.float32) for leaf in floats) == 0)


def make_train_step(
    optimizer: optax.GradientTransformation,
) -> Callable[[TrainState, Batch], tuple[TrainState, Scores]]:
    def mean_loss(params: Params, batch: Batch) -> tuple[jax.Array, Scores]:
        scores = score(params, batch)
        return scores.loss / scores.rows, scores

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, Scores]:
        grads, scores = jax.grad(mean_loss, has_aux=True)(state.params, batch)
        updates, kept = optimizer.update(grads, state.optimizer, state.params)
        return TrainState(optax.apply_updates(state.params, updates), kept), scores

    return jax.jit(step, donate_argnums=(0, 1))


def _put(value: Any, sharding: NamedSharding) -> jax.Array:
    """Without the comparison of all processes' values that `device_put` makes."""
    array = np.asarray(value)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])
