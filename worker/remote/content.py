"""What the store itself says of the files behind a source: compared between processes without reading a byte."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hostmesh.worker.remote.files import RemoteFile
from hostmesh.worker.remote.urls import name_of
from hostmesh.worker.verify.content import MAX_AT_ONCE, Content, Pause


@dataclass(frozen=True)
class RemoteContent(Content):
    """`stored` are arrays that go with the files, such as the offsets of documents."""

    files: tuple[RemoteFile, ...]

    @property
    def is_quick(self) -> bool:
        return self.size <= MAX_AT_ONCE

    @property
    def location(self) -> str | None:
        """Equal on all hosts that ask one store for the same version."""
        if self.stored or not all(file.version for file in self.files):
            return None
        found = [(file.where, file.url, file.size, file.version) for file in self.files]
        return f"{zlib.crc32(repr(found).encode()):08x} {self.files[0].url}"

    def with_array(self, name: str, array: NDArray[Any]) -> Content:
        return RemoteContent(super().with_array(name, array).stored, self.files)

    def fingerprints(self, pause: Pause = lambda: None) -> Iterator[tuple[str, str]]:
        names = [name_of(file.url) for file in self.files]
        for name, file in zip(names, self.files, strict=True):
            whole = name if names.count(name) == 1 else file.url
            yield whole, f"{file.size:,} bytes, version {file.version or 'unknown'}"
        yield from super().fingerprints(pause)


def of_remote(files: Sequence[RemoteFile]) -> RemoteContent:
    return RemoteContent((), tuple(files))
