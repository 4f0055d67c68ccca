"""PyTorch: a Dataset goes into the loader, which shuffles it; a DataLoader goes in too, if its shuffling has a seed."""

import jax
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import hostmesh

BATCH, EPOCHS, STEPS = 128, 10, 1437 // 128


class Digits(Dataset):
    def __init__(self, split):
        digits = hostmesh.open_source(f"digits:{split}")
        self.records = digits.records(np.arange(len(digits)))

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):  # with the tutorial's FlattenAndCast
        return {**self.records[index], "image": self.records[index]["image"].ravel() / np.float32(16)}


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
train, generator = Digits("train"), torch.Generator().manual_seed(0)
for data in train, DataLoader(train, BATCH, shuffle=True, drop_last=True, generator=generator):
    loader = hostmesh.Loader(data, mesh, BATCH, epochs=EPOCHS // 2, tail="drop")
    for batch in loader:
        params, value = update(params, batch)
        if loader.step % STEPS == 0 and jax.process_index() == 0:
            print(f"{type(data).__name__}, epoch {loader.step // STEPS}: loss {value:.4f}")
correct = 0
for batch in hostmesh.Loader(Digits("test"), mesh, BATCH, epochs=1, tail="pad"):
    is_correct = predict(params, batch["image"]).argmax(axis=1) == batch["label"]
    correct += int((is_correct & batch["mask"]).sum())
if jax.process_index() == 0:
    print(f"test accuracy {correct / 360:.2f} ({correct} of 360)")
