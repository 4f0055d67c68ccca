"""Hugging Face: a Dataset as a source, with numbers straight from its Arrow table; an IterableDataset as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worker.errors import DataError
from worker.rows import Block, Ids, Record, check_ids, stack_records, take_rows
from worker.sources.arrow_columns import FixedColumn, ListColumn, make_column
from worker.sources.packages import load
from worker.sources.passes import take_shard
from worker.sources.reading import RecordSource, Source
from worker.sources.spec import Spec, unknown
from worker.stream import Stream

FILES = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}


def open_spec(spec: Spec) -> Source:
    """`hf:PATH_OR_NAME?split=train&config=…`: a saved folder, a file, a folder of files, or a name on the hub."""
    spec.check_options("split", "config")
    datasets = load("datasets", "datasets", "hugging-face", spec.text)
    try:
        found, split = _load(datasets, spec.rest, spec.options.get("config"), spec.options.get("split"))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{spec.text} cannot be loaded: {error}") from error
    return source(found, f"hf:{spec.rest}", split)


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
    # What the user made of the rows, by a format or transform of their own, is what they get.
    if data.format["type"] is not None:
        return RecordSource(name, len(data), lambda ids: _format_records(data, ids))
    return _open_table(data, name)


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Its own shards are used where it has enough of them. That it gives batches it cannot tell: say `batched`."""
    is_plain = data._formatting is None

    def begin(shard: int, of: int) -> Iterator[Any]:
        own = of > 1 and data.num_shards >= of
        items = data.shard(num_shards=of, index=shard) if own else data
        records = ({key: _as_array(value) for key, value in item.items()} if is_plain else item for item in items)
        return take_shard(records, 0, 1, False) if own else take_shard(records, shard, of, bool(batched))

    return Stream(begin, shards, bool(batched), "hf:IterableDataset")


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
class TableSource:
    """Columns of numbers are read from the table, the others through the dataset itself."""

    name: str
    dataset: Any
    indices: Ids | None  # rows of the table, where the dataset was shuffled or filtered
    columns: dict[str, FixedColumn | ListColumn | None]

    def __len__(self) -> int:
        return len(self.dataset)

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

    def _stack(self, names: list[str], ids: Ids) -> Block:
        if not len(ids):  # one record tells the shape of none
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


def _format_records(data: Any, ids: Ids) -> list[Record]:
    batch = data[ids.tolist()]
    return [{name: values[n] for name, values in batch.items()} for n in range(len(ids))]


def _as_array(value: Any) -> Any:
    """Lists as arrays, so that they do not pass for fields; images and all else as they are."""
    if isinstance(value, dict):
        return {key: _as_array(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    try:
        return np.array(value)
    except ValueError:  # lists of lists of different lengths
        return np.array(value, object)
