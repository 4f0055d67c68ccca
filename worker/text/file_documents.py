"""Documents of varying length in files of tokens, found by offsets or by a separator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, stack_records, take_rows
from hostmesh.worker.process.progress import Progress
from hostmesh.worker.sources.base import BaseSource
from hostmesh.worker.text.token_files import TokenFile, TokenFiles, open_token_files
from hostmesh.worker.verify.content import Content

TOKENS = "tokens"
CHUNK = 1 << 22  # tokens that are searched for separators at once


@dataclass(frozen=True)
class FileDocuments(BaseSource):
    """A source of documents. `bounds` are where they begin, counted over all files, and where the last one ends."""

    name: str
    files: TokenFiles
    bounds: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def content(self) -> Content | None:
        found = self.files.content
        return found and found.with_array("offsets", self.bounds)

    def lengths(self, ids: Ids, field: str | None = None) -> NDArray[np.int64]:
        return self.bounds[ids + 1] - self.bounds[ids]

    def pieces(self, field: str, ids: Ids, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Of each document the tokens from a start to a stop, without reading the others."""
        return self.files.read(self.bounds[ids] + starts, self.bounds[ids] + stops)

    def records(self, ids: Ids) -> list[Record]:
        check_ids(ids, len(self), self.name)
        native = self.files.dtype.newbyteorder("=")
        return [{TOKENS: tokens.astype(native)} for tokens in self.files.read(self.bounds[ids], self.bounds[ids + 1])]

    def read(self, ids: Ids) -> Block:
        if not len(ids):
            return take_rows(self.read(np.zeros(1, np.int64)), ids)
        return stack_records(self.records(ids), ids)


def read_offsets(path: str, file: TokenFile) -> NDArray[np.int64]:
    """Where the documents of a file begin: `.npy`, or raw int64; the end of the file may be given too or not."""
    (opened,) = open_token_files([path], None if path.endswith(".npy") else np.dtype("<i8"))
    offsets = opened.tokens[:].astype(np.int64)
    if offsets[0] != 0:
        raise DataError(f"{path} wants the offset of the first document, 0, at its beginning; found {offsets[0]}")
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        before, after = offsets[falls[0] : falls[0] + 2]
        raise DataError(f"{path} wants ascending offsets; found {after} after {before}, at {falls[0] + 1}")
    if offsets[-1] > file.length:
        raise DataError(f"{path} has the offset {offsets[-1]}, beyond the {file.length:,} tokens of {file.path}")
    return offsets if offsets[-1] == file.length else np.append(offsets, file.length)


def find_separators(file: TokenFile, separator: int) -> NDArray[np.int64]:
    """A document ends with its separator; what follows the last one is a document too."""
    limits = np.iinfo(file.dtype)
    if not limits.min <= separator <= limits.max:
        raise DataError(
            f"{file.path}: separator {separator} is no {file.dtype.name}: wanted {limits.min} to {limits.max}"
        )
    progress = Progress(file.length, f"looking for separators in {file.path}")
    ends = []
    for start in range(0, file.length, CHUNK):
        chunk = file.tokens[start : start + CHUNK]
        ends.append(np.flatnonzero(chunk == separator) + start + 1)
        progress.reached(start + len(chunk))
    found = np.concatenate(ends)
    if not len(found):
        raise DataError(f"{file.path}: no token is the separator {separator}, so that it is one document")
    last = [] if found[-1] == file.length else [file.length]
    return np.concatenate([[0], found, last]).astype(np.int64)


def join_bounds(files: TokenFiles, of_each: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The end of a file's last document is where the next file's first one begins."""
    starts = [bounds[:-1] + start for bounds, start in zip(of_each, files.starts, strict=True)]
    return np.concatenate([*starts, files.ends[-1:]])
