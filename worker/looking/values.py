"""The values of a record, each with its path, and what kind of value each one is."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.loading.rows import Record

# A list of more plain values than this is shown as one field, though a Loader makes an array of each of its places.
LONG_LIST = 4
# How files of pictures begin.
BEGINNINGS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG"}
# Values of these kinds are no arrays of numbers.
TEXT, BYTES, PIL, NOTHING, LIST, OBJECT = "text", "bytes", "PIL", "None", "list", "object"
ENCODED = ("JPEG", "PNG")


def fields_of(record: Record, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with its path, written `image`, `meta.size` or `[0]`; that of a record without fields is `record`."""
    if isinstance(record, dict):
        for key, part in record.items():
            yield from fields_of(part, f"{path}.{key}" if path else str(key))
    elif isinstance(record, (tuple, list)) and not is_long_list(record):
        for index, part in enumerate(record):
            yield from fields_of(part, f"{path}[{index}]")
    else:
        yield path or "record", unwrap(record)


def is_long_list(value: Any) -> bool:
    plain = (bool, int, float, str, np.generic)
    return isinstance(value, list) and len(value) > LONG_LIST and all(isinstance(part, plain) for part in value)


def unwrap(value: Any) -> Any:
    """Text and bytes as Python has them; tensors and numbers as arrays of NumPy."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU" and not value.ndim:
        value = value.item()
    if isinstance(value, (str, bytes, list)) or value is None or is_pil(value):
        return value
    try:
        array = np.asarray(value)
    except Exception:  # an object of the user's own may refuse in any way
        return value
    if array.dtype == np.uint8 and array.ndim == 1 and find_format(array[:8].tobytes()):
        return array.tobytes()
    return value if array.dtype.hasobject and not array.ndim else array


def find_kind(value: Any) -> str:
    """`array`, or why it is none."""
    if isinstance(value, bytes):
        return find_format(value) or BYTES
    if isinstance(value, np.ndarray):
        return {"U": TEXT, "S": BYTES, "O": OBJECT}.get(value.dtype.kind, "array")
    if is_pil(value):
        return PIL
    if value is None:
        return NOTHING
    return TEXT if isinstance(value, str) else LIST if isinstance(value, list) else OBJECT


def find_format(data: bytes) -> str | None:
    """The format of an encoded picture, by its first bytes."""
    return next((name for beginning, name in BEGINNINGS.items() if data.startswith(beginning)), None)


def is_pil(value: Any) -> bool:
    """A picture of Pillow's, seen without importing Pillow."""
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)


def name_type(value: Any) -> str:
    """What the column of dtypes says of a value."""
    kind = find_kind(value)
    if kind == "array":
        return str(value.dtype.name)
    if kind == PIL:
        return f"PIL {value.mode}"
    if kind == LIST:
        return f"list of {type(value[0]).__name__}"
    if kind == OBJECT and not isinstance(value, np.ndarray):
        return type(value).__name__
    return kind


def find_shape(value: Any) -> tuple[int, ...] | None:
    """None for what has no shape: text, bytes and objects."""
    kind = find_kind(value)
    if kind == PIL:
        bands = len(value.getbands())
        return (value.height, value.width, bands) if bands > 1 else (value.height, value.width)
    if kind == LIST:
        return (len(value),)
    return value.shape if isinstance(value, np.ndarray) else None


def as_numbers(value: Any) -> NDArray[Any] | None:
    """The array of a value that is made of numbers."""
    if find_kind(value) not in ("array", LIST, PIL):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "biuf" else None


def count_bytes(value: Any) -> int:
    """Roughly what it takes in memory."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    shape = find_shape(value)
    return int(np.prod(shape)) if shape is not None else len(value) if isinstance(value, (str, bytes)) else 64


def measure_picture(data: bytes) -> tuple[int, int] | None:
    """Width and height, from the first bytes of the file. None without Pillow, and where the file is broken."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(data)) as picture:
            width, height = picture.size
    except (ImportError, OSError, ValueError, SyntaxError):  # what Pillow raises for broken files
        return None
    return width, height
