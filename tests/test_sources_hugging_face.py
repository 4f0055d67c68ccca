"""Hugging Face datasets: rows in the types they were stored in, however they were saved, shuffled or formatted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import REPO, Launch, Library, Script, clean_env
from test_sources import assert_same, check_contract, make_ids

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources import as_source, as_stream, open_source
from hostmesh.worker.sources.base import Source

datasets = Library("datasets", "hugging-face")

# One process of the test run imports it for all.
pytestmark = pytest.mark.xdist_group("hugging face")

COUNT = 50
NUMBERS = np.arange(COUNT)
BLOCK: dict[str, Any] = {
    "image": (NUMBERS[:, None, None] * np.ones((3, 4))).astype(np.uint8),
    "volume": (NUMBERS[:, None, None, None] / np.ones((1, 2, 2))).astype(np.float32),
    "label": NUMBERS % 10,
    "small": NUMBERS.astype(np.uint8),
    "real": NUMBERS / 8,
    "even": NUMBERS % 2 == 0,
    "pair": np.stack([NUMBERS, -NUMBERS], 1).astype(np.int32),
    "tokens": (NUMBERS[:, None] + np.arange(5)).astype(np.int32),
    "text": np.array([f"number {n}" for n in NUMBERS], object),
}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def make_dataset() -> Any:
    features = {
        "image": datasets.Array2D((3, 4), "uint8"),
        "volume": datasets.Array3D((1, 2, 2), "float32"),
        "label": datasets.ClassLabel(num_classes=10),
        "small": datasets.Value("uint8"),
        "real": datasets.Value("float64"),
        "even": datasets.Value("bool"),
        "pair": datasets.List(datasets.Value("int32"), length=2),
        "tokens": datasets.List(datasets.Value("int32")),
        "text": datasets.Value("string"),
    }
    columns = {name: list(values) for name, values in BLOCK.items()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`saved` in three files, `dict` with two splits, `files` of parquet, and single files."""
    folder = tmp_path_factory.mktemp("hf")
    dataset = make_dataset()
    dataset.save_to_disk(folder / "saved", num_shards=3)
    datasets.DatasetDict(train=dataset, test=dataset.select(range(5))).save_to_disk(folder / "dict")
    (folder / "files").mkdir()
    dataset.to_parquet(folder / "files" / "train.parquet")
    dataset.select(range(5)).to_parquet(folder / "files" / "test.parquet")
    numbers = dataset.select_columns(["label", "real"])
    numbers.to_json(folder / "numbers.jsonl")
    numbers.to_csv(folder / "numbers.csv")
    numbers.to_parquet(folder / "numbers.parquet")
    return folder


@pytest.mark.parametrize(
    "spec",
    ["hf:{0}/saved", "hf:{0}/dict?split=train", "hf:{0}/files?split=train", "hf:{0}/files/train.parquet"],
)
def test_a_dataset_on_disk_is_a_source(folder: Path, spec: str) -> None:
    check_contract(open_source(spec.format(folder)), BLOCK)


def test_a_dataset_in_memory_is_a_source() -> None:
    check_contract(as_source(make_dataset()), BLOCK)


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_a_file_is_a_source(folder: Path, ending: str) -> None:
    block = {"label": BLOCK["label"], "real": BLOCK["real"]}
    check_contract(open_source(f"hf:{folder}/numbers.{ending}"), block)


def test_a_part_of_a_split_is_a_source(folder: Path) -> None:
    source = open_source(f"hf:{folder}/numbers.csv?split=train[:20%25]")
    check_contract(source, {"label": BLOCK["label"][:10], "real": BLOCK["real"][:10]})


@pytest.mark.parametrize(
    ("change", "order"),
    [
        (lambda dataset: dataset.select([7, 3, 3, 40]), [7, 3, 3, 40]),
        (lambda dataset: dataset.select(range(10, 30)), range(10, 30)),
        (lambda dataset: dataset.filter(lambda row: row["label"] == 3), range(3, COUNT, 10)),
        (lambda dataset: dataset.select(range(10, 30)).select([5, 1]), [15, 11]),
        (lambda dataset: datasets.concatenate_datasets([dataset, dataset]), [*range(COUNT), *range(COUNT)]),
    ],
)
@pytest.mark.parametrize("saved", [True, False])
def test_the_order_a_dataset_was_given_is_kept(folder: Path, change: Any, order: Any, saved: bool) -> None:
    dataset = change(datasets.load_from_disk(folder / "saved") if saved else make_dataset())
    check_contract(as_source(dataset), {name: leaf[list(order)] for name, leaf in BLOCK.items()})


def test_a_shuffled_dataset_is_read_in_its_order(folder: Path) -> None:
    dataset = datasets.load_from_disk(folder / "saved").shuffle(seed=1)
    order = np.array(dataset["small"][:])
    assert order.tolist() != sorted(order.tolist())
    check_contract(as_source(dataset), {name: leaf[order] for name, leaf in BLOCK.items()})


def test_a_transform_of_the_users_own_is_used() -> None:
    dataset = make_dataset().with_transform(lambda batch: {"twice": [2 * n for n in batch["small"]]})
    check_contract(as_source(dataset), {"twice": 2 * NUMBERS})


def test_a_format_of_the_users_own_is_used() -> None:
    source = as_source(make_dataset().with_format("numpy", columns=["tokens"], dtype=np.float16))
    check_contract(source, {"tokens": BLOCK["tokens"].astype(np.float16)})


@pytest.mark.parametrize("dtype", [{}, {"dtype": np.float16}])
def test_the_jax_format_gives_the_same_numbers(dtype: dict[str, Any]) -> None:
    """Without a device: as NumPy arrays, in the types they will have there."""
    dataset = make_dataset().remove_columns("text").with_format("jax", **dtype)
    source = as_source(dataset)
    assert isinstance(source, Source)
    assert_same_on_device(source.read(make_ids(7, 3)), dataset[[7, 3]])


@pytest.mark.slow
def test_the_jax_format_of_a_stream_gives_the_same_numbers() -> None:
    items = make_dataset().remove_columns("text").to_iterable_dataset().with_format("jax")
    for record, row in zip(as_stream(items).open(0, 1), items, strict=True):
        assert_same_on_device(record, row)


def assert_same_on_device(found: dict[str, Any], wanted: dict[str, jax.Array]) -> None:
    assert list(found) == list(wanted)
    for name, array in found.items():
        assert isinstance(array, (np.ndarray, np.generic)) and np.array_equal(array, wanted[name])
        assert jax.dtypes.canonicalize_dtype(array.dtype) == wanted[name].dtype


FORMATS = """
import datasets
import numpy as np
import hostmesh

hostmesh.join()
mesh = hostmesh.make_mesh(data=-1)
data = datasets.Dataset.from_dict({"x": [[n, n + 1] for n in range(40)], "y": [n / 2 for n in range(40)]})
for kind in ("jax", "numpy", "torch"):
    for rows in (data.with_format(kind), hostmesh.as_stream(data.to_iterable_dataset().with_format(kind))):
        loader = hostmesh.Loader(rows, mesh, 8, epochs=1, shuffle=False)
        for batch in loader:
            ids = np.arange(8 * loader.step - 8, 8 * loader.step)
            wanted_x, wanted_y = np.stack([ids, ids + 1], 1).astype(np.int32), (ids / 2).astype(np.float32)
            for name, wanted in (("x", wanted_x), ("y", wanted_y)):
                for part in batch[name].addressable_shards:
                    assert part.data.dtype == wanted.dtype and np.array_equal(part.data, wanted[part.index])
        print("loaded", kind, loader.step)
"""


@pytest.mark.slow
def test_every_format_can_be_read_by_every_process(launch: Launch, script: Script) -> None:
    """The library's own `jax` format puts rows on device 0, which process 1 cannot reach."""
    done = launch("--local", "2", script(FORMATS), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("loaded jax 5") == done.stdout.count("loaded torch 5") == 4


@pytest.mark.parametrize("kind", ["arrow", "pandas"])
def test_a_tables_format_says_nothing_about_rows(kind: str) -> None:
    check_contract(as_source(make_dataset().with_format(kind)), BLOCK)


def test_columns_that_were_not_picked_are_not_read() -> None:
    source = as_source(make_dataset().with_format(columns=["real", "text"]))
    check_contract(source, {"real": BLOCK["real"], "text": BLOCK["text"]})


def test_images_become_arrays_of_bytes() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3)).astype(np.uint8)
    image = pytest.importorskip("PIL.Image", reason="hostmesh[hugging-face]")
    columns = {"image": [image.fromarray(one) for one in pixels], "n": list(range(6))}
    features = datasets.Features({"image": datasets.Image(), "n": datasets.Value("int8")})
    dataset = datasets.Dataset.from_dict(columns, features=features)
    source = as_source(dataset)
    assert isinstance(source, Source)
    block = source.read(make_ids(5, 0, 2))
    assert_same(block, {"image": pixels[[5, 0, 2]], "n": np.array([5, 0, 2], np.int8)})


def test_lists_of_different_lengths_come_one_by_one() -> None:
    dataset = datasets.Dataset.from_dict({"tokens": [[1], [2, 3], [], [4]], "pair": [[[1], [2, 3]]] * 4})
    source = as_source(dataset.select_columns(["tokens"]))
    assert isinstance(source, Source)
    assert [record["tokens"].tolist() for record in source.records(make_ids(1, 2, 0))] == [[2, 3], [], [1]]
    assert source.read(make_ids(3, 0))["tokens"].tolist() == [[4], [1]]
    with pytest.raises(DataError, match=r"record 1: tokens has shape \(2,\), wanted \(1,\) like record 0"):
        source.read(make_ids(0, 1))
    nested = as_source(dataset)
    assert isinstance(nested, Source)
    assert [list(part) for part in nested.records(make_ids(0))[0]["pair"]] == [[1], [2, 3]]


@pytest.mark.parametrize("sizes", [[3, 2, 4], [3, 3, 2]])
def test_a_row_that_is_not_of_its_columns_shape_is_named(sizes: list[int]) -> None:
    """Hugging Face writes it without a word; sizes that even out would shift all rows between."""
    rows = [np.ones((size, 4), np.uint8) for size in sizes]
    dataset = datasets.Dataset.from_dict(
        {"x": rows}, features=datasets.Features({"x": datasets.Array2D((3, 4), "uint8")})
    )
    bad = next(n for n, size in enumerate(sizes) if size != 3)
    with pytest.raises(DataError, match=rf"row {bad} of the table: x has 8 values, wanted 12 by its shape \(3, 4\)"):
        source = as_source(dataset)
        assert isinstance(source, Source)
        source.read(make_ids(0, 2))


def test_arrays_of_one_open_dimension_come_one_by_one() -> None:
    rows = [np.full((n, 2), n, np.float32) for n in (1, 2, 1)]
    features = datasets.Features({"x": datasets.Array2D((None, 2), "float32")})
    source = as_source(datasets.Dataset.from_dict({"x": rows}, features=features))
    assert isinstance(source, Source)
    assert source.read(make_ids(2, 0))["x"].tolist() == [[[1, 1]], [[1, 1]]]
    with pytest.raises(DataError, match=r"record 1: x has shape \(2, 2\), wanted \(1, 2\) like record 0"):
        source.read(make_ids(0, 1))


def test_a_number_that_is_missing_is_told() -> None:
    source = as_source(datasets.Dataset.from_dict({"x": [1, None, 3]}))
    assert isinstance(source, Source)
    assert source.read(make_ids(0, 2))["x"].tolist() == [1, 3]
    with pytest.raises(DataError, match="record 1: x has dtype object, wanted int64 like record 0"):
        source.read(make_ids(0, 1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:{0}/dict", "has the splits train, test: pick one, as in .*split=train"),
        ("hf:{0}/files", "has the splits train, test: pick one"),
        ("hf:{0}/dict?split=trian", "unknown split 'trian', wanted one of: test, train; did you mean train"),
        ("hf:{0}/files?split=trian", "cannot be loaded: Unknown split"),
        ("hf:{0}/saved?splt=train", "unknown option 'splt', wanted one of: config, split; did you mean split"),
        ("hf:{0}/nowhere", "cannot be loaded: it does not exist"),
        ("hf:{0}/empty", "cannot be loaded: .*doesn't contain any data files"),
        ("hf:{0}/text.parquet", "cannot be loaded: .*Parquet"),
        ("hf:{0}/torn", "cannot be loaded: "),
        ("hf:{0}/gone", "cannot be loaded: .*No such file"),
        ("hf:{0}/data.bin", "a file wants one of the endings .parquet, .*found .bin"),
    ],
)
def test_what_cannot_be_loaded_is_named(folder: Path, spec: str, message: str) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "text.parquet").write_text("hello, " * 100)
    (folder / "data.bin").write_text("hello")
    for name in ("torn", "gone"):
        make_dataset().save_to_disk(folder / name)
        (file,) = (folder / name).glob("*.arrow")
        file.write_bytes(file.read_bytes()[:1000])
    file.unlink()
    with pytest.raises(DataError, match=message):
        open_source(spec.format(folder))


def test_a_dict_of_splits_wants_one_picked() -> None:
    dataset = make_dataset()
    with pytest.raises(DataError, match="hf:Dataset has the splits a, b: pick one"):
        as_source(datasets.DatasetDict(a=dataset, b=dataset))
    check_contract(as_source(datasets.DatasetDict(only=dataset)), BLOCK)
    with pytest.raises(DataError, match="only comes in order"):
        as_source(datasets.IterableDatasetDict(a=dataset.to_iterable_dataset()))


def run(code: str, **env: str) -> str:
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, env=clean_env(env), cwd=REPO, check=True, capture_output=True, text=True, timeout=100
    )
    return ended.stdout


CATCH = """
import sys
{0}
from hostmesh.worker.errors import WorkerError
from hostmesh.worker.sources import open_source
try:
    open_source("hf:someone/something?split=train")
except WorkerError as error:
    print(type(error).__name__, error)"""


def test_a_missing_package_is_named_with_its_extra() -> None:
    said = run(CATCH.format('sys.modules["datasets"] = None'))
    assert "MissingPackageError hf:someone/something?split=train needs datasets: " in said
    assert "pip install 'hostmesh[hugging-face]'" in said


def test_a_name_on_the_hub_without_a_network_is_told(tmp_path: Path) -> None:
    said = run(CATCH.format(""), HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert said.startswith("DataError hf:someone/something?split=train cannot be loaded: ")
    assert "someone/something" in said.partition("loaded: ")[2]
