"""A transformer on paragraphs packed into rows of bytes: `launch --local 4 examples/byte_transformer.py saved`.

What was saved in that folder is where the next start goes on; Ctrl-C saves too.
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hostmesh

LENGTH, WIDTH, HEADS = 128, 64, 4
FILES = sorted((pathlib.Path(__file__).resolve().parents[1] / "docs").rglob("*.md"))
optimizer = optax.adam(3e-3)


def predict(params, tokens, segments, positions):
    # A byte sees those before it in its own paragraph.
    is_visible = (segments[:, :, None] == segments[:, None]) & jnp.tri(LENGTH, dtype=bool)
    x = params["bytes"][tokens] + params["positions"][positions]
    for mix, out, up, down in params["layers"]:
        query, key, value = jnp.split((jax.nn.standardize(x) @ mix).reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (HEADS / WIDTH) ** 0.5
        weights = jax.nn.softmax(jnp.where(is_visible[:, None], scores, -1e9))
        x += jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape) @ out
        x += jax.nn.gelu(jax.nn.standardize(x) @ up) @ down
    return jax.nn.standardize(x) @ params["bytes"].T


def loss(params, batch):
    tokens, segments = batch["tokens"].astype(jnp.int32), batch["segment_ids"]
    is_next = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)  # neither padding nor another paragraph
    logits = predict(params, tokens, segments, batch["positions"])[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean(where=is_next)


@jax.jit
def update(state, batch):
    value, grads = jax.value_and_grad(loss)(state[0], batch)
    updates, moments = optimizer.update(grads, state[1])
    return (optax.apply_updates(state[0], updates), moments), value


hostmesh.join()
hostmesh.handle_preemption()
mesh, random = hostmesh.make_mesh(data=-1), np.random.default_rng(0)
layer = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
shapes = {"bytes": (256, WIDTH), "positions": (LENGTH, WIDTH), "layers": [layer, layer]}
params = jax.tree.map(lambda s: np.float32(random.normal(0, 0.05, s)), shapes, is_leaf=lambda s: isinstance(s, tuple))
state = jax.device_put((params, optimizer.init(params)), jax.NamedSharding(mesh, jax.P()))
rows = hostmesh.pack([text for file in FILES for text in file.read_text().split("\n\n")], LENGTH, seed=0)
loader = hostmesh.Loader(rows, mesh, 16, steps=120)
if jax.process_index() == 0:
    print(f"{len(rows)} rows, {rows.efficiency:.1%} of them text")
checkpoint = hostmesh.Checkpoint(sys.argv[1], data_spec=loader.data_spec)
if found := checkpoint.restore(state):
    state, position = found
    loader.restore(position)
for batch in loader:
    state, value = update(state, batch)
    if loader.step % 10 == 0 and jax.process_index() == 0:
        print(f"step {loader.step}: loss {value:.4f}")
    stop = hostmesh.preemption_requested(loader.step)
    if stop or loader.step % 50 == 0:
        checkpoint.save(loader.step, state, loader.state())
    if stop:
        checkpoint.close()
        sys.exit(75)
checkpoint.close()
