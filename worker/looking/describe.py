"""What the fields of sampled records have in common, and how far their shapes and values reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hostmesh.worker.loading.rows import Record
from hostmesh.worker.looking.values import (
    BYTES,
    ENCODED,
    TEXT,
    as_numbers,
    fields_of,
    find_kind,
    find_shape,
    measure_picture,
    name_type,
)

Range = tuple[int, int]
NUMBERS = ("id", "index", "idx")  # they tell records apart, and say nothing about them
LABELS = ("label", "labels", "class", "target", "y", "fine_label", "coarse_label")


@dataclass(frozen=True)
class Field:
    """One field of the sampled records. `dims` is None where there is no shape, or shapes of different ranks."""

    name: str
    dtypes: tuple[str, ...]
    dims: tuple[Range, ...] | None
    shape: str
    values: str
    least: float | int | None
    most: float | int | None
    present: int  # records that have it

    def as_json(self) -> dict[str, Any]:
        dims = None if self.dims is None else [low if low == high else [low, high] for low, high in self.dims]
        found = {"name": self.name, "dtype": " or ".join(self.dtypes), "shape": dims, "values": self.values}
        return {**found, "least": self.least, "most": self.most, "present": self.present}


def describe_fields(records: Iterable[Record]) -> list[Field]:
    values: dict[str, list[Any]] = {}
    for record in records:
        for path, value in fields_of(record):
            values.setdefault(path, []).append(value)
    return [_describe(path, found) for path, found in values.items()]


def list_notes(fields: Sequence[Field], records: Mapping[int, Record]) -> list[str]:
    """What somebody who gives these records to a Loader should know."""
    notes = []
    for field in fields:
        if field.present < len(records):
            notes.append(f"{field.name} is in {field.present:,} of {len(records):,} records only")
        if any(dtype.startswith("list of") for dtype in field.dtypes):
            notes.append(
                f"{field.name} is a list, of which a Loader makes one array a place: np.asarray makes one array"
            )
    varying = [field.name for field in fields if _varies(field) or len(field.dtypes) > 1]
    if varying:
        notes.append(f"{', '.join(varying)}: not alike in all records, so a Loader wants `collate=`")
    return notes


def _varies(field: Field) -> bool:
    if field.dims is None:
        return field.shape.startswith("rank")
    return any(low != high for low, high in field.dims)


def _describe(name: str, values: list[Any]) -> Field:
    dtypes = tuple(dict.fromkeys(map(name_type, values)))
    shapes = [shape for shape in map(find_shape, values) if shape is not None]
    dims = _find_dims(shapes)
    least, most, text = _find_values(values)
    return Field(name, dtypes, dims, _tell_shape(values, shapes, dims), text, least, most, len(values))


def _find_dims(shapes: list[tuple[int, ...]]) -> tuple[Range, ...] | None:
    if not shapes or len({len(shape) for shape in shapes}) > 1:
        return None
    return tuple((min(sizes), max(sizes)) for sizes in zip(*shapes, strict=True))


def _tell_shape(values: list[Any], shapes: list[tuple[int, ...]], dims: tuple[Range, ...] | None) -> str:
    """`28 × 28`, `120–640 × 3`, `scalar`, `12–340 characters`."""
    if dims is not None:
        return " × ".join(tell_range(*sizes) for sizes in dims) or "scalar"
    if shapes:
        ranks = [len(shape) for shape in shapes]
        return f"rank {tell_range(min(ranks), max(ranks))}"
    lengths = [len(value) for value in values if isinstance(value, (str, bytes))]
    if not lengths:
        return "–"
    unit = "bytes" if any(isinstance(value, bytes) for value in values) else "characters"
    return f"{tell_range(min(lengths), max(lengths))} {unit}"


def tell_range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _find_values(values: list[Any]) -> tuple[Any, Any, str]:
    arrays = [array for array in map(as_numbers, values) if array is not None and array.size]
    if not arrays:
        return None, None, _tell_distinct(values)
    if all(array.dtype.kind == "b" for array in arrays):
        share = float(np.mean([array.mean() for array in arrays]))
        return 0, 1, f"{share:.0%} true"
    finite = [array[np.isfinite(array)] for array in arrays]
    bad = sum(kept.size < array.size for kept, array in zip(finite, arrays, strict=True))
    not_finite = f", not finite in {bad:,} of {len(values):,} records" if bad else ""
    kept = [array for array in finite if array.size]
    if not kept:
        return None, None, f"nothing finite{not_finite}"
    least, most = min(array.min() for array in kept).item(), max(array.max() for array in kept).item()
    text = f"{tell_number(least)} to {tell_number(most)}" if least != most else f"always {tell_number(least)}"
    is_label = all(array.ndim == 0 and array.dtype.kind in "iu" for array in arrays)
    distinct = f", {len({array.item() for array in arrays}):,} distinct" if is_label and least != most else ""
    return least, most, f"{text}{distinct}{not_finite}"


def _tell_distinct(values: list[Any]) -> str:
    """Of text and bytes, which can be compared; of encoded pictures their widths and heights, where Pillow is there."""
    kinds = {find_kind(value) for value in values}
    if kinds <= set(ENCODED) and (sizes := [size for size in map(measure_picture, values) if size is not None]):
        return f"{' × '.join(tell_range(min(side), max(side)) for side in zip(*sizes, strict=True))} px"
    if kinds <= {TEXT, BYTES, *ENCODED} and all(isinstance(value, (str, bytes)) for value in values):
        number = len(set(values))
        return "all alike" if number == 1 and len(values) > 1 else f"{number:,} distinct"
    return "–"


def tell_number(value: float | int) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def find_labels(fields: Sequence[Field]) -> str | None:
    """The field of integers, one a record, that is called like a label, or that is the only one."""
    whole = [
        field.name
        for field in fields
        if field.dims == () and all(dtype.startswith(("int", "uint")) for dtype in field.dtypes)
    ]
    whole = [name for name in whole if name.rpartition(".")[2] not in NUMBERS]
    named = [name for name in whole if name.rpartition(".")[2] in LABELS]
    return named[0] if named else whole[0] if len(whole) == 1 else None
