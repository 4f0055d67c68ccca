"""Files of tokens, mapped into memory or in a store: only what is read is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.arrays import RemoteArray, open_npy_files, open_raw_files
from hostmesh.worker.remote.content import of_remote
from hostmesh.worker.remote.urls import is_url
from hostmesh.worker.verify.content import Content, of_files

NO_DTYPE = "{} holds numbers of a kind that it does not say: give one, as in ?dtype=uint16"


class TokenFile:
    """The tokens of one file: raw numbers of a dtype, or an .npy file, which says its own."""

    def __init__(self, path: str, dtype: np.dtype[Any] | None, remote: RemoteArray | None = None) -> None:
        self.path, self._dtype, self.remote = path, dtype, remote
        self._tokens: NDArray[Any] | None = None
        self.dtype, self.length = self.tokens.dtype, len(self.tokens)

    @property
    def tokens(self) -> NDArray[Any] | RemoteArray:
        """They can be sliced."""
        if self.remote is not None:
            return self.remote
        if self._tokens is None:
            self._tokens = map_tokens(self.path, self._dtype)
        return self._tokens

    def read(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[NDArray[Any]]:
        if self.remote is not None:
            return self.remote.slices(starts, stops)
        tokens = self.tokens
        return [tokens[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process maps the file itself: a pickled map would hold all of the tokens."""
        return {**vars(self), "_tokens": None}


class TokenFiles:
    """The tokens of several files of one dtype, numbered through all of them."""

    def __init__(self, paths: Sequence[str], dtype: np.dtype[Any] | None) -> None:
        self.files = open_token_files(paths, dtype)
        first = self.files[0]
        for file in self.files:
            if file.dtype != first.dtype:
                raise DataError(f"{file.path} has dtype {file.dtype}, wanted {first.dtype} like {first.path}")
        self.ends = np.cumsum([file.length for file in self.files])
        self.starts = self.ends - [file.length for file in self.files]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.files[0].dtype

    @property
    def content(self) -> Content | None:
        remote = [file.remote.file for file in self.files if file.remote is not None]
        return of_remote(remote) if remote else of_files([file.path for file in self.files])

    def read(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[NDArray[Any]]:
        """The tokens of each pair of a start and a stop, which lie in one file; a view, where the file is mapped."""
        found = np.searchsorted(self.ends, starts, side="right").clip(max=len(self.files) - 1)
        base = self.starts[found]
        starts, stops = starts - base, stops - base
        if any(file.remote is not None for file in self.files):
            return self._read_by_file(found, starts, stops)
        where = zip(found.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [self.files[number].tokens[start:stop] for number, start, stop in where]

    def _read_by_file(
        self, found: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[NDArray[Any]]:
        """What lies in one file is asked for together."""
        parts: dict[int, NDArray[Any]] = {}
        for number in np.unique(found).tolist():
            rows = np.flatnonzero(found == number)
            parts |= zip(rows.tolist(), self.files[number].read(starts[rows], stops[rows]), strict=True)
        return [parts[row] for row in range(len(starts))]


def open_token_files(paths: Sequence[str], dtype: np.dtype[Any] | None) -> list[TokenFile]:
    remote = open_remote_tokens([path for path in paths if is_url(path)], dtype)
    return [TokenFile(path, dtype, remote.get(path)) for path in paths]


def open_remote_tokens(urls: list[str], dtype: np.dtype[Any] | None) -> dict[str, RemoteArray]:
    raw = [url for url in urls if not url.endswith(".npy")]
    if raw and dtype is None:
        raise DataError(NO_DTYPE.format(raw[0]))
    arrays = [*open_npy_files([url for url in urls if url not in raw]), *(open_raw_files(raw, dtype) if dtype else ())]
    for array in arrays:
        check_tokens(array.file.url, array, dtype)
    return {array.file.url: array for array in arrays}


def parse_dtype(text: str, name: str) -> np.dtype[Any]:
    """The dtype of tokens in a raw file, little-endian."""
    try:
        dtype = np.dtype(text)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "iu":
        raise DataError(f"{name}: dtype wants a kind of integers such as uint16 or int32; found {text!r}")
    return dtype.newbyteorder("<")


def map_tokens(path: str, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    try:
        tokens = _map_npy(path, dtype) if path.endswith(".npy") else _map_raw(path, dtype)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, EOFError, ValueError) as error:
        raise error if isinstance(error, DataError) else DataError(f"{path} cannot be read: {error}") from error
    return tokens.view(np.ndarray)  # slices of NumPy's class for mapped files take four times as long


def _map_raw(path: str, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    if dtype is None:
        raise DataError(NO_DTYPE.format(path))
    size = os.path.getsize(path)
    if not size:
        raise DataError(f"{path} is empty; wanted tokens of dtype {dtype.name}")
    if size % dtype.itemsize:
        wanted = f"wanted a multiple of {dtype.itemsize}, as dtype {dtype.name} has"
        raise DataError(f"{path} has {size:,} bytes, {wanted}: it has another dtype, or is not complete")
    return np.memmap(path, dtype, "r")


def _map_npy(path: str, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    tokens: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
    check_tokens(path, tokens, dtype)
    return tokens


def check_tokens(path: str, tokens: NDArray[Any] | RemoteArray, dtype: np.dtype[Any] | None) -> None:
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        found = f"{tokens.dtype.name} of shape {tokens.shape}"
        raise DataError(f"{path} wants integers in one axis; found {found}: rows of one length are opened by npy:")
    if dtype is not None and dtype != tokens.dtype:
        raise DataError(f"{path} has dtype {tokens.dtype.name}, not {dtype.name}: leave dtype away, it says its own")
    if not len(tokens):
        raise DataError(f"{path} is empty; wanted tokens")
