"""A file in a store as it was when it was opened, and what every store does."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class RemoteFile:
    """`version` is the store's own word for these very bytes: an ETag or a generation; empty where it has none.
    `where` is the address that was asked, empty for the store's own."""

    url: str
    size: int
    version: str
    where: str
    opening: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False, repr=False)

    def key(self, *part: int) -> str:
        """The name in the cache of the whole file, or of a part of it. Without a version nobody can tell whether it is
        still the same, so that what one opening has fetched is for that alone."""
        known = self.version or f"opening {self.opening}"
        return hashlib.sha256(repr((self.where, self.url, self.size, known, *part)).encode()).hexdigest()[:40]


class Store(Protocol):
    """One try each, which raises a StoreFailure. Used by several threads at once."""

    where: str

    def look(self, url: str) -> RemoteFile: ...

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes | bytearray:
        """These bytes of that version, perhaps fewer where the transfer was cut."""
        ...

    def list(self, url: str) -> list[str]:
        """The URLs of all files whose URLs begin so."""
        ...
