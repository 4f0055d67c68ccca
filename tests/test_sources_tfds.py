"""TFDS datasets, really prepared as ArrayRecord: the rows TFDS itself gives, and no download in their absence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPO, Library, clean_env
from test_sources import assert_same, check_contract, make_ids

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import stack_records
from hostmesh.worker.sources import as_source, open_source
from hostmesh.worker.sources.base import Source

tfds = Library("tensorflow_datasets", "tensorflow")

# TensorFlow takes ten seconds of a core to import: one process of the test run does it for all.
pytestmark = pytest.mark.xdist_group("tensorflow")

COUNT = 30


def make_record(n: int) -> dict[str, Any]:
    random = np.random.default_rng(n)
    return {
        "image": random.integers(0, 256, (5, 4, 1)).astype(np.uint8),
        "label": n % 10,
        "vector": random.random(3).astype(np.float32),
        "flags": random.random((2, 2)) > 0.5,
        "packed": random.integers(0, 1000, 6),
        "text": f"number {n}",
    }


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`plain` has features of fixed size, `nested` sequences, `own` one of our own; `as_tfrecord` no ArrayRecord."""
    features = tfds.features
    from tfds_feature import Doubled

    folder = str(tmp_path_factory.mktemp("tfds"))
    plain = {
        "image": features.Image(shape=(5, 4, 1)),
        "label": features.ClassLabel(num_classes=10),
        "vector": features.Tensor(shape=(3,), dtype=np.float32),
        "flags": features.Tensor(shape=(2, 2), dtype=np.bool_),
        "packed": features.Tensor(shape=(6,), dtype=np.int64, encoding="zlib"),
        "text": features.Text(),
    }
    nested = {"label": features.Scalar(dtype=np.int32), "words": features.Sequence(np.int64)}
    records = [make_record(n) for n in range(COUNT)]
    ragged = [{"label": n, "words": list(range(n % 3))} for n in range(COUNT)]
    store(folder, "plain", plain, records, "array_record")
    store(folder, "nested", nested, ragged, "array_record")
    store(
        folder, "own", {"x": Doubled(shape=(2,), dtype=np.int32)}, [{"x": [n, n]} for n in range(COUNT)], "array_record"
    )
    store(folder, "as_tfrecord", {"label": features.Scalar(dtype=np.int32)}, [{"label": 1}], "tfrecord")
    return folder


def store(folder: str, name: str, features: Any, records: list[Any], file_format: str) -> None:
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        data_dir=folder,
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": list(enumerate(records))},
        disable_shuffling=True,
        file_format=file_format,
    )


def read_all(folder: str, name: str, split: str) -> list[Any]:
    """As TFDS itself reads them."""
    return list(tfds.data_source(name, split=split, data_dir=folder))


def test_the_rows_are_those_that_were_stored(data_dir: str) -> None:
    source = open_source(f"tfds:plain/train?data_dir={data_dir}")
    assert isinstance(source, Source)
    for n, record in enumerate(source.records(np.arange(COUNT))):
        for field, value in make_record(n).items():
            found = record[field].decode() if field == "text" else record[field]
            np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize("split", ["train", "train[:50%]", "train[10:20]", "train[20%25:]", "train[:3]+train[7:]"])
def test_the_rows_are_those_of_tfds(data_dir: str, split: str) -> None:
    wanted = read_all(data_dir, "plain", split.replace("%25", "%"))
    source = open_source(f"tfds:plain:1.0.0/{split}?data_dir={data_dir}")
    check_contract(source, stack_records(wanted, range(len(wanted))))


def test_only_the_fields_asked_for_are_decoded(data_dir: str) -> None:
    source = open_source(f"tfds:plain/train?data_dir={data_dir}&fields=vector,label")
    assert isinstance(source, Source)
    assert {k: (v.dtype.name, v.shape) for k, v in source.read(make_ids(1, 2)).items()} == {
        "vector": ("float32", (2, 3)),
        "label": ("int64", (2,)),
    }


def test_features_that_are_nested_come_one_by_one(data_dir: str) -> None:
    source = open_source(f"tfds:nested/train?data_dir={data_dir}")
    assert isinstance(source, Source)
    assert [record["words"].tolist() for record in source.records(make_ids(2, 0))] == [[0, 1], []]
    with pytest.raises(DataError, match=r"record 0: words has shape \(0,\), wanted \(2,\) like record 2"):
        source.read(make_ids(2, 0))
    labels = open_source(f"tfds:nested/train?data_dir={data_dir}&fields=label")
    check_contract(labels, {"label": np.arange(COUNT, dtype=np.int32)})


def test_a_feature_of_the_users_own_decodes_itself(data_dir: str) -> None:
    source = open_source(f"tfds:own/train?data_dir={data_dir}")
    check_contract(source, {"x": 2 * np.stack([np.arange(COUNT)] * 2, 1).astype(np.int32)})


def test_a_data_source_of_tfds_is_a_source(data_dir: str) -> None:
    wanted = read_all(data_dir, "plain", "train")
    source = as_source(tfds.data_source("plain", split="train", data_dir=data_dir))
    check_contract(source, stack_records(wanted, range(COUNT)))


def test_the_users_own_decoders_are_used(data_dir: str) -> None:
    decoders = {"image": tfds.decode.SkipDecoding()}
    data = tfds.data_source("plain", split="train", data_dir=data_dir, decoders=decoders)
    source = as_source(data)
    assert isinstance(source, Source)
    assert source.records(make_ids(3))[0]["image"][:4] == b"\x89PNG"
    assert_same(source.read(make_ids(3, 1))["vector"], np.stack([make_record(n)["vector"] for n in (3, 1)]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tfds:plain?data_dir={0}", "wanted tfds:NAME"),
        ("tfds:plain/trian?data_dir={0}", "no split 'trian' among train"),
        ("tfds:plain/train[x]?data_dir={0}", "no split 'train.x.' among train"),
        ("tfds:plain/train?data_dir={0}&fields=lable", "unknown field 'lable', wanted one of: .*did you mean label"),
        ("tfds:plain/train?datadir={0}", "unknown option 'datadir'.*did you mean data_dir"),
        (
            "tfds:no_such/train?data_dir={0}",
            "no dataset 'no_such' in {0}(.|\n)*tfds build no_such --file_format=array_",
        ),
        ("tfds:plain:9.0.0/train?data_dir={0}", "no dataset 'plain:9.0.0' in {0}"),
        (
            "tfds:mnist/train?data_dir={0}",
            "not prepared in {0}/mnist(.|\n)*tfds build mnist --file_format=array_record",
        ),
        ("tfds:as_tfrecord/train?data_dir={0}", "array_record(.|\n)*tfds build as_tfrecord"),
    ],
)
def test_what_is_not_there_is_told_with_the_way_to_make_it(data_dir: str, spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message.format(data_dir)):
        open_source(spec.format(data_dir))
    assert not (Path(data_dir) / "downloads" / "mnist").exists()


def test_a_damaged_file_is_named(data_dir: str, tmp_path: Path) -> None:
    store(str(tmp_path), "damaged", {"n": tfds.features.Scalar(dtype=np.int32)}, [{"n": 1}] * 9, "array_record")
    (file,) = tmp_path.rglob("*.array_record*")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"{file} cannot be read as ArrayRecord"):
        open_source(f"tfds:damaged/train?data_dir={tmp_path}")


def test_reading_needs_no_tensorflow(data_dir: str) -> None:
    """Its import takes longer than most starts."""
    code = f"""
import sys, numpy
from hostmesh.worker.sources import open_source
open_source("tfds:plain/train?data_dir={data_dir}").read(numpy.arange(5))
assert "tensorflow" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], env=clean_env(), cwd=REPO, check=True, timeout=240)


def test_a_missing_package_is_named_with_its_extra(data_dir: str) -> None:
    code = """
import sys
sys.modules["tensorflow_datasets"] = None
from hostmesh.worker.sources import open_source
from hostmesh.worker.errors import MissingPackageError
try:
    open_source("tfds:mnist/train")
except MissingPackageError as error:
    print(error)"""
    run = subprocess.run([sys.executable, "-c", code], env=clean_env(), cwd=REPO, check=True, capture_output=True)
    assert b"tfds:mnist/train needs tensorflow-datasets: pip install 'hostmesh[tensorflow]'" in run.stdout
