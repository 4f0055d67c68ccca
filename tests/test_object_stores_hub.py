"""Files on the Hugging Face hub, on a small server of ours that answers as the hub does."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from conftest import clean_env

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.stores.hub import HubPlace

TOKEN = "hf_only-for-this-test"
ROWS = np.arange(4000, dtype=np.int32).reshape(500, 8)


def as_npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class Hub(ThreadingHTTPServer):
    """One private dataset, `me/rows`; its bytes are sent from another place, as those of large files are."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"train/a.npy": as_npy(ROWS), "train/b.npy": as_npy(ROWS * 2), "README.md": b"rows"}
        self.etag = '"one"'
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.server.asked.append(path)
        if path.startswith("/bytes/"):
            self.send_part(self.server.files[path.removeprefix("/bytes/")])
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer(401, b"")
        elif path.startswith("/api/datasets/me/rows/tree/main/"):
            self.send_list(path)
        elif (name := path.removeprefix("/datasets/me/rows/resolve/main/")) in self.server.files:
            self.answer(302, b"", Location=f"{self.server.address}/bytes/{name}")
        else:
            self.answer(404, b"")

    def send_list(self, path: str) -> None:
        """Two pages of one file each, as far as there are so many."""
        folder, _, cursor = path.removeprefix("/api/datasets/me/rows/tree/main/").partition("?recursive=true")
        found = [name for name in sorted(self.server.files) if name.startswith(folder)]
        at = int(cursor.removeprefix("&cursor=") or 0)
        link = f'<{self.server.address}{path.partition("&")[0]}&cursor={at + 1}>; rel="next"'
        more = {"Link": link} if at + 1 < len(found) else {}
        self.answer(200, json.dumps([{"type": "file", "path": name} for name in found[at : at + 1]]).encode(), **more)

    def send_part(self, data: bytes) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        where = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self.answer(206, part, **{"Content-Range": where, "ETag": self.server.etag})

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    pytest.importorskip("aiohttp")
    pytest.importorskip("huggingface_hub")
    server = Hub()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HOSTMESH_DATA_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_rows_are_those_of_the_file(hub: Hub) -> None:
    source = hostmesh.open_source("npy:hf://datasets/me/rows/train/a.npy")
    ids = np.array([499, 0, 7, 7])
    assert source.read(ids).tolist() == ROWS[ids].tolist()


def test_a_folder_is_listed_page_by_page(hub: Hub) -> None:
    source = hostmesh.open_source("npy:hf://datasets/me/rows/train")
    assert {name: rows.tolist() for name, rows in source.read(np.array([3])).items()} == {
        "a": [ROWS[3].tolist()],
        "b": [(ROWS[3] * 2).tolist()],
    }


def test_the_token_is_the_hubs_alone_and_in_no_message(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(DataError, match="refuses access .*HF_TOKEN") as caught:
        hostmesh.open_source("npy:hf://datasets/me/rows/train/a.npy")
    assert "hf_wrong" not in str(caught.value)
    assert not any(path.startswith("/bytes/") for path in hub.asked)


def test_a_branch_that_moves_on_is_noticed(hub: Hub) -> None:
    source = hostmesh.open_source("npy:hf://datasets/me/rows/train/a.npy")
    hub.etag = '"two"'
    with pytest.raises(DataError, match="has changed since it was opened"):
        source.read(np.array([400]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("npy:hf://datasets/me/rows/train/c.npy", "c.npy does not exist"),
        ("npy:hf://rows.npy", "wanted hf://datasets/USER/NAME/PATH"),
        ("npy:hf://datasets/me", "wanted hf://datasets/USER/NAME/PATH"),
    ],
)
def test_what_is_not_there_is_told(hub: Hub, spec: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hostmesh.open_source(spec)


def test_the_hub_itself_is_asked_where_no_other_is_named() -> None:
    """In a Python of its own: here somebody may have imported what the store is to import."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("huggingface_hub")
    program = """
from hostmesh.worker.remote.stores.hub import HubStore
print(HubStore()._address("hf://datasets/me/rows@refs/convert/parquet/train/0.parquet"))
"""
    env = {name: value for name, value in clean_env().items() if name != "HF_ENDPOINT"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == (
        "https://huggingface.co/datasets/me/rows/resolve/refs%2Fconvert%2Fparquet/train/0.parquet"
    ), done.stderr


@pytest.mark.parametrize(
    ("url", "revision", "path"),
    [
        ("hf://datasets/me/rows@refs/convert/parquet/train/0.parquet", "refs/convert/parquet", "train/0.parquet"),
        ("hf://datasets/me/rows@refs/pr/1/a.npy", "refs/pr/1", "a.npy"),
        ("hf://me/model@v1.0/train/a.npy", "v1.0", "train/a.npy"),
        ("hf://datasets/me/rows/train/a.npy", "main", "train/a.npy"),
    ],
)
def test_a_revision_may_be_one_that_the_hub_has_made(url: str, revision: str, path: str) -> None:
    found = HubPlace.parse(url)
    assert (found.revision, found.path) == (revision, path)
