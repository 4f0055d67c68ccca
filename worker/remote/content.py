"""What the store itself says of the files behind a source: compared between processes without reading a byte, where it
says anything."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.remote.arrays import RemoteArray
from hostmesh.worker.remote.caching.own_cache import own_cache
from hostmesh.worker.remote.ranges import BLOCK, Units, fits_cache
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.urls import name_of
from hostmesh.worker.verify.content import MAX_AT_ONCE, Content, Stored

# A file of so many bytes is fetched to the cache when all of it is read for a fingerprint, of a larger one each piece.
MAX_KEPT = 16 * BLOCK


@dataclass(frozen=True)
class RemoteContent(Content):
    """Beside the files there may be arrays in memory that go with them, such as the offsets of documents."""

    files: tuple[RemoteFile, ...]

    @cached_property
    def size(self) -> int:
        """What there is to read."""
        return sum(one.size for one in self.stored if one.behind is None)

    @cached_property
    def is_quick(self) -> bool:
        return self.size <= MAX_AT_ONCE and all(one.in_memory or one.behind is not None for one in self.stored)

    @cached_property
    def location(self) -> str | None:
        """Equal on all hosts that ask one store for the same version."""
        if len(self.stored) > len(self.files) or not all(file.version for file in self.files):
            return None
        found = [(file.where, file.url, file.size, file.version) for file in self.files]
        return f"{zlib.crc32(repr(found).encode()):08x} {self.files[0].url}"

    def with_array(self, name: str, array: NDArray[Any]) -> Content:
        return RemoteContent(super().with_array(name, array).stored, self.files)


def of_remote(files: Sequence[RemoteFile]) -> RemoteContent:
    names = [name_of(file.url) for file in files]
    times = Counter(names)
    found = [_store(name if times[name] == 1 else file.url, file) for name, file in zip(names, files, strict=True)]
    return RemoteContent(tuple(found), tuple(files))


def _store(name: str, file: RemoteFile) -> Stored:
    """Its bytes stand for one row, of which the store's word of their version is as good as a fingerprint. A server
    that has no such word leaves nothing but to read them."""
    in_bytes = Stored(name, file.size, 1, partial(_read, file))
    if not file.version:
        return in_bytes
    version = f"version {file.version}".encode()
    return Stored(name, 1, file.size, lambda start, stop: version, stamp=lambda: [version.decode()], behind=in_bytes)


def _read(file: RemoteFile, start: int, stop: int) -> Any:
    """From the file in the cache, where a source has brought all of it."""
    path = own_cache().find(file.key())
    if path is not None:
        with open(path, "rb") as whole:
            whole.seek(start)
            return whole.read(stop - start)
    is_kept = file.size <= MAX_KEPT and fits_cache([file])
    return RemoteArray(Units(file, 0, 1, file.size, is_kept), np.dtype(np.uint8), ())[start:stop]
