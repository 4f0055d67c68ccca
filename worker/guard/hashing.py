"""Fingerprints of rows in memory: xxh3, and CRC-32 on a host that lacks the package."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Hexadecimal digits of one fingerprint.
DIGITS = 16

_hash: Callable[[Any], bytes]
try:
    from xxhash import xxh3_64_digest as _hash
except ImportError:
    ALGORITHM = "crc32"

    def _hash(data: Any) -> bytes:
        return zlib.crc32(data).to_bytes(DIGITS // 2, "big")
else:
    ALGORITHM = "xxh3"


def fingerprint(array: NDArray[Any]) -> str:
    """Of an array's bytes alone. Large ones are read without the interpreter's lock."""
    return _hash(_bytes_of(array)).hex()


def fingerprint_blocks(array: NDArray[Any], blocks: Sequence[tuple[int, int]]) -> str:
    """Of each of these blocks of rows."""
    if not array.flags.c_contiguous:
        return "".join([fingerprint(array[start:stop]) for start, stop in blocks])
    flat: Any = memoryview(_bytes_of(array))  # type: ignore[arg-type]
    row = len(flat) // len(array)
    return b"".join([_hash(flat[start * row : stop * row]) for start, stop in blocks]).hex()


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    flat = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return flat.reshape(-1).view(np.uint8)
