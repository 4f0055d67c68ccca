"""Stores that trickle, that answer with something else, and settings that name what is not there: told, and in time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import web_server
from object_stores import s3_env
from test_object_stores_versions import as_npy
from web_server import Web

from hostmesh.worker.errors import DataError, StoreError
from hostmesh.worker.remote import fetching
from hostmesh.worker.remote.failures import StoreFailure
from hostmesh.worker.remote.fetching import Limits
from hostmesh.worker.remote.stores import timeouts
from hostmesh.worker.remote.stores.direct import Connections
from hostmesh.worker.remote.stores.timeouts import Timeouts
from hostmesh.worker.sources import open_source

pytest.importorskip("s3fs", reason="hostmesh[object-stores]")
pytest.importorskip("gcsfs", reason="hostmesh[object-stores]")

ROWS = np.arange(4_000, dtype=np.int32)
# A request of some kilobytes may take about a second.
SHORT = Timeouts(connect=1.0, silence=0.5, rate=64 << 10, unknown=16 << 10)


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("HOSTMESH_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetching, "LIMITS", Limits(tries=2, first_pause=0.001))
    monkeypatch.setattr(timeouts, "TIMEOUTS", SHORT)
    with web_server.serve() as server:
        yield server


def test_a_server_that_trickles_is_given_up(web: Web) -> None:
    """It is never silent for as long as is waited for the next byte."""
    web.files["a.npy"], web.drip = as_npy(ROWS), 0.1
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"gave no good answer in 2 tries over [12] s \(TimeoutError\)"):
        open_source(f"npy:{web.address}/a.npy")
    assert time.monotonic() - began < 5


def test_a_store_that_trickles_is_given_up_by_the_direct_way_too(web: Web) -> None:
    web.files["a.npy"], web.drip = as_npy(ROWS), 0.1
    connections = Connections(1.0, 0.5)
    began = time.monotonic()
    with pytest.raises(StoreFailure) as told:
        connections.get(f"{web.address}/a.npy", {}, 1.0)
    assert told.value.words == "TimeoutError" and time.monotonic() - began < 3
    web.drip = 0.0
    for _ in range(2):  # of which the second goes through the connection of the first
        status, _, data = connections.get(f"{web.address}/a.npy", {}, 10.0)
        assert (status, bytes(data)) == (200, as_npy(ROWS))
    connections.close()


def test_a_large_answer_has_more_time_than_a_small_one() -> None:
    limits = Timeouts()
    assert limits.seconds(1) < limits.seconds(None) < limits.seconds(16 << 20)


@pytest.mark.parametrize("answer", [b"<html>Log in</html>", b"[]", b'{"a": 1}', b'"text"', b'[{"path": "x"}]', b"7"])
def test_an_answer_that_is_not_the_stores_is_told(web: Web, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", web.address)
    monkeypatch.setenv("HF_ENDPOINT", web.address)
    web.files |= dict.fromkeys(("storage/v1/b/data/o/x.npy", "storage/v1/b/data/o"), answer)
    web.files["api/datasets/me/rows/tree/main/train/"] = web.files["api/datasets/me/rows/tree/main/train"] = answer
    is_empty = {"npy:gs://data/folder": answer == b'{"a": 1}', "npy:hf://datasets/me/rows/train": answer == b"[]"}
    for spec in ("npy:gs://data/x.npy", "npy:gs://data/folder", "npy:hf://datasets/me/rows/train"):
        said = "holds no .npy file" if is_empty.get(spec) else "gave no good answer in 2 tries .*not in the store's own"
        with pytest.raises(DataError, match=said):
            open_source(spec)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("AWS_ENDPOINT_URL", "localhost:9000", "AWS_ENDPOINT_URL names no server: found 'localhost:9000', wanted"),
        ("AWS_ENDPOINT_URL", "http://me:hidden@", "AWS_ENDPOINT_URL names no server: found 'http://…@', wanted"),
        ("AWS_ENDPOINT_URL_S3", "http://h:x", "AWS_ENDPOINT_URL_S3 names no server"),
        ("AWS_CA_BUNDLE", "/no/such.pem", "AWS_CA_BUNDLE names /no/such.pem, which cannot be read: No such file"),
        ("AWS_CA_BUNDLE", __file__, "AWS_CA_BUNDLE names .*, in which there is no certificate"),
    ],
)
def test_a_setting_of_s3_that_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    for each, usual in {**s3_env("http://127.0.0.1:1", tmp_path / "cache"), name: value}.items():
        monkeypatch.setenv(each, usual)
    with pytest.raises(DataError, match=message) as told:
        open_source("npz:s3://data/a.npz")
    assert "hidden" not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "key.json, which cannot be read: No such file or directory; wanted a file with the key of an account"),
        ("private", "key.json, which is no JSON"),
        ("{}", "key.json, which holds no credentials"),
    ],
)
def test_a_file_of_googles_credentials_that_is_none_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    if text is not None:
        (tmp_path / "key.json").write_text(text)
    began = time.monotonic()
    with pytest.raises(DataError, match=f"GOOGLE_APPLICATION_CREDENTIALS names .*{message}") as told:
        open_source("npz:gs://data/a.npz")
    assert time.monotonic() - began < 5 and "private" not in str(told.value)


def test_an_address_of_a_hub_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "mirror.example.org")
    with pytest.raises(DataError, match="HF_ENDPOINT names no server: found 'mirror.example.org', wanted its address"):
        open_source("npy:hf://datasets/me/rows/a.npy")
