"""Fingerprints of rows in memory: xxh3, and CRC-32 on a host that lacks the package."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_hash: Callable[[Any], int]
try:
    from xxhash import xxh3_64_intdigest as _hash
except ImportError:
    _hash = zlib.crc32
    ALGORITHM = "crc32"
else:
    ALGORITHM = "xxh3"

# Hexadecimal digits of one fingerprint.
DIGITS = 16


def fingerprint(array: NDArray[Any]) -> str:
    """Of an array's bytes alone. Large ones are read without the interpreter's lock."""
    flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return f"{_hash(flat.reshape(-1).view(np.uint8)):0{DIGITS}x}"
