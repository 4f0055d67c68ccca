"""What the store itself says of the files behind a source: compared between processes without reading a byte."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.urls import name_of
from hostmesh.worker.verify.content import MAX_AT_ONCE, Content, Stored


@dataclass(frozen=True)
class RemoteContent(Content):
    """Beside the files there may be arrays in memory that go with them, such as the offsets of documents."""

    files: tuple[RemoteFile, ...]

    @cached_property
    def size(self) -> int:
        """What there is to read."""
        return sum(one.size for one in self.stored if one.in_memory)

    @cached_property
    def is_quick(self) -> bool:
        return self.size <= MAX_AT_ONCE

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
    """Its bytes stand for one row, of which the store's word of their version is as good as a fingerprint."""
    version = f"version {file.version or 'unknown'}".encode()
    return Stored(name, 1, file.size, lambda start, stop: version, stamp=lambda: [version.decode()])
