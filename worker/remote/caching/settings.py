"""The settings of the cache: its folder and its size, from the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hostmesh.worker.errors import DataError

FOLDER, SIZE = "HOSTMESH_DATA_CACHE", "HOSTMESH_DATA_CACHE_SIZE"
DEFAULT_SIZE = "50GB"
SMALLEST = 64 << 20
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?I?)B?", re.IGNORECASE)


@dataclass(frozen=True)
class CacheSettings:
    folder: Path
    size: int

    @classmethod
    def from_env(cls) -> CacheSettings:
        return cls(read_folder(), read_size())


def read_folder() -> Path:
    given = os.environ.get(FOLDER)
    if given:
        folder = Path(given).expanduser()
        if not folder.is_absolute():
            raise DataError(f"{FOLDER} wants an absolute path, so that all processes mean one folder; found {given!r}")
        return folder
    cache = os.environ.get("XDG_CACHE_HOME", "")  # a relative one does not count, as its rules have it
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "hostmesh" / "data"


def read_size() -> int:
    """In bytes: `50GB`, `200 GiB`, `1.5T`."""
    given = os.environ.get(SIZE) or DEFAULT_SIZE
    found = NUMBER.fullmatch(given.strip())
    if found is None or found[2].upper() not in UNITS:
        raise DataError(f"{SIZE} wants a number of bytes, as in 50GB or 200GiB; found {given!r}")
    size = int(float(found[1]) * UNITS[found[2].upper()])
    if size < SMALLEST:
        raise DataError(f"{SIZE} wants at least {SMALLEST >> 20}MiB, room for what is being fetched; found {given!r}")
    return size
