"""What is known of files in a store by its word for them, and where it has none: no old rows, and no false claims."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import web_server
from test_whose_data import make_loader, read_position, refusal, resume, save
from web_server import Web

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.sources import open_source
from hostmesh.worker.verify.marks import Mark, compare_marks

pytest.importorskip("aiohttp", reason="hostmesh[object-stores]")

ROWS = np.random.default_rng(0).integers(0, 256, (6_000, 1_000), np.uint8)  # more than is read of a file at once


def as_npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def as_npz(array: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, rows=array)
    return file.getvalue()


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("HOSTMESH_DATA_CACHE", str(tmp_path / "cache"))
    with web_server.serve() as server:
        yield server


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "saved"


def test_a_file_without_a_version_that_was_replaced_gives_its_new_rows(web: Web) -> None:
    """By as many other bytes."""
    for name, pack in (("a.npz", as_npz), ("b.npy", as_npy)):
        for value in (1, 2):
            web.files[name] = pack(np.full((10, 4), value, np.int32))
            source = open_source(f"{name[2:]}:{web.address}/{name}")
            block = source.read(np.array([3]))
            row = block["rows"] if isinstance(block, dict) else block
            assert row.tolist() == [[value] * 4]


def test_a_file_with_a_version_is_fetched_once(web: Web) -> None:
    web.files["b.npy"], web.etags["b.npy"] = as_npy(ROWS), '"one"'
    for _ in range(2):
        open_source(f"npy:{web.address}/b.npy").read(np.arange(100))
    assert len([asked for asked in web.asked if asked not in ("bytes=0-0", "bytes=0-4095")]) == 1
    one, other = (RemoteFile("http://h/a", 8, "", "") for _ in range(2))
    assert one == other and one.key() == one.key() != other.key()


def test_the_content_of_a_file_without_a_version_is_that_of_its_bytes(web: Web, saved: Path, large: Path) -> None:
    """As if it lay here."""
    web.files["train.npy"] = large.read_bytes()
    save(saved, make_loader(f"npy:{large}"))
    assert resume(saved, make_loader(f"npy:{web.address}/train.npy")) is not None
    web.files["train.npy"] = flip(large.read_bytes(), 3_000_000)
    told = refusal(saved, make_loader(f"npy:{web.address}/train.npy"))
    assert "have changed since: train.npy: 6,000,128 bytes then and now, but other bytes (found in chunk " in told


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "train.npy"
    np.save(path, ROWS)
    return path


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_of_a_file_that_went_to_a_store_the_bytes_are_compared(web: Web, saved: Path, large: Path) -> None:
    save(saved, make_loader(f"npy:{large}"))
    web.files["train.npy"], web.etags["train.npy"] = large.read_bytes(), '"5f2b-2"'
    assert resume(saved, make_loader(f"npy:{web.address}/train.npy")) is not None
    for at in (128, 3_000_000):  # the second lies between the chunks that are read at first
        web.files["train.npy"], web.etags["train.npy"] = flip(large.read_bytes(), at), f'"{at}"'
        told = refusal(saved, make_loader(f"npy:{web.address}/train.npy"))
        assert "have changed since: train.npy: 6,000,128 bytes then and now, but other bytes (found in chunk " in told


def test_another_version_in_a_store_is_not_told_as_other_bytes(web: Web, saved: Path) -> None:
    web.files["train.npy"], web.etags["train.npy"] = as_npy(ROWS), '"one"'
    save(saved, make_loader(f"npy:{web.address}/train.npy"))
    assert "all_bytes" not in read_position(saved)["data"], "none was read"
    assert resume(saved, make_loader(f"npy:{web.address}/train.npy")) is not None
    web.etags["train.npy"] = '"two-2"'
    told = refusal(saved, make_loader(f"npy:{web.address}/train.npy"))
    said = "train.npy: another version in the store, of 6,000,128 bytes then and now; its bytes were not compared"
    assert f"was trained on data that may have changed since: {said}; put the old data back, or" in told
    assert "--data-changed ok" in told and "other bytes" not in told
    assert resume(saved, make_loader(f"npy:{web.address}/train.npy"), data_changed="ok") is not None


def test_of_a_file_that_came_from_a_store_nothing_is_claimed(web: Web, saved: Path, large: Path) -> None:
    web.files["train.npy"], web.etags["train.npy"] = large.read_bytes(), '"one"'
    save(saved, make_loader(f"npy:{web.address}/train.npy"))
    told = refusal(saved, make_loader(f"npy:{large}"))
    said = "train.npy: in a store then and here now, 6,000,128 bytes each; its bytes were not compared"
    assert f"may have changed since: {said}; put" in told


def test_a_step_of_an_earlier_hostmesh_is_known_to_be_of_versions() -> None:
    old = {"name": "a.npy", "size": 8, "stamp": ["version one"], "all": "aaaaaaaa"}
    now = Mark("a.npy", 8, None, ("bbbbbbbb",), ["version two"], is_version=True)
    assert "its bytes were not compared" in compare_marks([Mark.from_json(old)], [now], 1)[0]
    assert Mark.from_json(now.to_json()).is_version
    here = Mark("rows", 8, None, ("bbbbbbbb",), None)
    assert compare_marks([here, here], [now], 1) == [
        "2 arrays or files here then, 1 file in a store now; its bytes were not compared"
    ]


def test_a_store_that_falls_silent_while_it_is_compared_is_told(
    web: Web, saved: Path, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(saved, make_loader(f"npy:{large}"))
    web.files["train.npy"], web.etags["train.npy"] = large.read_bytes(), '"one"'
    loader = make_loader(f"npy:{web.address}/train.npy")
    del web.files["train.npy"]
    told = refusal(saved, loader)
    assert "its data cannot be compared with those that are there now: " in told and "does not exist" in told


def test_an_opened_file_without_records_is_told(web: Web) -> None:
    web.files["none.npy"] = as_npy(np.zeros((0, 4)))
    with pytest.raises(DataError, match="the source has no records, wanted at least one"):
        make_loader(f"npy:{web.address}/none.npy")
