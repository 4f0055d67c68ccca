"""Several sources under one numbering: the records of the first, then those of the second, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, as_data_error
from hostmesh.worker.loading.rows import Block, Ids, Record, check_ids, leaves, map_leaves, take_rows
from hostmesh.worker.mixing.varying import LengthsOfParts, pieces_of_parts
from hostmesh.worker.mixing.views import identity_of
from hostmesh.worker.process.words import list_some
from hostmesh.worker.remote.url_secrets import hide_secrets
from hostmesh.worker.sources import as_source
from hostmesh.worker.sources.base import BaseSource, Source
from hostmesh.worker.streams.stream import Stream
from hostmesh.worker.verify.content import Content, Stored

Read = TypeVar("Read")
Arrays: TypeAlias = dict[str, NDArray[Any]]
Kinds: TypeAlias = "dict[str, tuple[np.dtype[Any], tuple[int, ...]] | str]"

CONTAINER = "the row"  # stands for the kind of container among the kinds of the arrays in it


class Parts:
    """Sources by name. The records of part i have the ids from `starts[i]` on."""

    def __init__(self, sources: Mapping[str, Source], whole: str) -> None:
        """`whole` is what messages call all of them together."""
        self.names, self.sources, self._whole = tuple(sources), tuple(sources.values()), whole
        self.lengths = tuple(len(source) for source in self.sources)
        self.starts = np.cumsum([0, *self.lengths[:-1]], dtype=np.int64)

    @property
    def count(self) -> int:
        """The records of all parts."""
        return sum(self.lengths)

    def read(self, ids: Ids) -> Block:
        """One block, whose rows come from the parts in the order of the ids; the rows of all parts must be alike."""
        check_ids(ids, self.count, self._whole)
        if not len(ids):
            return take_rows(self.sources[0].read(np.zeros(1, np.int64)), ids)
        wanted, split = self._row_kinds, list(self.split(ids))
        blocks = [self._read_part(part, own) for part, _, own in split]
        if len(blocks) == 1:
            return blocks[0]
        arrays = [arrays_of(block) for block in blocks]
        for (part, _, _), block, found in zip(split, blocks, arrays, strict=True):
            self._check_kinds(part, kinds_of(block, found), wanted)
        merged = _merge(arrays, [rows for _, rows, _ in split], len(ids))
        if arrays[0] is blocks[0]:
            return merged
        values = iter(merged.values())
        return map_leaves(lambda _: next(values), blocks[0])

    def records(self, ids: Ids) -> list[Record]:
        check_ids(ids, self.count, self._whole)
        found: list[Record] = [None] * len(ids)
        for part, rows, own in self.split(ids):
            records = self._name_failure(part, own, self.sources[part].records)
            for row, record in zip(rows.tolist(), records, strict=True):
                found[row] = record
        return found

    def locate(self, ids: Any) -> list[tuple[str, int]]:
        """The part of each record, and its number there."""
        asked = np.asarray(ids, np.int64).reshape(-1)
        check_ids(asked, self.count, self._whole)
        parts = self._find(asked)
        own = asked - self.starts[parts]
        return [(self.names[part], number) for part, number in zip(parts.tolist(), own.tolist(), strict=True)]

    @property
    def content(self) -> Content | None:
        """What is behind all parts; what several of them share is there once."""
        seen: set[object] = set()
        stored: list[Stored] = []
        for name, source in zip(self.names, self.sources, strict=True):
            found: Content | None = getattr(source, "content", None)
            for one in found.stored if found is not None else ():
                key = one.file or id(one)
                if key not in seen:
                    seen.add(key)
                    stored.append(replace(one, name=f"{one.name} of {name}"))
        return Content(tuple(stored)) if stored else None

    @cached_property
    def lengths_of_records(self) -> LengthsOfParts | None:
        return LengthsOfParts.of(self.sources, self.split)

    def pieces(self, field: str, ids: Ids, starts: Ids, stops: Ids) -> list[NDArray[Any]] | None:
        """Of each record the tokens from a start to a stop, where all parts can read so."""
        return pieces_of_parts(self.sources, self.names, self.split, field, ids, starts, stops)

    def _find(self, ids: Ids) -> NDArray[np.int64]:
        return self.starts.searchsorted(ids, "right") - 1

    def split(self, ids: Ids) -> Iterator[tuple[int, NDArray[np.int64], Ids]]:
        """Each part that is needed, the rows that come from it, and their ids in its own numbering."""
        parts = self._find(ids)
        for part in np.bincount(parts).nonzero()[0].tolist():
            rows = (parts == part).nonzero()[0]
            yield part, rows, ids[rows] - self.starts[part]

    def _read_part(self, part: int, ids: Ids) -> Block:
        return self._name_failure(part, ids, self.sources[part].read)

    def _name_failure(self, part: int, ids: Ids, read: Callable[[Ids], Read]) -> Read:
        """What `read` gives. Where it fails, and one of the records fails alone, the message names that one."""
        try:
            return read(ids)
        except Exception as error:
            for id_ in ids:
                try:
                    read(np.array([id_]))
                except Exception as alone:
                    raise as_data_error(f"part {self.names[part]}, record {id_}", alone) from alone
            raise as_data_error(f"part {self.names[part]}", error) from error

    @cached_property
    def _row_kinds(self) -> Kinds:
        """Of the first part, once the first rows of all parts have been found to be alike."""
        first = np.zeros(1, np.int64)
        blocks = [self._read_part(part, first) for part in range(len(self.names))]
        kinds = [kinds_of(block, arrays_of(block)) for block in blocks]
        for part, found in enumerate(kinds):
            self._check_kinds(part, found, kinds[0])
        return kinds[0]

    def _check_kinds(self, part: int, found: Kinds, wanted: Kinds) -> None:
        if found == wanted:
            return
        keys = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
        shown = [f"{key or 'it'} is {_show(wanted, key)} and {_show(found, key)}" for key in keys]
        raise DataError(
            f"{self._whole} wants rows of one kind; found in {self.names[0]} and {self.names[part]}:"
            f" {list_some(shown)}; make them alike with .map(function) of a part"
        )


class Joined:
    """A source of several parts, which are numbered through."""

    parts: Parts

    def read(self, ids: Ids) -> Block:
        return self.parts.read(ids)

    def records(self, ids: Ids) -> list[Record]:
        return self.parts.records(ids)

    def locate(self, ids: Any) -> list[tuple[str, int]]:
        """The part of each record and its number there, for numbers such as `loader.record_ids(step)` gives. A part of
        `concatenate` is called by its place in the call: `0` is the first."""
        return self.parts.locate(ids)

    @property
    def content(self) -> Content | None:
        return self.parts.content

    @property
    def lengths(self) -> LengthsOfParts | None:
        """How long records are, where all parts know it."""
        return self.parts.lengths_of_records

    def pieces(self, field: str, ids: Ids, starts: Ids, stops: Ids) -> list[NDArray[Any]] | None:
        return self.parts.pieces(field, ids, starts, stops)

    def _named(self) -> list[tuple[str, Source]]:
        return list(zip(self.parts.names, self.parts.sources, strict=True))


class Concatenation(Joined, BaseSource):
    """Sources one after another."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self.name = f"concatenate({', '.join(source.name for source in sources.values())})"
        self.parts = Parts(sources, "concatenate")

    def __len__(self) -> int:
        return self.parts.count

    def identity(self) -> Mapping[str, str]:
        return {
            f"{key} of {name}": value for name, source in self._named() for key, value in identity_of(source).items()
        }


def concatenate(*sources: Any) -> Concatenation:
    """One source of several, one after another; each may be anything that a `Loader` takes as a source."""
    if not sources:
        raise DataError("concatenate wants at least one source; found none")
    return Concatenation({str(n): open_part("concatenate", str(n), data) for n, data in enumerate(sources)})


def open_part(whole: str, name: str, data: Any) -> Source:
    """A source with records by number: streams have none, and a mixture has an order of its own."""
    try:
        source = as_source(data)
    except DataError as error:
        raise as_data_error(f"{whole}: part {hide_secrets(name)}", error) from error
    if isinstance(source, Stream):
        raise DataError(
            f"{whole} wants records by number; part {name} is a stream ({source.name}), whose records only come in"
            " order: open it without streaming, or mix it in its own library"
        )
    if hasattr(source, "make_order"):
        raise DataError(
            f"{whole} wants sources; part {name} is a mixture ({source.name}), which has an order of its own:"
            " give its parts, with their weights multiplied"
        )
    if not len(source):
        raise DataError(f"{whole} wants parts with at least one record; part {name} ({source.name}) has none")
    return source


def arrays_of(block: Block) -> Arrays:
    """By path: a plain dict of arrays as it is."""
    if type(block) is dict and all(type(leaf) is np.ndarray for leaf in block.values()):
        return block
    return {path: leaf if type(leaf) is np.ndarray else np.asarray(leaf) for path, leaf in leaves(block)}


def kinds_of(block: Block, arrays: Arrays) -> Kinds:
    """What its rows are: a dtype and a shape for each array, by its path; and the kind of container."""
    found: Kinds = {path: (array.dtype, array.shape[1:]) for path, array in arrays.items()}
    if not isinstance(block, dict):
        found[CONTAINER] = type(block).__name__
    return found


def _show(kinds: Kinds, path: str) -> str:
    """`uint8[28,28]`."""
    kind = kinds.get(path, "not there")
    if isinstance(kind, str):
        return kind
    dtype, shape = kind
    return f"{'text' if dtype.hasobject else dtype.name}[{','.join(map(str, shape))}]"


def _merge(blocks: list[Arrays], rows: list[NDArray[np.int64]], count: int) -> Arrays:
    """The rows of each block at their places."""
    merged = {}
    for path, first in blocks[0].items():
        merged[path] = array = np.empty((count, *first.shape[1:]), first.dtype)
        for block, places in zip(blocks, rows, strict=True):
            array[places] = block[path]
    return merged
