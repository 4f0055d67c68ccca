"""1,797 handwritten digits of 8×8 pixels from 0 to 16: the test set of UCI's public optical digits, shipped along."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.ordering.order import Order
from hostmesh.worker.sources.arrays import array_source
from hostmesh.worker.sources.base import BlockSource
from hostmesh.worker.specs.spec import Spec, unknown

FILE = Path(__file__).with_name("digits.npz")
COUNT = 1797
TRAIN = 1437
SPLITS = {"train": slice(0, TRAIN), "test": slice(TRAIN, COUNT), "all": slice(0, COUNT)}


def open_spec(spec: Spec) -> BlockSource:
    """Records {"image": uint8 (8, 8), "label": int32}, in a fixed mixed order that the splits cut in two."""
    spec.check_options()
    split = spec.rest
    if split not in SPLITS:
        raise DataError(f"{spec.text}: {unknown('split', split, SPLITS)}")
    ids = Order(COUNT, seed=0).ids(0, COUNT)[SPLITS[split]]
    with np.load(FILE, allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    return array_source({"image": images[ids], "label": labels[ids].astype(np.int32)}, f"digits:{split}")
