"""Tokens in files and documents: windows, offsets, separators, packing; what is there comes in exactly one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.process import progress
from hostmesh.worker.text.documents import Documents as Documents_
from hostmesh.worker.text.packing import PackedSource
from hostmesh.worker.text.plan import first_fit


class Documents:
    """Records with a field of tokens; the tokens of all of them are 1, 2, 3, …"""

    name = "documents"

    def __init__(self, lengths: Any, dtype: Any = np.int32) -> None:
        ends = np.cumsum(lengths)
        self.parts = [np.arange(end - n, end, dtype=dtype) + 1 for n, end in zip(lengths, ends, strict=True)]
        self.total = int(ends[-1])

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Any:
        return {"tokens": self.parts[number], "label": number}


class Measured(Documents):
    """Knows how long its documents are."""

    def lengths(self, ids: Any) -> Any:
        return np.array([len(self.parts[n]) for n in ids])


def write_tokens(folder: Path, *counts: int, dtype: str = "<u2") -> list[np.ndarray]:
    """Raw files 0.bin, 1.bin, … with tokens 0, 1, 2, …, numbered through all of them."""
    parts = np.split(np.arange(sum(counts), dtype=dtype), np.cumsum(counts)[:-1])
    for number, part in enumerate(parts):
        part.tofile(folder / f"{number}.bin")
    return parts


def read_all(source: Any, field: str = "tokens") -> Any:
    return source.read(np.arange(len(source)))[field]


# Windows.


@pytest.mark.parametrize(("options", "starts", "width"), [("", [0, 4, 8], 4), ("&stride=3", [0, 3, 6, 9], 4)])
def test_windows_of_a_token_file(tmp_path: Path, options: str, starts: list[int], width: int) -> None:
    (tokens,) = write_tokens(tmp_path, 14)
    np.save(tmp_path / "0.npy", tokens)
    for path in ("0.bin?dtype=uint16&", "0.npy?"):
        source = hostmesh.open_source(f"tokens:{tmp_path}/{path}length=4{options}")
        assert read_all(source).tolist() == [tokens[start : start + width].tolist() for start in starts]
        assert read_all(source).dtype == np.uint16


def test_windows_have_their_next_tokens_and_cross_no_file(tmp_path: Path) -> None:
    write_tokens(tmp_path, 9, 3, 13)  # the second is too short for a window
    source = cloudpickle.loads(
        cloudpickle.dumps(hostmesh.open_source(f"tokens:{tmp_path}/*.bin?dtype=uint16&length=4&next=1").gather)
    )
    rows = source(np.arange(5))
    starts = [0, 4, 12, 16, 20]
    assert rows["tokens"].tolist() == [list(range(start, start + 4)) for start in starts]
    assert np.array_equal(rows["targets"], rows["tokens"] + 1)
    assert len(cloudpickle.dumps(source)) < 2000  # not the tokens


def test_windows_over_documents_are_those_of_one_long_text() -> None:
    documents = Measured([3, 0, 5, 1, 9, 0, 2])
    source = hostmesh.windows(documents, 4, stride=3, next=1)
    assert read_all(source).tolist() == [list(range(start + 1, start + 5)) for start in (0, 3, 6, 9, 12, 15)]
    assert np.array_equal(read_all(source, "targets"), read_all(source) + 1)
    assert len(hostmesh.windows(documents, 5)) == 4


# Documents in files.


def test_documents_are_found_by_offsets_or_a_separator(tmp_path: Path) -> None:
    first, second = np.array([5, 6, 0, 7, 0], "<u2"), np.array([0, 8, 9], "<u2")
    first.tofile(tmp_path / "a.bin"), second.tofile(tmp_path / "b.bin")
    np.save(tmp_path / "a.npy", [0, 3])
    np.array([0, 1, 3], "<i8").tofile(tmp_path / "b.idx")
    files = f"tokens:{tmp_path}/a.bin,{tmp_path}/b.bin?dtype=uint16"
    for how in ("separator=0", f"offsets={tmp_path}/a.npy,{tmp_path}/b.idx"):
        source: Any = cloudpickle.loads(cloudpickle.dumps(hostmesh.open_source(f"{files}&{how}")))
        records = source.records(np.arange(4))
        assert [record["tokens"].tolist() for record in records] == [[5, 6, 0], [7, 0], [0], [8, 9]]
        assert source.lengths(np.array([3, 0])).tolist() == [2, 3]
        packed = hostmesh.pack(source, 4)
        assert sorted(tokens_of(packed).tolist()) == [0, 0, 0, 5, 6, 7, 8, 9]


def test_a_long_search_for_separators_tells_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_tokens(tmp_path, 20)
    monkeypatch.setattr(progress, "QUIET", 0.0)
    hostmesh.open_source(f"tokens:{tmp_path}/0.bin?dtype=uint16&separator=7")
    assert f"looking for separators in {tmp_path}/0.bin: 100% after 0 s" in capfd.readouterr().err


# Packing.


def tokens_of(packed: PackedSource) -> Any:
    block = packed.read(np.arange(len(packed)))
    return block["tokens"][block["segment_ids"] > 0]


def check_packed(documents: Documents, packed: PackedSource) -> None:
    """Every token in one place; a segment is a piece of one document, in order; all else is padding."""
    block = packed.read(np.arange(len(packed)))
    tokens, segments, positions = block["tokens"], block["segment_ids"], block["positions"]
    assert tokens.shape == segments.shape == positions.shape == (len(packed), packed.length)
    assert sorted(tokens[segments > 0].tolist()) == list(range(1, documents.total + 1))
    assert not tokens[segments == 0].any() and not positions[segments == 0].any()
    begins = np.cumsum([0, *map(len, documents.parts)])[:-1] + 1
    for row, row_segments, row_positions in zip(tokens, segments, positions, strict=True):
        present = np.unique(row_segments[row_segments > 0])
        assert present.tolist() == list(range(1, len(present) + 1)) and len(present)
        for segment in present:
            piece = row[row_segments == segment]
            assert np.array_equal(np.diff(piece), np.ones(len(piece) - 1))
            assert np.array_equal(row_positions[row_segments == segment], np.arange(len(piece)))
            assert piece[0] in begins or (piece[0] - begins[begins < piece[0]][-1]) % packed.length == 0
    assert packed.efficiency == pytest.approx((segments > 0).mean())


@pytest.mark.parametrize("seed", range(8))
def test_every_token_is_in_exactly_one_row(seed: int) -> None:
    random = np.random.default_rng(seed)
    length, window = int(random.integers(1, 40)), int(random.integers(1, 20))
    kind = (Documents, Measured)[seed % 2]
    documents = kind([1, *random.integers(0, 60, random.integers(1, 200))])
    packed = hostmesh.pack(documents, length, window=window, seed=seed if seed % 3 else None)
    check_packed(documents, packed)
    again: PackedSource = cloudpickle.loads(cloudpickle.dumps(packed))
    ids = random.integers(0, len(packed), 20)
    for name, array in packed.read(ids).items():
        assert np.array_equal(again.read(ids)[name], array)
        assert np.array_equal(packed.records(ids)[3][name], array[3])


def test_first_fit_is_the_first_open_row_with_room() -> None:
    def plain(sizes: list[int], length: int, window: int) -> list[int]:
        rows: list[int] = []
        found = []
        for size in sizes:
            open_rows = range(max(0, len(rows) - window), len(rows))
            row = next((row for row in open_rows if rows[row] + size <= length), len(rows))
            if row == len(rows):
                rows.append(0)
            rows[row] += size
            found.append(row)
        return found

    random = np.random.default_rng(0)
    for window in (1, 3, 50):
        sizes = random.integers(1, 30, 400)
        assert first_fit(sizes, 30, window).tolist() == plain(sizes.tolist(), 30, window)


def test_packing_wastes_little_and_a_window_of_one_row_more() -> None:
    lengths = np.maximum(1, np.random.default_rng(0).lognormal(4, 1, 3000).astype(int))
    packed, in_order = hostmesh.pack(Measured(lengths), 512), hostmesh.pack(Measured(lengths), 512, window=1)
    assert packed.efficiency > 0.98 > 0.9 > in_order.efficiency


def test_documents_that_are_too_long_are_split_dropped_or_refused() -> None:
    documents = Measured([3, 11, 2, 20])
    check_packed(documents, hostmesh.pack(documents, 8))
    dropped = hostmesh.pack(documents, 8, too_long="drop")
    assert dropped.dropped == 2 and tokens_of(dropped).tolist() == [1, 2, 3, 15, 16]
    with pytest.raises(DataError, match=r"at most 8: record 1 has 11 tokens, and 1 more are longer than a row"):
        hostmesh.pack(documents, 8, too_long="error")


def test_text_and_lone_arrays_are_documents_too() -> None:
    texts = [{"text": "abc"}, {"text": "de"}, {"text": "fghi"}]
    packed = hostmesh.pack(texts, 5, field="text", pad=32)
    assert [bytes(row) for row in read_all(packed)] == [b"abcde", b"fghi "]
    assert read_all(hostmesh.pack([np.arange(3), np.arange(2)], 5)).tolist() == [[0, 1, 2, 0, 1]]


def test_lists_in_arrow_tables_and_array_records(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    from array_record.python.array_record_module import ArrayRecordWriter

    documents = Measured(np.random.default_rng(0).integers(0, 30, 100) + 1)
    table = datasets.Dataset.from_dict({"tokens": [part.tolist() for part in documents.parts], "n": list(range(100))})
    table.save_to_disk(tmp_path / "table")
    writer = ArrayRecordWriter(str(tmp_path / "records"), "group_size:1")
    for number, part in enumerate(documents.parts):
        writer.write(np.int32(number).tobytes() + part.astype("<u2").tobytes())
    writer.close()
    wanted = read_all(hostmesh.pack(documents, 16))
    table_source: Any = hostmesh.open_source(f"hf:{tmp_path}/table")
    assert table_source.lengths(np.arange(100), "tokens").tolist() == [len(part) for part in documents.parts]
    assert table_source.lengths(np.arange(3), "nothing") is None
    assert np.array_equal(read_all(hostmesh.pack(table_source, 16)), wanted)
    shuffled = table.shuffle(seed=1)
    assert np.array_equal(np.sort(tokens_of(hostmesh.pack(shuffled, 16))), np.arange(documents.total) + 1)
    records = f"arrayrecord:{tmp_path}/records?fields=n:int32,tokens:uint16:*"
    assert np.array_equal(read_all(hostmesh.pack(records, 16)), wanted)


def test_a_concatenation_and_its_views_know_lengths_and_read_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = np.array([5, 6, 7, 8, 0, 9, 0], "<u2"), np.array([1, 0, 2, 3, 0], "<u2")
    first.tofile(tmp_path / "a.bin"), second.tofile(tmp_path / "b.bin")
    parts = [f"tokens:{tmp_path}/{name}.bin?dtype=uint16&separator=0" for name in "ab"]
    joined = hostmesh.concatenate(*parts)
    assert joined.lengths is not None and joined.lengths(np.array([3, 0]), "tokens") == pytest.approx([3, 5])
    reads: list[int] = []
    monkeypatch.setattr(Documents_, "read_whole", lambda self, ids: reads.append(len(ids)))
    assert read_all(hostmesh.pack(joined, 5)).tolist() == [[5, 6, 7, 8, 0], [9, 0, 1, 0, 0], [2, 3, 0, 0, 0]]
    assert read_all(hostmesh.pack(joined.skip(1), 4)).tolist() == [[9, 0, 1, 0], [2, 3, 0, 0]]
    assert read_all(hostmesh.windows(joined, 6)).tolist() == [[5, 6, 7, 8, 0, 9], [0, 1, 0, 2, 3, 0]]
    assert reads == []
    again = cloudpickle.loads(cloudpickle.dumps(joined))
    assert again.lengths(np.array([1])).tolist() == [2]
    assert hostmesh.concatenate(Documents([3]), Measured([3])).lengths is None


def test_documents_of_another_dtype_are_named_though_lengths_are_known(tmp_path: Path) -> None:
    np.array([5, 0, 6, 0], "<u2").tofile(tmp_path / "a.bin"), np.array([70_000, 0], "<u4").tofile(tmp_path / "b.bin")
    parts = [f"tokens:{tmp_path}/{name}&separator=0" for name in ("a.bin?dtype=u2", "b.bin?dtype=u4")]
    packed = hostmesh.pack(hostmesh.concatenate(*parts), 2)
    for rows in ([2], [0, 2]):
        with pytest.raises(DataError, match="record 2: tokens has dtype uint32, wanted uint16 like record 0"):
            packed.read(np.array(rows))


def test_lengths_may_be_an_attribute_of_another_kind() -> None:
    for lengths in ([3, 4], lambda: [3, 4]):
        documents = Documents([3, 4])
        documents.lengths = lengths  # type: ignore[attr-defined]
        assert read_all(hostmesh.pack(documents, 8)).tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]
        batch = next(
            hostmesh.Loader(
                documents, jax.sharding.Mesh(np.array(jax.devices()[:1]), "data"), 2, lengths=(4, 8), shuffle=False
            )
        )
        assert np.asarray(batch["lengths"]).tolist() == [3, 4]


def test_empty_documents_have_the_dtype_of_the_others() -> None:
    documents = [np.array([]), np.array([1, 2], np.int32), [], np.array([3], np.int32)]
    packed = hostmesh.pack(documents, 4)
    assert read_all(packed).tolist() == [[1, 2, 3, 0]] and read_all(packed).dtype == np.int32
    windows = read_all(hostmesh.windows(documents, 3))
    assert windows.tolist() == [[1, 2, 3]] and windows.dtype == np.int32


# In a loader.


@pytest.mark.parametrize("make", ["windows", "pack"])
def test_one_order_for_every_number_of_devices_and_loading(make: str) -> None:
    documents = Measured(np.random.default_rng(0).integers(1, 30, 300))
    source: Any = hostmesh.pack(documents, 16, seed=1) if make == "pack" else hostmesh.windows(documents, 16, next=1)

    def load(devices: int, loading: str, start: int = 0) -> list[Any]:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), "data")
        loader = hostmesh.Loader(source, mesh, 8, epochs=1, tail="pad", loading=loading)
        loader.restore(start)
        return [{name: np.asarray(array) for name, array in batch.items()} for batch in loader]

    whole = load(1, "per_process")
    for devices, loading, start in [(2, "per_device", 0), (4, "reshard", 3), (4, "global", 5)]:
        found = load(devices, loading, start)
        assert len(found) == len(whole) - start
        for batch, wanted in zip(found, whole[start:], strict=True):
            assert all(np.array_equal(batch[name], wanted[name]) for name in wanted)
    rows = np.concatenate([batch["tokens"][batch["mask"]] for batch in whole])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, read_all(source)))


# Bad input.


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("0.bin?dtype=uint16&length=15", "no window of length=15 fits: .*0.bin has 14 tokens"),
        ("0.bin?dtype=uint16&length=14&next=1", "length=14 and 1 more for the targets fits"),
        ("0.bin?dtype=uint64&length=4", "has 28 bytes, wanted a multiple of 8, as dtype uint64 has"),
        ("0.bin?dtype=float32&length=4", "dtype wants a kind of integers such as uint16 or int32; found 'float32'"),
        ("0.bin?length=4", "give one, as in .dtype=uint16"),
        ("0.bin?dtype=uint16", "say what a record is, by one of"),
        ("0.bin?dtype=uint16&length=4&separator=0", "say what a record is, by one of"),
        ("0.bin?dtype=uint16&length=0", "length wants an integer of 1 or more; found '0'"),
        ("0.bin?dtype=uint16&length=4&stride=x", "stride wants an integer of 1 or more; found 'x'"),
        ("0.bin?dtype=uint16&separator=0&stride=2", "stride goes with length=; found documents"),
        ("0.bin?dtype=uint16&separator=99", "no token is the separator 99"),
        ("0.bin?dtype=uint16&separator=70000", "separator 70000 is no uint16"),
        ("0.bin?dtype=uint16&offsets=falling.npy", "wants ascending offsets; found 2 after 5, at 2"),
        ("0.bin?dtype=uint16&offsets=beyond.npy", "has the offset 99, beyond the 14 tokens of"),
        ("0.bin?dtype=uint16&offsets=late.npy", "wants the offset of the first document, 0"),
        ("0.bin,0.bin?dtype=uint16&offsets=late.npy", "offsets wants a file for each of 2; found 1"),
        ("none.bin?dtype=uint16&length=4", "none.bin does not exist"),
        ("empty.bin?dtype=uint16&length=4", "empty.bin is empty"),
        ("*.dat?dtype=uint16&length=4", "no file matches"),
        ("late.npy?dtype=uint16&length=1", "has dtype int64, not uint16"),
        ("square.npy?length=1", r"wants integers in one axis; found int64 of shape \(2, 2\)"),
        ("0.bin?dtype=uint16&lenght=4", "did you mean length"),
    ],
)
def test_a_bad_token_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path, 14)
    (tmp_path / "empty.bin").touch()
    for name, offsets in {"falling": [0, 5, 2], "beyond": [0, 99], "late": [1, 3], "square": [[0, 1], [2, 3]]}.items():
        np.save(tmp_path / f"{name}.npy", offsets)
    with pytest.raises(DataError, match=message):
        hostmesh.open_source(f"tokens:{spec}")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (Measured([3, 4]), {"field": "token"}, "Measured: unknown field 'token', wanted one of: label, tokens"),
        (Measured([3, 4]), {"field": "label"}, r"record 0: label wants integers in one axis, or text; found int64"),
        (Measured([0, 0]), {}, "wanted documents with tokens; found none in 2 documents"),
        ([np.arange(3), np.arange(3.0)], {}, "record 1: tokens wants integers in one axis, or text; found float64"),
        (
            [np.arange(3), np.arange(3, dtype=np.int8)],
            {},
            "record 1: tokens has dtype int8, wanted int64 like record 0",
        ),
        ([np.array([]), np.arange(3), np.arange(3, dtype=np.int8)], {}, "dtype int8, wanted int64 like record 1"),
        ([np.arange(3, dtype=np.uint16)], {"pad": -1}, "pad wants a value of uint16, 0 to 65535; found -1"),
        ([np.arange(3, dtype=np.uint16)], {"pad": np.int64(70_000)}, "0 to 65535; found "),
        ([np.arange(3)], {"pad": 0.5}, "pad wants a value of int64, .*; found 0.5"),
        ([], {}, "has no documents"),
        (hostmesh.Stream(lambda shard, shards: iter([]), name="tape"), {}, "in any order; found the stream tape"),
    ],
)
def test_documents_that_cannot_be_packed_are_told(source: Any, options: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hostmesh.pack(source, 8, **options)


def test_options_that_make_no_sense_are_told() -> None:
    for options in ({"length": 0}, {"length": 8, "window": 0}, {"length": 8, "too_long": "cut"}):
        with pytest.raises(ValueError, match=r"wants .*(found 0|found 'cut')"):
            hostmesh.pack(Measured([3]), **options)
    with pytest.raises(ValueError, match="stride wants an integer of 1 or more, found 0"):
        hostmesh.windows(Measured([3]), 2, stride=0)
    with pytest.raises(DataError, match="no window of 9 tokens fits; found 7 in all documents"):
        hostmesh.windows(Measured([3, 4]), 8, next=1)
    assert len(hostmesh.pack(Measured([3]), np.int64(8), window=np.int32(2))) == 1  # type: ignore[arg-type]
    assert len(hostmesh.windows(Measured([3]), np.int64(2), stride=np.int64(1))) == 2  # type: ignore[arg-type]
    bad = Measured([3, 4])
    bad.lengths = lambda ids: np.array([1.5])  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"lengths\(\) wants 2 integers of 0 or more, one for each id; found float64"):
        hostmesh.pack(bad, 8)
    bad.lengths = lambda ids: {}["size"]  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"Measured: lengths\(\) at .*test_text.py:\d+ in <lambda>: KeyError: 'size'"):
        hostmesh.pack(bad, 8)
