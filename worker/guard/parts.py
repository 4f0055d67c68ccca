"""The parts of a batch that this process holds, and which processes hold the same ones."""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Sharding

from hostmesh.worker.guard.sampling import MAX_BLOCKS, count_blocks, cut

# For each axis where the part begins and ends.
Box = tuple[tuple[int, int], ...]
ONE_ROW: Box = ((0, 1),)
# A report has so many fingerprints at most for each step.
MAX_FINGERPRINTS = 512
# So many characters describe the parts at most, and name an array.
MAX_CHARACTERS, MAX_NAME = 80_000, 150


@dataclass(frozen=True)
class Part:
    """A part of the n-th `array`, the same rows and columns on all of its `holders`; `device` is one of this
    process's."""

    array: int
    name: str
    box: Box
    holders: tuple[int, ...]
    device: Any
    blocks: list[tuple[int, int]]  # of rows, counted from the part's first one

    @property
    def is_shared(self) -> bool:
        return len(self.holders) > 1

    def describe(self) -> list[Any]:
        return [self.name, [list(span) for span in self.box], to_spans(self.holders), len(self.blocks)]


@dataclass(frozen=True)
class Held:
    """What this process holds of the arrays of a batch. `layout` is equal where processes cut the arrays alike, and so
    is `bytes`, the size of what a process holds of a batch on average. `is_all`: no part is left out."""

    parts: list[Part]
    shapes: dict[str, str]
    layout: str
    bytes: float
    is_all: bool

    @cached_property
    def shared(self) -> list[Part]:
        return [part for part in self.parts if part.is_shared]

    def describe(self) -> dict[str, Any]:
        """Parts that nobody else holds are told too, so that gaps between them can be seen."""
        parts = [part.describe() for part in self.parts]
        return {"shapes": shorten(self.shapes), "layout": self.layout, "parts": parts, "is_all": self.is_all}


def find_held(mode: str, names: Sequence[str], avals: Sequence[Any], shardings: Sequence[Sharding]) -> Held:
    """Of arrays of these shapes and dtypes. All that other processes are to do alike follows from the shardings."""
    me = jax.process_index()
    found: list[tuple[int, str, Box, tuple[int, ...], Any, int]] = []
    shapes, layout, size, everyone = {}, 0, 0, set()
    shared: Counter[int] = Counter()  # parts, by process
    for number, (name, aval, sharding) in enumerate(zip(unique(names), avals, shardings, strict=True)):
        boxes = find_boxes(sharding, aval.shape)
        holders: defaultdict[Box, set[int]] = defaultdict(set)
        own: dict[Box, Any] = {}
        for device, box in boxes.items():
            holders[box].add(device.process_index)
            if device.process_index == me:
                own.setdefault(box, device)
        of_one = aval.dtype.itemsize
        for box, of in holders.items():
            everyone |= of
            size += volume(box) * of_one * len(of)
            if len(of) > 1:
                shared.update(of)
        shapes[name] = f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"
        told = sorted((device.id, box) for device, box in boxes.items())
        layout = zlib.crc32(repr(told).encode(), layout)
        for box in sorted(own):
            if volume(box):
                held_by = tuple(sorted(holders[box]))
                found.append((number, name, box, held_by, own[box], volume(box) * of_one))
    most = max(1, min(MAX_BLOCKS[mode], MAX_FINGERPRINTS // max(1, *shared.values(), 0)))
    parts = [_cut_part(mode, most, *each) for each in found]
    kept = keep_what_fits(parts)
    return Held(kept, shapes, f"{layout:08x}", size / max(1, len(everyone)), len(kept) == len(parts))


def keep_what_fits(parts: list[Part]) -> list[Part]:
    """Into one message: of the many arrays of a large model the first ones are compared."""
    kept, size = [], 0
    for part in parts:
        size += len(json.dumps(part.describe()))
        if size > MAX_CHARACTERS:
            break
        kept.append(part)
    return kept


def shorten(shapes: dict[str, str]) -> dict[str, str]:
    """Of very many arrays the last ones are told together."""
    kept: dict[str, str] = {}
    size = 0
    for name, shape in shapes.items():
        size += len(json.dumps([name, shape]))
        if size > MAX_CHARACTERS // 4:
            return {**kept, "more": f"{zlib.crc32(repr(shapes).encode()):08x}"}
        kept[name] = shape
    return kept


def unique(names: Sequence[str]) -> list[str]:
    """Two arrays may have one name: {"a.b": 1, "a": {"b": 2}}."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        name = " ".join(name.split())[:MAX_NAME]
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def to_spans(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as first and last of each that follow one another."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans


def find_boxes(sharding: Sharding, shape: tuple[int, ...]) -> Mapping[Any, Box]:
    """What each device holds; a scalar is one row."""
    indices = sharding.devices_indices_map(shape)
    return {
        device: tuple(span.indices(size)[:2] for span, size in zip(index or (), shape, strict=True)) or ONE_ROW
        for device, index in indices.items()
    }


def volume(box: Box) -> int:
    size = 1
    for start, stop in box:
        size *= stop - start
    return size


def _cut_part(
    mode: str, most: int, array: int, name: str, box: Box, holders: tuple[int, ...], device: Any, size: int
) -> Part:
    rows = box[0][1] - box[0][0]
    return Part(array, name, box, holders, device, cut(rows, count_blocks(mode, rows, size, most)))
