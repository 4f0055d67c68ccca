"""What a classifier has to know about its records: their fields, the number of classes, the scale of the pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block
from hostmesh.worker.mixing.orders import count_ids
from hostmesh.worker.process.coordination import JSON, exchange, require_same, share_failure
from hostmesh.worker.sources import Source
from hostmesh.worker.verify.fingerprint import describe_source, fingerprint_records

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
        """From records spread over the source: the same task on every process, or an error with the differences."""
        with share_failure("look at the records"):
            task, seen = cls._look(source)
        require_same("look at the records", seen)
        # Process 0's: rows may vary from read to read, and processors differ in the last bit of a mean.
        mean, scale = exchange("scale the records", [task.mean, task.scale])[0]
        return replace(task, mean=mean, scale=scale)

    @classmethod
    def _look(cls, source: Source) -> tuple[Task, dict[str, JSON]]:
        there = count_ids(source)
        count = min(LOOKED_AT, there)
        block = source.read(np.arange(count) * there // count)
        image, label = _fields(block, source.name)
        images, labels = np.asarray(block[image]), np.asarray(block[label])
        kinds = f"{images.dtype.name}{list(images.shape[1:])} and {labels.dtype.name}{list(labels.shape[1:])}"
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or images.dtype.kind not in "iufb":
            raise DataError(
                f"{source.name}: the built-in job wants numbers in {image!r} and a whole number in {label!r};"
                f" found {kinds}"
            )
        # Pixels that are not finite do not count: the mean would not be finite, and no record after the scaling.
        pixels = images[np.isfinite(images)]
        mean, scale = (float(pixels.mean()), float(pixels.std()) or 1.0) if len(pixels) else (0.0, 1.0)
        task = cls(image, label, int(np.prod(images.shape[1:])), int(labels.max()) + 1, mean, scale)
        seen: dict[str, JSON] = {"records": len(source), "fields": f"{image}, {label}", "kinds": kinds}
        seen["classes"] = task.classes
        if describe_source(source)["content"] != "varies":
            seen |= {"images": _range(images), "labels": _range(labels)}
            seen[f"content of {count} records"] = fingerprint_records([(images, labels)])
        return task, seen

    def prepare(self, block: Block) -> Block:
        images = np.multiply(block[self.image], np.float32(1 / self.scale), dtype=np.float32)
        images -= np.float32(self.mean / self.scale)
        return {"image": images, "label": block[self.label].astype(np.int32)}


def _range(values: NDArray[Any]) -> str:
    return f"{values.min()} to {values.max()}"


def _fields(block: Block, name: str) -> tuple[Any, Any]:
    if isinstance(block, (tuple, list)) and len(block) == 2:
        return 0, 1
    if isinstance(block, dict) and "label" in block:
        others = [field for field in block if field != "label"]
        if "image" in others or len(others) == 1:
            return ("image" if "image" in others else others[0]), "label"
    found = ", ".join(map(str, block)) if isinstance(block, dict) else f"a {type(block).__name__}"
    raise DataError(f"{name}: the built-in job wants records with image and label, or pairs; found {found}")
