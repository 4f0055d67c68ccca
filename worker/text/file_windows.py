"""Windows of one length over the tokens of files: record k of a file begins at k × stride."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block, Ids
from hostmesh.worker.sources.base import BlockSource
from hostmesh.worker.text.token_files import TokenFiles

TOKENS, TARGETS = "tokens", "targets"


@dataclass(frozen=True)
class FileWindows:
    """No window goes across two files. With `shift`, every row also has the tokens that many places further on."""

    files: TokenFiles
    length: int
    stride: int
    shift: int

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many windows each file has."""
        rest = np.array([file.length for file in self.files.files]) - self.length - self.shift
        return np.where(rest < 0, 0, rest // self.stride + 1)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    def read(self, ids: Ids) -> Block:
        number = np.searchsorted(self.ends, ids, side="right")
        within = ids - (self.ends - self.counts)[number]
        starts = self.files.starts[number] + within * self.stride
        tokens = np.empty((len(ids), self.length + self.shift), self.files.dtype.newbyteorder("="))
        for row, window in zip(tokens, self.files.read(starts, starts + tokens.shape[1]), strict=True):
            row[:] = window
        return split_targets(tokens, self.length, self.shift)


def split_targets(tokens: NDArray[Any], length: int, shift: int) -> Block:
    if not shift:
        return {TOKENS: tokens}
    return {TOKENS: tokens[:, :length].copy(), TARGETS: tokens[:, shift:].copy()}


def window_source(files: TokenFiles, name: str, length: int, stride: int, shift: int = 0) -> BlockSource:
    windows = FileWindows(files, length, stride, shift)
    if not windows.counts.any():
        longest = max(files.files, key=lambda file: file.length)
        wanted = f"length={length}{f' and {shift} more for the targets' if shift else ''}"
        where = f"{longest.path} has {longest.length:,} tokens{' and is the longest' if len(files.files) > 1 else ''}"
        raise DataError(f"{name}: no window of {wanted} fits: {where}")
    return BlockSource(name, int(windows.ends[-1]), windows.read, files.content)
