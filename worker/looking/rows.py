"""Records as rows of text that somebody can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.loading.rows import Record
from hostmesh.worker.looking.describe import Field, tell_number
from hostmesh.worker.looking.table import Column, cut, lay_out, pad
from hostmesh.worker.looking.values import ENCODED, LIST, NOTHING, PIL, fields_of, find_kind, measure_picture

# As much of a value as the widest terminal shows.
MAX_NUMBERS, MAX_TEXT = 100, 1000
NAMES = ("tokens", "input_ids", "text")

Decode = Callable[[NDArray[Any]], str]


def find_decoder(how: str, find: Callable[[str, str], Callable[..., Any]]) -> Decode:
    """`utf-8`, for tokens that are bytes, or `module:function`, which is given a list of ids and is found by `find`."""
    if how == "utf-8":
        return _decode_bytes
    if ":" not in how:
        raise DataError(f"--decode wants utf-8 or module:function; found {how}")
    function = find(how, "--decode")
    return lambda ids: str(function(ids.tolist()))


def _decode_bytes(ids: NDArray[Any]) -> str:
    if ids.size and not 0 <= ids.min() <= ids.max() <= 255:
        raise DataError(f"utf-8 wants tokens from 0 to 255; found {ids.min()} to {ids.max()}")
    return ids.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8", "replace")


def find_token_fields(fields: Sequence[Field], how: str) -> set[str]:
    """The fields of token ids: by their names, else every row of integers."""
    rows = [field.name for field in fields if _is_row_of_integers(field)]
    if not rows:
        found = ", ".join(f"{field.name} {' or '.join(field.dtypes)} {field.shape}" for field in fields)
        raise DataError(f"--decode {how} wants a field of token ids, integers of rank 1; found {found}")
    return {name for name in rows if name.rpartition(".")[2] in NAMES} or set(rows)


def _is_row_of_integers(field: Field) -> bool:
    integers = all(dtype.removeprefix("list of ").startswith(("int", "uint")) for dtype in field.dtypes)
    return integers and field.dims is not None and len(field.dims) == 1


def make_cells(rows: Mapping[int, Record], tokens: set[str], decode: Decode | None) -> dict[int, dict[str, str]]:
    """The text of every value, by record and field."""
    cells: dict[int, dict[str, str]] = {}
    for id_, record in rows.items():
        cells[id_] = {}
        for path, value in fields_of(record):
            if decode is not None and path in tokens:
                with error_context(f"--decode of {path} in record {id_}"):
                    cells[id_][path] = show_text(decode(np.asarray(value)))
            else:
                cells[id_][path] = show(value)
    return cells


def print_rows(cells: Mapping[int, Mapping[str, str]], fields: Sequence[Field], width: int) -> list[str]:
    """A table, or where the fields are too many for the width, the fields of each record below one another."""
    names = [field.name for field in fields]
    columns = [Column("row", [str(id_) for id_ in cells], is_number=True)]
    for field in fields:
        column = [row.get(field.name, "") for row in cells.values()]
        columns.append(Column(field.name, column, field.dims == () and field.least is not None))
    if (lines := lay_out(columns, width)) is not None:
        return lines
    longest = min(max(map(len, names)), width // 3)
    lines = []
    for id_, row in cells.items():
        lines.append(f"row {id_}")
        lines += [cut(f"  {pad(cut(name, longest), longest)}  {row[name]}", width) for name in names if name in row]
    return lines


def show(value: Any) -> str:
    kind = find_kind(value)
    if isinstance(value, str):
        return show_text(value)
    if kind in ENCODED:
        size = measure_picture(value)
        return f"{kind} {f'{size[0]} × {size[1]} px, ' if size else ''}{len(value) / 1000:,.1f} kB"
    if kind == PIL:
        return f"{value.mode} {value.width} × {value.height} px"
    if kind == NOTHING:
        return "None"
    if isinstance(value, bytes):
        return show_text(str(value[:MAX_TEXT])[2:-1])
    if kind == LIST:
        return _show_many(value, len(value))
    if isinstance(value, np.ndarray):
        return _show_array(value)
    return show_text(repr(value))


def show_text(text: str) -> str:
    """On one line: what cannot be printed is escaped as Python does it."""
    text = text[:MAX_TEXT]
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _show_array(array: NDArray[Any]) -> str:
    if array.ndim < 2:
        return _show_many(array[:MAX_NUMBERS].tolist(), array.size) if array.ndim else _show_number(array.item())
    shape = " × ".join(map(str, array.shape))
    if array.dtype.kind not in "biuf" or not array.size:
        return shape
    finite = array[np.isfinite(array)]
    if not finite.size:
        return f"{shape}, nothing finite"
    low, high = tell_number(finite.min().item()), tell_number(finite.max().item())
    return f"{shape}, {low} to {high}, mean {finite.mean(dtype=np.float64):.4g}"


def _show_many(values: Sequence[Any], count: int) -> str:
    shown = " ".join(map(_show_number, values[:MAX_NUMBERS]))
    return f"{shown} …" if count > MAX_NUMBERS else shown


def _show_number(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else show_text(str(value))
