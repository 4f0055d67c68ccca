"""Sources of libraries from object stores, and other stores than Amazon's: the same rows as from local files."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import object_stores as stores
import pytest
from conftest import Library
from object_stores import BUCKET, put, put_folder, s3_env
from test_sources import assert_same

from hostmesh.worker.errors import DataError, StoreError
from hostmesh.worker.remote import fetching, ranges
from hostmesh.worker.remote.content import RemoteContent
from hostmesh.worker.remote.fetching import Limits
from hostmesh.worker.remote.folders import check_places
from hostmesh.worker.sources import open_source

pytest.importorskip("s3fs", reason="hostmesh[object-stores]")
pytest.importorskip("moto", reason="hostmesh[test]")
tfds = Library("tensorflow_datasets", "tensorflow")
datasets = Library("datasets", "hugging-face")

COUNT = 60
NUMBERS = np.arange(COUNT)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with stores.serve(stores.S3_SERVER, tmp_path_factory.mktemp("s3") / "log") as address:
        stores.make_bucket(address)
        yield address


@pytest.fixture(autouse=True)
def env(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    monkeypatch.setattr(fetching, "LIMITS", Limits(tries=6, first_pause=0.001, longest_pause=0.01))
    address = request.getfixturevalue("s3") if "s3" in request.fixturenames else "http://127.0.0.1:1"
    for name, value in s3_env(address, tmp_path / "cache").items():
        monkeypatch.setenv(name, value)


def check_same(found: Any, wanted: Any) -> None:
    ids = np.random.default_rng(0).permutation(len(wanted))
    assert len(found) == len(wanted)
    for one, other in zip(found.records(ids), wanted.records(ids), strict=True):
        assert_same(one, other)


@pytest.mark.xdist_group("hugging face")
@pytest.mark.parametrize("how", ["saved", "splits", "parquet", "folder"])
def test_hugging_face_from_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    data = datasets.Dataset.from_dict({"label": NUMBERS.tolist(), "text": [f"number {n}" for n in NUMBERS]})
    folder = tmp_path / how
    split = "?split=train"
    if how == "saved":
        data.save_to_disk(str(folder))
        split = ""
    elif how == "splits":
        datasets.DatasetDict({"train": data, "test": data.select(range(5))}).save_to_disk(str(folder))
    else:
        folder.mkdir()
        data.to_parquet(str(folder / "train.parquet"))
    put_folder(s3, folder, f"{how}/")
    at = f"{how}/train.parquet" if how == "parquet" else how
    found = open_source(f"hf:s3://{BUCKET}/{at}{split}")
    check_same(found, open_source(f"hf:{tmp_path}/{at}{split}"))
    assert isinstance(found.content, RemoteContent)  # the word of the store, not rows


@pytest.mark.xdist_group("tensorflow")
def test_tfds_from_s3(s3: str, tmp_path: Path) -> None:
    folder = tmp_path / "tfds"
    records = [{"label": int(n), "image": np.full((4, 3, 1), n, np.uint8)} for n in NUMBERS]
    features = tfds.features.FeaturesDict(
        {"label": tfds.features.ClassLabel(num_classes=COUNT), "image": tfds.features.Image(shape=(4, 3, 1))}
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="rows",
        version="1.0.0",
        features=features,
        split_datasets={"train": list(enumerate(records))},
        data_dir=folder,
        file_format="array_record",
        disable_shuffling=True,
    )
    put_folder(s3, folder, "tfds/")
    for split in ("train", "train[10:20]"):
        found = open_source(f"tfds:rows/{split}?data_dir=s3://{BUCKET}/tfds")
        check_same(found, open_source(f"tfds:rows/{split}?data_dir={folder}"))
    with pytest.raises(DataError, match=f"no dataset 'none' in s3://{BUCKET}/tfds"):
        open_source(f"tfds:none/train?data_dir=s3://{BUCKET}/tfds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    np.save(folder / "rows.npy", np.arange(3_000).reshape(1_000, 3))
    np.savez(folder / "rows.npz", rows=np.arange(3_000).reshape(1_000, 3))
    np.arange(5_000, dtype="<u2").tofile(folder / "train-0.bin")
    np.arange(5_000, dtype="<u2").tofile(folder / "train-1.bin")
    return folder


@pytest.fixture(scope="module")
def gcs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("gcp_storage_emulator", reason="hostmesh[test]")
    with stores.serve(stores.GCS_SERVER, tmp_path_factory.mktemp("gcs") / "log") as address:
        stores.ask(
            "POST",
            f"{address}/storage/v1/b?project=tests",
            json.dumps({"name": BUCKET}).encode(),
            **{"Content-Type": "application/json"},
        )
        for path in folder.iterdir():
            put_google(address, path.name, path.read_bytes())
        yield address


def put_google(address: str, name: str, data: bytes) -> None:
    at = f"{address}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
    stores.ask("POST", at, data)


@pytest.mark.xdist_group("object stores")
@pytest.mark.parametrize(
    "spec", ["npy:{}/rows.npy", "npz:{}/rows.npz", "tokens:{}/train-*.bin?dtype=uint16&length=70&next=1"]
)
def test_google_storage_gives_what_local_files_give(
    gcs: str, folder: Path, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs)
    monkeypatch.setattr(ranges, "BLOCK", 1_000)
    check_same(open_source(spec.format(f"gs://{BUCKET}")), open_source(spec.format(folder)))


@pytest.mark.xdist_group("object stores")
def test_google_storage_tells_what_is_missing_and_what_has_changed(gcs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs)
    with pytest.raises(StoreError, match="gs://data/none.npy does not exist"):
        open_source("npy:gs://data/none.npy")
    with pytest.raises(StoreError, match="there is no bucket nothing at http://"):
        open_source("npy:gs://nothing/rows.npy")
    with pytest.raises(DataError, match="no file matches gs://data/x-"):
        open_source("tokens:gs://data/x-*?dtype=uint8&length=1")


@pytest.fixture
def plain_server(folder: Path) -> Iterator[str]:
    """Python's own, which knows no ranges."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def check_http(address: str, folder: Path) -> None:
    for spec in ("npy:{}/rows.npy", "npz:{}/rows.npz"):
        check_same(open_source(spec.format(address)), open_source(spec.format(folder)))
    with pytest.raises(StoreError, match="HTTP knows no folders"):
        open_source(f"tokens:{address}/x-*?dtype=uint8&length=1")


@pytest.mark.xdist_group("object stores")
def test_plain_http_gives_what_local_files_give(s3: str, folder: Path) -> None:
    """moto serves what everybody may read as any server of files does."""
    for name in ("rows.npy", "rows.npz"):
        headers = {"Authorization": f"AWS {stores.KEY_ID}:x", "x-amz-acl": "public-read"}
        stores.ask("PUT", f"{s3}/{BUCKET}/{name}", (folder / name).read_bytes(), **headers)
    check_http(f"{s3}/{BUCKET}", folder)


@pytest.mark.xdist_group("object stores")
def test_a_server_without_ranges_gives_the_same(plain_server: str, folder: Path) -> None:
    check_http(plain_server, folder)
    with pytest.raises(StoreError, match="/none.npy does not exist .HTTP status 404"):
        open_source(f"npy:{plain_server}/none.npy")


def test_a_folder_of_pictures_from_s3(s3: str, tmp_path: Path) -> None:
    pictures = pytest.importorskip("PIL.Image", reason="hostmesh[images]")
    for n in range(6):
        path = tmp_path / "photos" / ("cats" if n % 2 else "dogs") / f"{n // 2}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures.new("RGB", (8 + n, 9), (n, 2 * n, 3 * n)).save(path)
    put_folder(s3, tmp_path / "photos", "photos/")
    found = open_source(f"images:s3://{BUCKET}/photos")
    check_same(found, open_source(f"images:{tmp_path / 'photos'}"))
    assert isinstance(found.content, RemoteContent) and len(found.content.files) == 6


@pytest.mark.parametrize("kind", ["images", "hf"])
@pytest.mark.parametrize("name", ["/{}/pwned.png", "../../{}/pwned.png", "a/../../../{}/pwned.png", "a//pwned.png"])
def test_a_name_in_a_store_that_leads_out_of_its_folder_is_refused(
    s3: str, tmp_path: Path, kind: str, name: str
) -> None:
    pytest.importorskip({"images": "PIL", "hf": "datasets"}[kind])
    outside = tmp_path / "outside"
    folder = f"evil-{kind}-{tmp_path.name}"
    put(s3, f"{folder}/fine.png", b"fine")
    put(s3, f"{folder}/{name.replace('{}', str(outside)[1:])}", b"evil")
    with pytest.raises(DataError, match=f"s3://{BUCKET}/{folder} holds the name '.*pwned.png', which would lead out"):
        open_source(f"{kind}:s3://{BUCKET}/{folder}")
    assert not outside.exists() and not list(tmp_path.rglob("*.png")), "nothing is linked"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (["/abs"], "would lead out"),
        (["", "b"], "would lead out"),
        (["a/.."], "would lead out"),
        (["a/./b"], "would lead out"),
        (["s3://other/name"], "would lead out"),
        (["a\0b"], "would lead out"),
        (["a", "a/b"], "'a' both as a file and as the folder of 'a/b'"),
    ],
)
def test_names_that_no_folder_can_have_are_refused(places: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        check_places("s3://data/evil", places)
    check_places("s3://data/fine", ["a", "b/c", "b/..d", "b/e..", ".f"])


def test_messages_of_a_mirrored_folder_name_its_url(s3: str) -> None:
    put(s3, "words/notes.txt", b"no picture")
    put(s3, "broken.parquet", b"no parquet")
    with pytest.raises(DataError, match="^s3://data/words holds no picture; wanted files that end with"):
        open_source("images:s3://data/words")
    with pytest.raises(DataError, match="^s3://: wanted s3://BUCKET/PATH"):
        open_source("images:s3://")


@pytest.mark.xdist_group("hugging face")
def test_a_file_that_cannot_be_loaded_is_named_by_its_url(s3: str, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    put(s3, "broken.txt", b"no table")
    put(s3, "torn/state.json", b"{")
    for spec in ("hf:s3://data/broken.txt", "hf:s3://data/torn"):
        with pytest.raises(DataError, match=f"^{spec} cannot be loaded: ") as told:
            open_source(spec)
        assert str(tmp_path) not in str(told.value)
