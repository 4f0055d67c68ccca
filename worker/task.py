"""What a classifier has to know about its records: their fields, the number of classes, the scale of the pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.errors import DataError
from worker.rows import Block
from worker.sources import Source

LOOKED_AT = 2048


@dataclass(frozen=True)
class Task:
    image: Any
    label: Any
    features: int
    classes: int
    mean: float
    scale: float

    @classmethod
    def of(cls, source: Source) -> Task:
        """From records spread over the source: the same ones, and so the same task, in every process."""
        count = min(LOOKED_AT, len(source))
        block = source.read(np.arange(count) * len(source) // count)
        image, label = _fields(block, source.name)
        images, labels = np.asarray(block[image]), np.asarray(block[label])
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or images.dtype.kind not in "iufb":
            raise DataError(
                f"{source.name}: the built-in job wants numbers in {image!r} and a whole number in {label!r};"
                f" found {images.dtype.name}{list(images.shape[1:])} and {labels.dtype.name}{list(labels.shape[1:])}"
            )
        mean, scale = float(images.mean()), float(images.std()) or 1.0
        return cls(image, label, int(np.prod(images.shape[1:])), int(labels.max()) + 1, mean, scale)

    def prepare(self, block: Block) -> Block:
        images = np.multiply(block[self.image], np.float32(1 / self.scale), dtype=np.float32)
        images -= np.float32(self.mean / self.scale)
        return {"image": images, "label": block[self.label].astype(np.int32)}


def _fields(block: Block, name: str) -> tuple[Any, Any]:
    if isinstance(block, (tuple, list)) and len(block) == 2:
        return 0, 1
    if isinstance(block, dict) and "label" in block:
        others = [field for field in block if field != "label"]
        if "image" in others or len(others) == 1:
            return ("image" if "image" in others else others[0]), "label"
    found = ", ".join(map(str, block)) if isinstance(block, dict) else f"a {type(block).__name__}"
    raise DataError(f"{name}: the built-in job wants records with image and label, or pairs; found {found}")
