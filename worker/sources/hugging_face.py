"""Hugging Face: a Dataset as a source, with numbers straight from its Arrow table; an IterableDataset as a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, stack_records, take_rows
from hostmesh.worker.remote.content import of_remote
from hostmesh.worker.remote.folders import Mirror
from hostmesh.worker.remote.stores.opening import list_folder
from hostmesh.worker.remote.urls import is_url
from hostmesh.worker.sources.arrow_bytes import store_column
from hostmesh.worker.sources.arrow_columns import FixedColumn, ListColumn, make_column
from hostmesh.worker.sources.base import BaseSource, RecordSource, Source
from hostmesh.worker.sources.hugging_face_steps import Examples, find_items
from hostmesh.worker.specs.packages import load
from hostmesh.worker.specs.spec import Spec, unknown
from hostmesh.worker.streams.batches import decide
from hostmesh.worker.streams.passes import Pass
from hostmesh.worker.streams.stream import Stream, StreamPart
from hostmesh.worker.verify.content import Content, fingerprint_bytes, stamp_files

TABLES = ("arrow", "pandas", "polars")
FILES = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}


def open_spec(spec: Spec) -> Source:
    """`hf:PATH_OR_NAME?split=train&config=…`: a saved folder, a file, a folder of files, or a name on the hub."""
    spec.check_options("split", "config")
    datasets = load("datasets", "datasets", "hugging-face", spec.text)
    where, split, mirror = spec.rest, spec.options.get("split"), None
    if is_url(where):
        mirror, split = _fetch(where, split)
        where = str(mirror.path)
    try:
        found, split = _load(datasets, where, spec.options.get("config"), split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        said = str(error) if mirror is None else mirror.name_urls(str(error))
        raise DataError(f"{spec.text} cannot be loaded: {said}") from error
    except IndexError as error:  # of `datasets`, for a saved folder of no rows
        raise DataError(f"{spec.text} cannot be loaded: it has no records, or is not complete") from error
    opened = source(found, f"hf:{spec.rest}", split)
    return opened if mirror is None else _with_mirror(opened, mirror)


def _fetch(url: str, split: str | None) -> tuple[Mirror, str | None]:
    """Of a saved dict of splits only the one that is wanted."""
    base = url.rstrip("/")
    if split is None or f"{base}/dataset_dict.json" not in list_folder(base) or not list_folder(f"{base}/{split}"):
        return Mirror(url), split
    return Mirror(f"{base}/{split}"), None


def _with_mirror(opened: Source, mirror: Mirror) -> Source:
    """Known by the files in the store, which stay in the cache as long as the source is used."""
    content = of_remote(mirror.files)
    if isinstance(opened, TableSource):
        opened = replace(opened, stored_as=content)
    elif isinstance(opened, RecordSource):
        opened = replace(opened, content=content)
    mirror.keep_with(opened)
    return opened


def source(data: Any, name: str = "hf:Dataset", split: str | None = None) -> Source:
    """A dict of splits wants one of them, unless it has no other."""
    if isinstance(data, dict):
        if split is None and len(data) != 1:
            raise DataError(f"{name} has the splits {', '.join(data)}: pick one, as in data['train'] or ?split=train")
        if split is not None and split not in data:
            raise DataError(f"{name}: {unknown('split', split, data)}")
        return source(data[split or next(iter(data))], name)
    if not hasattr(data, "with_transform"):
        raise DataError(f"{name} only comes in order: open it without streaming, or give as_stream one of its splits")
    data = _format_on_host(data)
    # A format or transform of the user's own decides what a row is.
    if data.format["type"] is not None:
        return RecordSource(name, len(data), lambda ids: _format_records(data, ids))
    return _open_table(data, name)


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Its own shards are used where it has enough of them."""
    name = "hf:IterableDataset"
    in_blocks, check = decide(find_items(data._ex_iterable), batched, name)
    is_plain = data._formatting is None
    if is_jax := not is_plain and data._formatting.format_type == "jax":
        data = data.with_format("numpy")  # as in _format_on_host
    convert = _as_arrays if is_plain else _widen_all if is_jax else None

    def begin(shard: int, of: int) -> Pass:
        own = of > 1 and data.num_shards >= of
        items = Examples(data.shard(num_shards=of, index=shard) if own else data)
        return Pass(items, *((0, 1) if own else (shard, of)), in_blocks, check, convert)

    return Stream(begin, shards, in_blocks, name, part=_find_part(data))


def _find_part(data: Any) -> StreamPart | None:
    """What split_dataset_by_node has noted."""
    if (found := getattr(data, "_distributed", None)) is None or found.world_size == 1:
        return None
    return StreamPart("split_dataset_by_node", found.rank, found.world_size, "leave it out")


def _load(datasets: Any, where: str, config: str | None, split: str | None) -> tuple[Any, str | None]:
    """What is there, and the split that is still to be taken from it."""
    path = Path(where).expanduser()
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        return datasets.load_from_disk(str(path)), split
    if path.is_file():
        if path.suffix not in FILES:
            raise ValueError(f"a file wants one of the endings {', '.join(FILES)}, found {path.suffix or 'none'}")
        return datasets.load_dataset(FILES[path.suffix], data_files=str(path), split=split), None
    if not path.is_dir() and where.startswith(("/", ".", "~")):
        raise FileNotFoundError("it does not exist")
    return datasets.load_dataset(str(path) if path.is_dir() else where, config, split=split), None


@dataclass(frozen=True)
class TableSource(BaseSource):
    """Columns of numbers are read from the table, the others through the dataset itself."""

    name: str
    dataset: Any
    indices: Ids | None  # rows of the table, where the dataset was shuffled or filtered
    columns: dict[str, FixedColumn | ListColumn | None]
    stored_as: Content | None = None  # of files in a store

    def __len__(self) -> int:
        return len(self.dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        """A data process opens the table anew: the files are mapped again instead of being copied."""
        return _open_table, (self.dataset, self.name)

    @property
    def content(self) -> Content | None:
        """Rows, not the files: those that a host has made for itself may differ where rows do not."""
        if self.stored_as is not None:
            return self.stored_as
        found = [store_column(name, column, self.dataset, self._rows) for name, column in self.columns.items()]
        stored = tuple(replace(one, stamp=self._stamp) for one in found if one is not None)
        return Content(stored) if stored else None

    def _stamp(self) -> list[Any] | None:
        """Of the files that the table is mapped from, and of the rows that are taken; a table in memory has none."""
        found = stamp_files([file["filename"] for file in self.dataset.cache_files])
        return [*found, 0 if self.indices is None else fingerprint_bytes(self.indices)] if found else None

    def read(self, ids: Ids) -> Block:
        check_ids(ids, len(self), self.name)
        fixed = {name: column for name, column in self.columns.items() if isinstance(column, FixedColumn)}
        block = {name: column.read(self._rows(ids)) for name, column in fixed.items()}
        if len(fixed) < len(self.columns):
            block |= self._stack([name for name in self.columns if name not in fixed], ids)
        return {name: block[name] for name in self.columns}

    def records(self, ids: Ids) -> list[Record]:
        check_ids(ids, len(self), self.name)
        return self._fetch(list(self.columns), ids)

    def lengths(self, ids: Ids, field: str | None = None) -> NDArray[np.int64] | None:
        """How long the field is in these records, or the longest array of one axis; None where only reading tells."""
        columns = list(self.columns.values()) if field is None else [self.columns.get(field)]
        found = [None if column is None else column.row_lengths(self._rows(ids)) for column in columns]
        known = [lengths for lengths in found if lengths is not None]
        return np.max(known, axis=0) if known and None not in columns else None

    def pieces(
        self, field: str, ids: Ids, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[NDArray[Any]] | None:
        """Of each record the values of a field from a start to a stop; None where it is read otherwise."""
        column = self.columns.get(field)
        return column.pieces(self._rows(ids), starts, stops) if isinstance(column, ListColumn) else None

    def _stack(self, names: list[str], ids: Ids) -> Block:
        if not len(ids):  # the shape of an empty block is that of any record
            return take_rows(stack_records(self._fetch(names, np.zeros(1, np.int64)), [0]), ids)
        return stack_records(self._fetch(names, ids), ids)

    def _fetch(self, names: list[str], ids: Ids) -> list[Record]:
        others = [name for name in names if self.columns[name] is None]
        values: dict[str, list[Any]] = {}
        for name in names:
            if (column := self.columns[name]) is not None:
                values[name] = column.rows(self._rows(ids))
        if others:
            values |= {name: list(map(_as_array, part)) for name, part in self._ask_dataset(others, ids).items()}
        return [{name: values[name][n] for name in names} for n in range(len(ids))]

    def _ask_dataset(self, names: list[str], ids: Ids) -> dict[str, Any]:
        found: dict[str, Any] = self.dataset.select_columns(names)[ids.tolist()]
        return found

    def _rows(self, ids: Ids) -> Ids:
        return ids if self.indices is None else self.indices[ids]


def _open_table(data: Any, name: str) -> TableSource:
    indices = None if data._indices is None else data._indices.column(0).to_numpy().astype(np.int64)
    columns = {column: make_column(column, data.data.column(column)) for column in data.format["columns"]}
    return TableSource(name, data, indices, columns)


def _format_on_host(data: Any) -> Any:
    """Replaces two kinds of formats by one that gives the same numbers.

    `jax` puts every row on device 0, which only process 0 can reach; a table's has no rows to take one by one.
    """
    kind, columns = data.format["type"], data.format["columns"]
    if kind == "jax":
        options = {name: value for name, value in data.format["format_kwargs"].items() if name != "device"}
        return data.with_format("numpy", columns, data.format["output_all_columns"], **options)
    return data.with_format(None, columns) if kind in TABLES else data


def _format_records(data: Any, ids: Ids) -> list[Record]:
    batch = data[ids.tolist()]
    return [{name: values[n] for name, values in batch.items()} for n in range(len(ids))]


def _as_arrays(example: dict[str, Any]) -> dict[str, Any]:
    return {key: _as_array(value) for key, value in example.items()}


def _widen_all(example: dict[str, Any]) -> dict[str, Any]:
    return {key: _widen(value) for key, value in example.items()}


def _as_array(value: Any) -> Any:
    """Lists become arrays, because a list would be taken for fields; images and anything else stay as they are."""
    if isinstance(value, dict):
        return {key: _as_array(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    try:
        return np.array(value)
    except ValueError:  # lists of lists of different lengths
        return np.array(value, object)


def _widen(value: Any) -> Any:
    """NumPy's format leaves a single number of a stream as it was stored, where jax's has one type for all."""
    if isinstance(value, np.integer):
        return np.int64(value)
    return np.float32(value) if isinstance(value, np.floating) else value
