"""An array in a store, of which rows are read: an .npy file, or raw numbers."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.fetching import fetch
from hostmesh.worker.remote.pool import run_all
from hostmesh.worker.remote.ranges import Units, cut_at_blocks, fits_cache, read_spans
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.opening import find_store, look_at_all

HEADER = 4096  # bytes that nearly always hold the whole header of an .npy file
MAX_HEADER = 1 << 20


@dataclass(frozen=True)
class RemoteArray:
    """Rows are read where they lie; nothing is kept but what the cache keeps. It can be pickled."""

    units: Units
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.units.count

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.row_shape)

    @property
    def ndim(self) -> int:
        return 1 + len(self.row_shape)

    @property
    def file(self) -> RemoteFile:
        return self.units.file

    def take(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        size = self.units.size
        out = np.empty((len(ids), *self.row_shape), self.dtype)
        if not len(ids) or not size:
            return out
        rows = out.reshape(-1).view(np.uint8).data

        def serve(number: int, data: memoryview) -> None:
            rows[number * size : (number + 1) * size] = data

        read_spans(self.units, ids, ids + 1, serve)
        return out

    def slices(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[NDArray[Any]]:
        """The rows from each start to its stop."""
        size = self.units.size
        ends = np.cumsum(stops - starts)
        begins = ends - (stops - starts)
        out = np.empty((int(ends[-1]) if len(ends) else 0, *self.row_shape), self.dtype)
        rows = out.reshape(-1).view(np.uint8).data
        is_there = np.flatnonzero(stops > starts)
        firsts, lasts, owner = cut_at_blocks(self.units, starts[is_there], stops[is_there])
        owner = is_there[owner]
        places = begins[owner] + firsts - starts[owner]

        def serve(number: int, data: memoryview) -> None:
            at = int(places[number]) * size
            rows[at : at + len(data)] = data

        read_spans(self.units, firsts, lasts, serve)
        return [out[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, step = rows.indices(len(self))
        assert step == 1
        return self.slices(np.array([start]), np.array([max(start, stop)]))[0]


def open_npy_files(urls: list[str]) -> list[RemoteArray]:
    files = look_at_all(urls)
    is_kept = fits_cache(files)
    return run_all([partial(_open_npy, file, is_kept) for file in files])


def open_raw_files(urls: list[str], dtype: np.dtype[Any]) -> list[RemoteArray]:
    """Numbers of one dtype, one after another."""
    files = look_at_all(urls)
    is_kept = fits_cache(files)
    for file in files:
        if file.size % dtype.itemsize:
            wanted = f"wanted a multiple of {dtype.itemsize}, as dtype {dtype.name} has"
            raise DataError(f"{file.url} has {file.size:,} bytes, {wanted}: it has another dtype, or is not complete")
    kinds = [Units(file, 0, dtype.itemsize, file.size // dtype.itemsize, is_kept) for file in files]
    return [RemoteArray(units, dtype, ()) for units in kinds]


def _open_npy(file: RemoteFile, is_kept: bool) -> RemoteArray:
    try:
        shape, is_fortran, dtype, offset = _read_header(file)
    except (ValueError, EOFError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file.url} cannot be read: it is no .npy file ({error})") from error
    if dtype.hasobject:
        raise DataError(f"{file.url} cannot be read: it holds pickled objects")
    if is_fortran and len(shape) > 1:
        raise DataError(
            f"{file.url} is stored column by column; wanted row by row: np.save(…, np.ascontiguousarray(a))"
        )
    if not shape:
        raise DataError(f"{file.url} is a single {dtype.name}; wanted an array whose first axis counts rows")
    size = dtype.itemsize * math.prod(shape[1:])
    if file.size < offset + size * shape[0]:
        wanted = f"wanted {offset + size * shape[0]:,} by its header"
        raise DataError(f"{file.url} has {file.size:,} bytes, {wanted}: it is not complete")
    return RemoteArray(Units(file, offset, size, shape[0], is_kept), dtype, shape[1:])


def _read_header(file: RemoteFile) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    store = find_store(file.url)
    length = HEADER
    while True:
        data = io.BytesIO(fetch(store, file, 0, min(length, file.size)))
        if data.getvalue()[:2] == b"PK":
            raise DataError(f"{file.url} cannot be read: it is an .npz file: write npz: before its path")
        try:
            version = np.lib.format.read_magic(data)  # type: ignore[no-untyped-call]
            read: Any = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}.get(version[0])
            if read is None:
                raise DataError(f"{file.url} cannot be read: version {version} of .npy is not known")
            shape, is_fortran, dtype = read(data)
            return shape, is_fortran, dtype, data.tell()
        except ValueError as error:
            if isinstance(error, DataError) or length >= min(file.size, MAX_HEADER):
                raise
            length *= 16
