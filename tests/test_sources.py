"""Sources of any kind: the right rows, in fresh memory, whoever asks; and clear words for what cannot be one."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import tracemalloc
from collections import namedtuple
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from conftest import REPO, clean_env

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import leaves, map_leaves, take_rows
from hostmesh.worker.reading.data_processes.shipping import pack, unpack
from hostmesh.worker.sources import as_source, as_stream, open_source
from hostmesh.worker.sources.base import Source
from hostmesh.worker.streams.stream import Stream

Ids = np.ndarray[Any, np.dtype[np.int64]]
Pair = namedtuple("Pair", "x y")


def make_ids(*ids: int) -> Ids:
    return np.array(ids, np.int64)


def assert_same(found: Any, wanted: Any) -> None:
    found, wanted = dict(leaves(found)), dict(leaves(wanted))
    assert found.keys() == wanted.keys()
    for path, leaf in wanted.items():
        assert np.asarray(found[path]).dtype == np.asarray(leaf).dtype, path
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def check_contract(source: Any, block: Any) -> None:
    """What every source promises, against all its records as one block."""
    assert isinstance(source, Source)
    length = len(next(leaf for _, leaf in leaves(block)))
    assert len(source) == length
    shuffled = np.random.default_rng(0).permutation(length)
    for ids in (shuffled, np.arange(length), make_ids(length - 1, 0, 0, length - 1), make_ids(0), make_ids()):
        assert_same(source.read(ids), take_rows(block, ids))
        assert [len(source.records(ids))] == [len(ids)]
    for id_, record in zip(shuffled, source.records(shuffled), strict=True):
        assert_same(map_leaves(np.asarray, record), map_leaves(np.asarray, take_rows(block, int(id_))))
    _check_fresh(source, shuffled)
    _check_threads(source, block, length)
    _check_packing(source, block, shuffled)
    for ids in (make_ids(0, length), make_ids(-1), make_ids(1, -length)):
        with pytest.raises(DataError, match=f"has {length} records: wanted ids 0 to {length - 1}, found"):
            source.read(ids)
        with pytest.raises(DataError, match="wanted ids"):
            source.records(ids)


def _check_fresh(source: Source, ids: Ids) -> None:
    first = source.read(ids)
    kept = map_leaves(np.copy, first)
    for _, leaf in leaves(first):
        leaf[...] = np.zeros((), leaf.dtype) if leaf.dtype != object else None
    assert_same(source.read(ids), kept)


def _check_packing(source: Source, block: Any, ids: Ids) -> None:
    """Data processes get a copy."""
    packed = pack(source, source.name)
    assert_same(unpack(packed.data, packed.write(), packed.sizes).read(ids), take_rows(block, ids))


def _check_threads(source: Source, block: Any, length: int) -> None:
    problems: list[BaseException] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(20):
                ids = random.integers(0, length, 16)
                assert_same(source.read(ids), take_rows(block, ids))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems, problems[0]


IMAGES = np.arange(40 * 12, dtype=np.uint8).reshape(40, 3, 4)
LABELS = np.arange(40, dtype=np.int32)

TREES: dict[str, Any] = {
    "dict": {"image": IMAGES, "label": LABELS},
    "tuple": (IMAGES, LABELS),
    "one array": IMAGES,
    "nested": {"a": {"b": IMAGES, "c": [LABELS]}, "d": (LABELS * 2,)},
    "named tuple": Pair(IMAGES, LABELS),
    "not contiguous": {"image": IMAGES[:, ::-1, ::2], "label": np.arange(80)[::2]},
    "columns first": {"image": np.asfortranarray(IMAGES)},
    "not aligned": {"x": np.zeros(40, [("a", "u1"), ("b", "<f4")])["b"]},
    "text": {"text": np.array([f"number {n}" for n in range(40)])},
    "read-only": {"x": np.broadcast_to(np.arange(3.0), (40, 3))},
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_arrays_give_their_rows(tree: Any) -> None:
    source = as_source(tree)
    check_contract(source, tree)
    assert type(source.read(make_ids(0))) is type(tree)


def test_jax_arrays_are_a_source() -> None:
    import jax.numpy as jnp

    check_contract(as_source({"x": jnp.arange(10.0)}), {"x": np.arange(10, dtype=np.float32)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": np.zeros(3), "b": {"c": np.zeros((4, 2))}}, "found: a has 3, b.c has 4"),
        ((np.zeros(3), np.float32(1)), r"\[0\] has 3, \[1\] has no rows"),
        ({"a": [1, 2]}, r"a\[0\] has no rows"),
        ({}, "no array at all"),
    ],
)
def test_arrays_without_a_row_for_each_record_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_source(data)


@pytest.mark.parametrize("data", [3, None, object(), {1, 2}])
def test_what_cannot_be_a_source_is_told_what_can(data: Any) -> None:
    with pytest.raises(DataError, match=f"^{type(data).__name__} cannot be a source: wanted one of(.|\n)*digits:train"):
        as_source(data)


def test_digits_are_all_there_once() -> None:
    parts = {}
    for split, count in {"train": 1437, "test": 360, "all": 1797}.items():
        source = open_source(f"digits:{split}")
        assert isinstance(source, Source)
        parts[split] = source.read(np.arange(len(source)))
        assert (source.name, len(source)) == (f"digits:{split}", count)
        assert parts[split]["image"].shape == (count, 8, 8) and parts[split]["image"].dtype == np.uint8
        assert parts[split]["label"].shape == (count,) and parts[split]["label"].dtype == np.int32
    both = map_leaves(np.copy, parts["all"])
    for field in both:
        np.testing.assert_array_equal(np.concatenate([parts["train"][field], parts["test"][field]]), both[field])
    assert both["image"].max() == 16 and np.bincount(both["label"]).min() >= 174
    assert len(np.unique(both["image"].reshape(1797, 64), axis=0)) == 1797
    check_contract(open_source("digits:test"), parts["test"])


def test_digits_are_the_same_for_ever() -> None:
    """Saved positions and published accuracies depend on it."""
    source = open_source("digits:train")
    assert isinstance(source, Source)
    assert source.read(np.arange(10))["label"].tolist() == [6, 3, 3, 7, 7, 8, 6, 1, 6, 5]
    assert int(source.read(np.arange(100))["image"].astype(int).sum()) == 30905


@pytest.fixture
def npz(tmp_path: Path) -> str:
    np.savez(tmp_path / "data.npz", image=IMAGES, label=LABELS)
    return str(tmp_path / "data.npz")


def test_an_npz_file_is_a_source(npz: str) -> None:
    check_contract(open_source(f"npz:{npz}"), TREES["dict"])


def test_npy_files_are_read_row_by_row(tmp_path: Path) -> None:
    """A file of a terabyte, most of it a hole: it could not be read whole."""
    path = tmp_path / "huge.npy"
    huge = np.lib.format.open_memmap(path, "w+", np.uint8, (1 << 20, 1 << 20))
    huge[123456, :3] = 7
    huge.flush()
    source = open_source(f"npy:{path}")
    assert isinstance(source, Source)
    rows = source.read(make_ids(123456, 5))
    assert len(source) == 1 << 20 and type(rows) is np.ndarray
    assert rows[:, :4].tolist() == [[7, 7, 7, 0], [0, 0, 0, 0]]


def test_rows_far_apart_are_read_without_a_copy_of_all() -> None:
    columns_first = np.zeros((1 << 10, 1 << 14), np.uint8).T
    source = as_source(columns_first)
    assert isinstance(source, Source)
    tracemalloc.start()
    try:
        source.read(make_ids(1, 2))
        assert tracemalloc.get_traced_memory()[1] < columns_first.nbytes / 100
    finally:
        tracemalloc.stop()


def test_a_folder_of_npy_files_is_a_dict(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.asfortranarray(IMAGES))
    np.save(tmp_path / "label.npy", LABELS)
    check_contract(open_source(f"npy:{tmp_path}"), TREES["dict"])


def saved(save: Any, array: Any) -> bytes:
    save(file := io.BytesIO(), array)
    return file.getvalue()


@pytest.mark.parametrize("scheme", ["npz", "npy"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_text("1,2,3\n" * 100), "cannot be read"),
        (lambda path: path.write_bytes(b"PK\x03\x04 and then nothing good" * 9), "cannot be read"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00v\x00{'descr': "), "cannot be read"),
        (lambda path: path.write_bytes(saved(np.save, np.array([{}, None]))), "cannot be read: .*objects"),
        (lambda path: path.write_bytes(saved(np.savez, np.array([{}, None]))), "cannot be read"),
        (lambda path: path.mkdir(), ""),
    ],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, scheme: str, make: Any, message: str) -> None:
    path = tmp_path / "data"
    make(path)
    with pytest.raises(DataError, match=f"{path} .*{message}"):
        open_source(f"{scheme}:{path}")


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.99])
def test_a_torn_file_is_named(tmp_path: Path, keep: float) -> None:
    np.savez(tmp_path / "data.npz", image=IMAGES)
    np.save(tmp_path / "data.npy", IMAGES)
    for suffix in ("npz", "npy"):
        path = tmp_path / f"data.{suffix}"
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
        with pytest.raises(DataError, match=f"{path} cannot be read"):
            open_source(f"{suffix}:{path}")


def test_the_other_kind_of_file_is_recognised(npz: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", LABELS)
    with pytest.raises(DataError, match="write npz: before its path"):
        open_source(f"npy:{npz}")
    with pytest.raises(DataError, match="write npy: before its path"):
        open_source(f"npz:{tmp_path / 'x.npy'}")


class WithRead:
    def __len__(self) -> int:
        return 40

    def read(self, ids: Ids) -> Any:
        return {"image": IMAGES[ids], "label": LABELS[ids]}


class Items:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, id_: int) -> Any:
        assert type(id_) is int
        return {"image": IMAGES[id_], "label": LABELS[id_]}


class ManyItems(Items):
    asked: list[Any] = []

    def __getitems__(self, ids: list[int]) -> Any:
        self.asked.append(ids)
        return [self[id_] for id_ in ids]


@pytest.mark.parametrize("kind", [WithRead, Items, ManyItems])
def test_an_object_with_a_length_and_rows_is_a_source(kind: Any) -> None:
    source = as_source(kind())
    check_contract(source, TREES["dict"])
    assert isinstance(source, Source) and source.name == kind.__name__
    assert bool(ManyItems.asked) == (kind is ManyItems)


def test_a_list_of_records_is_a_source() -> None:
    check_contract(as_source([Items()[n] for n in range(40)]), TREES["dict"])


def test_a_source_is_used_as_it_is() -> None:
    source, stream = as_source(WithRead()), Stream(lambda shard, shards: [])
    assert as_source(source) is source
    assert as_source(stream) is stream


def test_a_view_that_read_gives_is_copied() -> None:
    memory = np.arange(10)

    class Views:
        def __len__(self) -> int:
            return 10

        def read(self, ids: Ids) -> Any:
            return memory[ids[0] : ids[-1] + 1]

    source = as_source(Views())
    assert isinstance(source, Source)
    source.read(np.arange(10))[:] = -1
    assert memory.tolist() == list(range(10))


def test_a_read_with_too_few_rows_is_refused() -> None:
    class Short(WithRead):
        def read(self, ids: Ids) -> Any:
            return {"x": IMAGES[ids[:-1]]}

    source = as_source(Short())
    assert isinstance(source, Source)
    with pytest.raises(DataError, match=r"Short: read\(\) of 3 ids wants as many rows, found 2"):
        source.read(make_ids(1, 2, 3))


def test_importing_sources_imports_no_system() -> None:
    systems = ["jax", "grain", "tensorflow", "tensorflow_datasets", "torch", "datasets", "datarax", "array_record"]
    check = f"import sys; from hostmesh.worker import sources; assert not set({systems}) & set(sys.modules)"
    use = "sources.as_source({'x': [__import__('numpy').zeros(3)]}); sources.open_source('digits:test')"
    code = f"{check}; {use}; {check.partition('; ')[2]}"
    subprocess.run([sys.executable, "-c", code], env=clean_env(), cwd=REPO, check=True)


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_data").mkdir()
    (tmp_path / "own_data" / "__init__.py").write_text("")
    (tmp_path / "own_data" / "rows.py").write_text(
        "import numpy as np\n"
        "def make(count, scale='1'):\n    return {'x': np.arange(int(count)) * int(scale)}\n"
        "def fail():\n    raise TypeError('from within')\n"
        "def count_up(to='3'):\n    yield from ({'x': n} for n in range(int(to)))\n"
        "def twice():\n    return iter([{'x': 0}, {'x': 0}])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "own_data.rows"


def test_a_function_by_its_name_gives_a_source(own_module: str) -> None:
    check_contract(open_source(f"{own_module}:make?count=10&scale=%33"), {"x": np.arange(10) * 3})


def test_a_function_by_its_name_that_gives_an_iterator_begins_every_pass(own_module: str) -> None:
    for spec, wanted in (("count_up", [0, 1, 2]), ("count_up?to=2", [0, 1]), ("twice", [0, 0])):
        stream = open_source(f"{own_module}:{spec}")
        assert isinstance(stream, Stream) and stream.name == f"{own_module}:{spec}"
        for _ in range(3):
            assert [record["x"] for record in stream.open(0, 1)] == wanted


def test_a_class_is_not_taken_for_an_object_of_it() -> None:
    for kind in (WithRead, Items, dict):
        with pytest.raises(DataError, match=rf"found the class {kind.__name__}; wanted an object of it"):
            as_source(kind)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("digits", "a source is written scheme:what"),
        ("digits:", "a source is written scheme:what"),
        ("digit:train", "unknown scheme 'digit', wanted one of: .*did you mean digits"),
        ("no.such.module:make", "unknown scheme 'no.such.module'.*module:function"),
        ("digits:trian", "unknown split 'trian', wanted one of: all, test, train; did you mean train"),
        ("digits:train?seed=3", "unknown option 'seed', wanted one of: none"),
        ("digits:train?seed", "written key=value, found 'seed'"),
        ("npz:x?a=1&a=2", "the option a is given twice"),
        ("own_data.rows:mak", "unknown function 'mak', wanted one of: .*fail, make, twice; did you mean make"),
        ("own_data.rows:make", r"make\(count, scale='1'\): missing a required argument: 'count'"),
        ("own_data.rows:make?cuont=3", "unknown option 'cuont', wanted one of: count, scale; did you mean count"),
    ],
)
def test_a_spec_with_a_mistake_gets_the_nearest_right_word(own_module: str, spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        open_source(spec)
    assert spec in str(caught.value)


def test_an_error_from_within_a_function_stays_what_it_is(own_module: str) -> None:
    with pytest.raises(TypeError, match="from within"):
        open_source(f"{own_module}:fail")


def test_a_function_begins_every_pass_of_a_stream() -> None:
    stream = as_stream(lambda shard, shards: (n * 10 for n in range(shard, 7, shards)), shards=3)
    assert stream.shards == 3 and not stream.batched
    for _ in range(2):
        assert [list(stream.open(shard, 3)) for shard in range(3)] == [[0, 30, 60], [10, 40], [20, 50]]


def test_each_shard_of_an_iterable_is_every_nth_record() -> None:
    stream = as_stream(range(7), shards=3)
    for _ in range(2):
        assert [list(stream.open(shard, 3)) for shard in range(3)] == [[0, 3, 6], [1, 4], [2, 5]]
    assert list(stream.open(0, 1)) == list(range(7))


@pytest.mark.parametrize("sizes", [[5, 5, 5], [1, 1, 1, 1, 7], [2, 9], [11, 1]])
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_each_shard_of_blocks_is_every_nth_row(sizes: list[int], shards: int) -> None:
    ends = np.cumsum([0, *sizes])
    blocks = [{"n": np.arange(a, b)} for a, b in zip(ends, ends[1:], strict=False)]
    stream = as_stream(blocks, shards=shards, batched=True)
    for shard in range(shards):
        rows = [n for block in stream.open(shard, shards) for n in block["n"].tolist()]
        assert rows == list(range(shard, int(ends[-1]), shards))


def test_what_can_be_passed_through_once_is_refused() -> None:
    for once in (iter([1, 2]), (n for n in range(3)), map(abs, [1])):
        with pytest.raises(DataError, match=r"once only; pass a function that makes one"):
            as_source(once)


@pytest.mark.parametrize("data", [{"x": IMAGES}, "digits:train"])
def test_what_has_random_access_is_no_stream(data: Any) -> None:
    with pytest.raises(DataError, match="give it to the loader as it is"):
        as_stream(data)


def test_what_cannot_be_a_stream_is_told_what_can() -> None:
    with pytest.raises(DataError, match=r"^int cannot be a stream: wanted one of(.|\n)*f\(shard, shards\)"):
        as_stream(3)
    with pytest.raises(
        DataError, match=r"the function len\(obj, /\); wanted one without arguments, or .*shard, shards"
    ):
        as_source(len)


def test_a_function_without_arguments_is_called_for_each_pass() -> None:
    calls = []

    def generate() -> Any:
        calls.append("generate")
        yield from (1, 2, 3)

    def make() -> Any:
        calls.append("make")
        return [1, 2, 3]

    def make_iterator() -> Any:
        return iter(make())

    for function in (generate, make, make_iterator):
        calls.clear()
        stream = as_source(function)
        assert isinstance(stream, Stream) and stream.name == function.__name__
        assert [list(stream.open(0, 1)) for _ in range(3)] == [[1, 2, 3]] * 3
        assert len(calls) == 3
        assert list(as_stream(function, shards=2).open(1, 2)) == [2]


def test_a_function_that_gives_a_dataset_is_read_as_the_dataset() -> None:
    def make() -> Any:
        return grain.MapDataset.range(6).batch(2).to_iter_dataset()

    stream = as_source(make)
    assert isinstance(stream, Stream) and stream.batched
    items = stream.open(0, 1)
    next(iter(items))
    assert items.get_state() is not None  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="data: RangeMapDataset can be read in any order: give it to the loader"):
        as_source(named("data", lambda: grain.MapDataset.range(6)))


def named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


def test_batches_of_a_function_must_be_called_batches() -> None:
    def training_generator() -> Any:
        yield np.zeros((4, 3)), np.zeros(4)

    with pytest.raises(
        DataError, match=r"training_generator gives records or batches.*as_stream\(data, batched=True\)"
    ):
        list(as_source(training_generator).open(0, 1))  # type: ignore[union-attr]
    assert as_stream(training_generator, batched=True).batched


def test_a_users_own_module_called_datasets_is_not_taken_for_hugging_face() -> None:
    Dataset = type("Dataset", (Items,), {"__module__": "datasets"})
    source = as_source(Dataset())
    assert isinstance(source, Source) and source.name == "Dataset"
