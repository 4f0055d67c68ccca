"""The parts of a batch that this process holds, and which processes hold the same ones."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Sharding

from hostmesh.worker.guard.sampling import MAX_BLOCKS, count_blocks, cut

# For each axis where the part begins and ends.
Box = tuple[tuple[int, int], ...]
# A report has so many fingerprints at most for each step.
MAX_FINGERPRINTS = 512


@dataclass(frozen=True)
class Part:
    """A part of one array, the same rows and columns on all of its `holders`; `device` is one of this process's."""

    name: str
    box: Box
    holders: tuple[int, ...]
    device: Any
    blocks: list[tuple[int, int]]  # of rows, counted from the part's first one

    @property
    def is_shared(self) -> bool:
        return len(self.holders) > 1

    def describe(self) -> list[Any]:
        return [self.name, [list(span) for span in self.box], list(self.holders), len(self.blocks)]


@dataclass(frozen=True)
class Held:
    """What this process holds of the arrays of a batch. `layout` is equal where processes cut the arrays alike."""

    parts: list[Part]
    shapes: dict[str, str]
    layout: str
    bytes: int

    @property
    def shared(self) -> list[Part]:
        return [part for part in self.parts if part.is_shared]

    def describe(self) -> dict[str, Any]:
        """Of parts that are whole the box alone would do; all are told, so that gaps between them can be seen."""
        return {"shapes": self.shapes, "layout": self.layout, "parts": [part.describe() for part in self.parts]}


def find_held(mode: str, names: Sequence[str], avals: Sequence[Any], shardings: Sequence[Sharding]) -> Held:
    """Of arrays of these shapes and dtypes."""
    found: list[tuple[str, Box, tuple[int, ...], Any, int]] = []
    shapes, layout, size = {}, 0, 0
    for name, aval, sharding in zip(names, avals, shardings, strict=True):
        boxes = find_boxes(sharding, aval.shape)
        holders: defaultdict[Box, set[int]] = defaultdict(set)
        own: dict[Box, Any] = {}
        for device, box in boxes.items():
            holders[box].add(device.process_index)
            if device.process_index == jax.process_index():
                own.setdefault(box, device)
        of_one = aval.dtype.itemsize
        found += [(name, box, tuple(sorted(holders[box])), own[box], volume(box) * of_one) for box in sorted(own)]
        shapes[name] = f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"
        told = sorted((device.id, box) for device, box in boxes.items())
        layout = zlib.crc32(repr(told).encode(), layout)
        size += sum(volume(box) for box in own) * aval.dtype.itemsize
    shared = sum(len(of) > 1 for _, _, of, *_ in found)
    most = max(1, min(MAX_BLOCKS, MAX_FINGERPRINTS // max(1, shared)))
    parts = [_cut_part(mode, most, *each) for each in found]
    return Held(parts, shapes, f"{layout:08x}", size)


def find_boxes(sharding: Sharding, shape: tuple[int, ...]) -> Mapping[Any, Box]:
    indices = sharding.devices_indices_map(shape)
    return {
        device: tuple(span.indices(size)[:2] for span, size in zip(index or (), shape, strict=True))
        for device, index in indices.items()
    }


def volume(box: Box) -> int:
    size = 1
    for start, stop in box:
        size *= stop - start
    return size


def _cut_part(mode: str, most: int, name: str, box: Box, holders: tuple[int, ...], device: Any, size: int) -> Part:
    rows = box[0][1] - box[0][0]
    return Part(name, box, holders, device, cut(rows, count_blocks(mode, rows, size, most)))
