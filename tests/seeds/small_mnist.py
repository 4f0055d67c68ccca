"""Handwritten digits in the shape of MNIST, 28 x 28: those that ship along, each pixel made three by three."""

import numpy as np

import hostmesh

TRAIN, TEST = 512, 128


def load(train=True):
    """Images and labels."""
    ids = np.arange(TRAIN) if train else np.arange(TRAIN, TRAIN + TEST)
    found = hostmesh.open_source("digits:train").read(ids)
    large = np.kron(found["image"] * np.uint8(15), np.ones((1, 3, 3), np.uint8))
    return np.pad(large, ((0, 0), (2, 2), (2, 2))), found["label"].astype(np.int64)


class Source:
    """As `tfds.data_source("mnist")`: records by number."""

    def __init__(self, train=True):
        self.images, self.labels = load(train)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index][..., None], "label": np.int32(self.labels[index])}

    def __repr__(self):
        return "small_mnist"
