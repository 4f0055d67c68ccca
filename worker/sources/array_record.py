"""ArrayRecord files as a source: fixed-width fields decoded a block at a time, or a function for each record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import Block, Ids, Record
from hostmesh.worker.process.words import list_some
from hostmesh.worker.remote.content import of_remote
from hostmesh.worker.remote.stores.opening import expand, look_at_all
from hostmesh.worker.remote.urls import is_url
from hostmesh.worker.remote.whole import LocalFiles
from hostmesh.worker.sources.base import BlockSource, RecordSource
from hostmesh.worker.specs.functions import find_function
from hostmesh.worker.specs.spec import Spec
from hostmesh.worker.verify.content import Content, of_files

# For random access; beyond this the options of the reader made no measurable difference.
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
READER_BUFFER = 1 << 15
MAX_NAMED = 10  # records that cannot be read
VARYING = ":*"  # at the end of a field of any length

HOW_TO_DECODE = """say what is in a record, by one of
  fields=image:uint8:28x28,label:int32   values of fixed width, one after another, little-endian
  fields=label:int32,tokens:uint16:*     the last one may be of any length: the rest of the record
  decode=module:function                 a function that makes a record from bytes"""


def open_spec(spec: Spec) -> BlockSource | RecordSource:
    """`arrayrecord:PATH[,PATH…]?fields=…` or `?decode=module:function`; a path may hold `*` and `[…]`."""
    spec.check_options("fields", "decode")
    decode = spec.options.get("decode")
    function = find_function(decode, spec.text) if decode else None
    return array_record_source(spec.rest.split(","), fields=spec.options.get("fields"), decode=function)


def array_record_source(
    paths: str | Path | Sequence[str | Path],
    *,
    fields: str | None = None,
    decode: Callable[[bytes], Record] | None = None,
) -> BlockSource | RecordSource:
    """Several files in a row make one source; exactly one of `fields` and `decode` says what the bytes mean."""
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    name = f"arrayrecord:{','.join(map(str, given))}"
    if fields is not None and decode is None and fields.endswith(VARYING):
        decode, fields = VaryingFields.parse(fields, name).decode, None
    if fields is not None and decode is None:
        files, dtype = Files([FileSlice(path) for path in find_files(given)]), parse_fields(fields, name)
        return BlockSource(
            name, len(files), lambda ids: decode_fields(files.read(ids), ids, dtype, name), files.content
        )
    if decode is not None and fields is None:
        files = Files([FileSlice(path) for path in find_files(given)])
        return RecordSource(name, len(files), lambda ids: [decode(row) for row in files.read(ids)], files.content)
    raise DataError(f"{name}: {HOW_TO_DECODE}")


def find_files(patterns: Sequence[str | Path]) -> list[str]:
    """Each path, or the files it matches in the order of their names."""
    found = []
    for pattern in map(str, patterns):
        if is_url(pattern):
            found += expand(pattern)
            continue
        matches = sorted(glob(pattern, recursive=True)) if has_magic(pattern) else [pattern]
        if not matches:
            raise DataError(f"no file matches {pattern}")
        found += matches
    return found


def parse_fields(text: str, name: str) -> np.dtype[Any]:
    """`image:uint8:28x28,label:int32` as the dtype of one record."""
    try:
        parts = [part.split(":") for part in text.split(",")]
        fields = [(field, np.dtype(kind).newbyteorder("<"), _parse_shape(shape)) for field, kind, *shape in parts]
        return np.dtype(fields)
    except (TypeError, ValueError) as error:
        wanted = "wanted NAME:DTYPE or NAME:DTYPE:SHAPE, as in image:uint8:28x28,label:int32"
        raise DataError(f"{name}: {wanted}; found {text!r}: {error}") from error


def _parse_shape(shape: list[str]) -> tuple[int, ...]:
    if len(shape) > 1:
        raise ValueError("a field has too many parts")
    return tuple(int(size) for size in shape[0].split("x")) if shape else ()


@dataclass(frozen=True)
class VaryingFields:
    """Fields of fixed width, perhaps none, and one that takes the rest of a record."""

    fixed: np.dtype[Any]
    last: str
    dtype: np.dtype[Any]
    name: str

    @classmethod
    def parse(cls, text: str, name: str) -> VaryingFields:
        before, _, last = text.removesuffix(VARYING).rpartition(",")
        field = parse_fields(last, name)
        (varying,) = field.names or ()
        return cls(parse_fields(before, name) if before else np.dtype([]), varying, field[varying], name)

    def decode(self, row: bytes) -> Record:
        rest = len(row) - self.fixed.itemsize
        if rest < 0 or rest % self.dtype.itemsize:
            wanted = f"{self.fixed.itemsize} and a multiple of {self.dtype.itemsize} by its fields"
            raise DataError(f"{self.name}: a record has {len(row)} bytes, wanted {wanted}")
        values = np.frombuffer(row, self.fixed, 1)[0] if self.fixed.itemsize else {}
        record = {field: np.asarray(values[field]) for field in self.fixed.names or ()}
        return {**record, self.last: np.frombuffer(row, self.dtype, offset=self.fixed.itemsize)}


def decode_fields(rows: list[bytes], ids: Ids, dtype: np.dtype[Any], name: str) -> Block:
    for id_, row in zip(ids, rows, strict=True):
        if len(row) != dtype.itemsize:
            raise DataError(f"{name}: record {id_} has {len(row)} bytes, wanted {dtype.itemsize} by its fields")
    table = np.frombuffer(b"".join(rows), dtype)
    return {field: table[field].astype(table[field].dtype.newbyteorder("=")) for field in dtype.names or ()}


@dataclass(frozen=True)
class FileSlice:
    """Neighbouring records of a file; without `take` all after the first `skip`."""

    path: str
    skip: int = 0
    take: int | None = None


class Files:
    """The records of several slices, numbered through all of them."""

    def __init__(self, slices: Sequence[FileSlice]) -> None:
        self._slices = slices
        paths = list(dict.fromkeys(one.path for one in slices))
        self._remote = LocalFiles(look_at_all([path for path in paths if is_url(path)]))
        local = {file.url: str(path) for file, path in zip(self._remote.files, self._remote.paths, strict=True)}
        self._readers = [_open_file(local.get(one.path, one.path), one.path) for one in slices]
        counts = [_count(one, reader) for one, reader in zip(slices, self._readers, strict=True)]
        self._ends = np.array(list(accumulate(counts)), np.int64)
        if not sum(counts):
            raise DataError(f"no record in {', '.join(one.path for one in slices) or 'no file'}")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __reduce__(self) -> tuple[Any, ...]:
        """A data process opens the files anew."""
        return Files, (self._slices,)

    @property
    def content(self) -> Content | None:
        if self._remote.files:
            return of_remote(self._remote.files)
        return of_files(list(dict.fromkeys(one.path for one in self._slices)))

    def read(self, ids: Ids) -> list[bytes]:
        """In the order of `ids`. Reads in the order of the files, because neighbours are often compressed together."""
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        cuts = [0, *np.searchsorted(ordered, self._ends).tolist()]
        rows: list[bytes] = []
        for number, (start, stop) in enumerate(zip(cuts, cuts[1:], strict=False)):
            if start < stop:
                rows += self._read_file(number, ordered[start:stop])
        return [rows[n] for n in np.argsort(order).tolist()]

    def _read_file(self, number: int, ids: Ids) -> list[bytes]:
        file_slice, reader = self._slices[number], self._readers[number]
        first = (int(self._ends[number - 1]) if number else 0) - file_slice.skip
        try:
            rows: list[bytes] = reader.read((ids - first).tolist())
        except (RuntimeError, IndexError) as error:
            bad = [id_ for id_ in np.unique(ids).tolist() if not _is_readable(reader, id_ - first)]
            shown = list_some(list(map(str, bad)), MAX_NAMED, ", ", " ")
            raise DataError(f"{file_slice.path} cannot be read at the records {shown}: {error}") from error
        return rows


def _count(file_slice: FileSlice, reader: Any) -> int:
    there: int = reader.num_records()
    wanted = there - file_slice.skip if file_slice.take is None else file_slice.take
    if file_slice.skip + wanted > there:
        raise DataError(f"{file_slice.path} has {there} records, wanted {file_slice.skip + wanted}")
    return wanted


def _open_file(path: str, name: str) -> Any:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(path, options=READER_OPTIONS, file_reader_buffer_size=READER_BUFFER)
    if not reader.ok():  # it does not raise, and passes for a file without records
        raise DataError(f"{name} cannot be read as ArrayRecord: {_reason(reader)}")
    return reader


def _reason(reader: Any) -> str:
    try:
        reader.read([0])
    except RuntimeError as error:
        return str(error)
    return "the reason is not known"


def _is_readable(reader: Any, position: int) -> bool:
    try:
        reader.read([position])
    except (RuntimeError, IndexError):
        return False
    return True
