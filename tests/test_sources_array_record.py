"""ArrayRecord files: several as one source, decoded by fields or by a function, and named where they are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from test_sources import check_contract, make_ids

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources import open_source
from hostmesh.worker.sources.array_record import array_record_source, parse_fields
from hostmesh.worker.sources.base import Source

FIELDS = "image:uint8:4x3,label:int32"
COUNT = 300
random = np.random.default_rng(0)
BLOCK = {
    "image": random.integers(0, 256, (COUNT, 4, 3)).astype(np.uint8),
    "label": random.integers(-(2**31), 2**31, COUNT).astype(np.int32),
}


def encode(n: int) -> bytes:
    return bytes(BLOCK["image"][n].tobytes()) + bytes(BLOCK["label"][n].astype("<i4").tobytes())


def write(path: Path, rows: list[bytes], options: str = "group_size:1") -> str:
    writer = ArrayRecordWriter(str(path), options)
    for row in rows:
        writer.write(row)
    writer.close()
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files, one of them empty and one compressed in groups."""
    folder = tmp_path_factory.mktemp("records")
    write(folder / "part-0", [encode(n) for n in range(100)])
    write(folder / "part-1", [])
    write(folder / "part-2", [encode(n) for n in range(100, COUNT)], "group_size:16")
    return folder


def decode(row: bytes) -> Any:
    return {"image": np.frombuffer(row[:12], np.uint8).reshape(4, 3), "label": np.frombuffer(row[12:], "<i4")[0]}


def decode_ragged(row: bytes) -> Any:
    return np.frombuffer(row, np.uint8)


@pytest.mark.parametrize("paths", ["{0}/part-0,{0}/part-1,{0}/part-2", "{0}/part-*"])
def test_files_in_a_row_are_one_source(folder: Path, paths: str) -> None:
    check_contract(open_source(f"arrayrecord:{paths.format(folder)}?fields={FIELDS}"), BLOCK)


def test_a_function_decodes_each_record(folder: Path) -> None:
    check_contract(open_source(f"arrayrecord:{folder}/part-*?decode={__name__}:decode"), BLOCK)
    check_contract(array_record_source(sorted(folder.iterdir()), decode=decode), BLOCK)


def test_records_of_any_length_come_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path / "ragged", [b"a", b"bcd", b""])
    source = open_source(f"arrayrecord:{path}?decode={__name__}:decode_ragged")
    assert isinstance(source, Source)
    assert [len(record) for record in source.records(make_ids(1, 2, 0))] == [3, 0, 1]
    with pytest.raises(DataError, match=r"record 2: it has shape \(0,\), wanted \(3,\) like record 1"):
        source.read(make_ids(1, 2))


@pytest.mark.parametrize("options", ["", f"?fields={FIELDS}&decode={__name__}:decode"])
def test_exactly_one_way_to_decode_is_wanted(folder: Path, options: str) -> None:
    with pytest.raises(DataError, match=r"by one of\n  fields=(.|\n)*decode=module:function"):
        open_source(f"arrayrecord:{folder}/part-0{options}")


@pytest.mark.parametrize("fields", ["image", "image:uint9", "image:uint8:4xx", "a:int8,a:int8", "a:int8:2:2", ""])
def test_bad_fields_are_told_what_is_wanted(folder: Path, fields: str) -> None:
    with pytest.raises(DataError, match="wanted NAME:DTYPE or NAME:DTYPE:SHAPE"):
        array_record_source(folder / "part-0", fields=fields)


def test_fields_are_little_endian_on_any_machine() -> None:
    assert parse_fields("a:int32,b:float32:2x3", "it") == np.dtype([("a", "<i4"), ("b", "<f4", (2, 3))])


def test_a_record_of_the_wrong_length_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed", [encode(0), encode(1) + b"x", encode(2)[:-1]])
    source = array_record_source(path, fields=FIELDS)
    with pytest.raises(DataError, match="record 1 has 17 bytes, wanted 16 by its fields"):
        source.read(make_ids(0, 1, 2))


@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "a byte short", "folder"])
def test_a_file_that_cannot_be_opened_is_named(folder: Path, tmp_path: Path, damage: str) -> None:
    whole, path = (folder / "part-0").read_bytes(), tmp_path / "damaged"
    contents = {"empty": b"", "text": b"hello " * 99, "cut": whole[: len(whole) // 2], "a byte short": whole[:-1]}
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(DataError, match=f"{path} cannot be read as ArrayRecord: .+"):
        array_record_source([folder / "part-0", path], fields=FIELDS)


def test_a_record_that_cannot_be_read_is_named_with_its_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    write(path, [encode(n) for n in range(100)], "group_size:1,uncompressed")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(encode(50), encode(51)))
    source = array_record_source([folder / "part-2", path], fields=FIELDS)
    with pytest.raises(DataError, match=f"{path} cannot be read at the records [0-9, ]+: .*orrupt") as caught:
        source.read(np.arange(COUNT))
    named = {int(word) for word in str(caught.value).split("records ")[1].split(":")[0].split(", ")}
    assert named == {250}
    good = np.setdiff1d(np.arange(COUNT), list(named))
    assert len(source.read(good)["label"]) == COUNT - len(named)


def test_no_file_and_no_record_are_told(folder: Path) -> None:
    with pytest.raises(DataError, match="no file matches .*/nothing-"):
        array_record_source(folder / "nothing-*", fields=FIELDS)
    with pytest.raises(DataError, match="no record in .*part-1"):
        array_record_source(folder / "part-1", fields=FIELDS)
