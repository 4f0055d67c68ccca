"""Arrays as a source: in memory, in an .npz file, or .npy files read through a memory map or from a store."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Ids, count_rows, map_leaves
from hostmesh.worker.remote.arrays import open_npy_files
from hostmesh.worker.remote.content import of_remote
from hostmesh.worker.remote.stores.opening import list_folder, look_at_all
from hostmesh.worker.remote.urls import is_url, name_of
from hostmesh.worker.remote.whole import LocalFiles
from hostmesh.worker.sources.base import BlockSource
from hostmesh.worker.specs.spec import Spec
from hostmesh.worker.verify.content import Content, of_arrays, of_files


def array_source(tree: Any, name: str = "arrays", content: Content | None = None) -> BlockSource:
    """A tree of equally long arrays; row n of each makes record n. They are the content unless files are."""
    block = map_leaves(np.asarray, tree)
    length = count_rows(block, name)
    takes = map_leaves(_taker, block)
    return BlockSource(
        name, length, lambda ids: map_leaves(lambda take: take(ids, 0), takes), content or of_arrays(block)
    )


def _taker(array: NDArray[Any]) -> Callable[[Ids, int], NDArray[Any]]:
    """An array's own `take` is the fastest, but where rows are not contiguous it would first copy the whole array."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array.take
    return lambda ids, axis: array[ids]


def open_spec(spec: Spec) -> BlockSource:
    spec.check_options()
    if is_url(spec.rest):
        return open_remote_npz(spec.rest) if spec.scheme == "npz" else open_remote_npy(spec.rest)
    return open_npz(spec.rest) if spec.scheme == "npz" else open_npy(spec.rest)


def open_npz(path: str) -> BlockSource:
    return array_source(_load_npz(path, path), f"npz:{path}")


def open_remote_npz(url: str) -> BlockSource:
    files = LocalFiles(look_at_all([url]))
    try:
        return array_source(_load_npz(url, str(files.paths[0])), f"npz:{url}", of_remote(files.files))
    finally:
        files.close()


def open_remote_npy(url: str) -> BlockSource:
    """As `open_npy`: rows are fetched when they are read."""
    name = f"npy:{url}"
    if url.endswith(".npy"):
        array = open_npy_files([url])[0]
        return BlockSource(name, len(array), array.take, of_remote([array.file]))
    folder = f"{url.rstrip('/')}/"
    urls = [found for found in list_folder(folder) if re.fullmatch(r"[^/]+\.npy", found.removeprefix(folder))]
    if not urls:
        raise DataError(f"{url} holds no .npy file; wanted one NAME.npy for each field, or the name of a file")
    arrays = {name_of(found).removesuffix(".npy"): found for found in urls}
    columns = dict(zip(arrays, open_npy_files(urls), strict=True))
    length = count_rows(columns, name)
    content = of_remote([array.file for array in columns.values()])
    return BlockSource(name, length, lambda ids: {field: array.take(ids) for field, array in columns.items()}, content)


def _load_npz(name: str, path: str) -> dict[str, NDArray[Any]]:
    """Every array of the file, in memory."""
    with _readable(name), open(path, "rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ValueError("it is an .npy file: write npy: before its path")
        return dict(loaded)


def open_npy(path: str) -> BlockSource:
    """One file, or a folder of them as a dict; only the rows that are read are loaded."""
    if not Path(path).is_dir():
        array = _map_file(path)
        return array_source(array, f"npy:{path}", _with_records(of_files([path]), [array]))
    files = sorted(Path(path).glob("*.npy"))
    if not files:
        raise DataError(f"{path} holds no .npy file; wanted one NAME.npy for each field")
    arrays = {file.stem: _map_file(str(file)) for file in files}
    content = _with_records(of_files(list(map(str, files))), list(arrays.values()))
    return array_source(arrays, f"npy:{path}", content)


def _with_records(content: Content | None, arrays: Sequence[NDArray[Any]]) -> Content | None:
    """Where in each file a record lies: a change is told with the records that it is in."""
    if content is None:
        return None
    stored = [
        replace(one, records=(getattr(array, "offset", 0), array[:1].nbytes))
        if array.flags.c_contiguous and array[:1].nbytes
        else one
        for one, array in zip(content.stored, arrays, strict=True)
    ]
    return Content(tuple(stored))


def _map_file(path: str) -> NDArray[Any]:
    with _readable(path):
        if zipfile.is_zipfile(path):
            raise ValueError("it is an .npz file: write npz: before its path")
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
    return array


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds pickled objects, or is no file of NumPy's" if "pickle" in str(error) else str(error)
        raise DataError(f"{path} cannot be read: {reason}") from error
