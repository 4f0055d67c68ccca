"""Real servers of object stores on this machine, and a proxy before one that fails as a test asks."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from conftest import HANGS, clean_env

# `SECRET` must be in nothing that a run leaves behind.
KEY_ID, SECRET = "AKIATESTKEYOFTHETESTS", "hidden/secret+of+the+tests/0123456789abcd"
BUCKET = "data"
S3_SERVER = """
import logging, threading
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
server.serve_forever()
"""
GCS_SERVER = """
import logging, threading
from gcp_storage_emulator.server import create_server
logging.disable(logging.INFO)
server = create_server("127.0.0.1", 0, in_memory=True)
server.start()
print(server._api._httpd.server_port, flush=True)
threading.Event().wait()
"""


@contextmanager
def serve(program: str, log: Path) -> Iterator[str]:
    """The address of a server that runs until the end of the block."""
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=errors, env=clean_env(), text=True
        )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        assert port.isdecimal(), log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def s3_env(address: str, cache: Path, **more: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOSTMESH_DATA_CACHE": str(cache),
        **more,
    }


def ask(method: str, url: str, data: bytes | None = None, **headers: str) -> bytes:
    """moto looks at no signature, and its store wants none."""
    asked = urllib.request.Request(url, data, {"Content-Type": "application/octet-stream", **headers}, method=method)
    with urllib.request.urlopen(asked, timeout=HANGS) as answer:
        found: bytes = answer.read()
        return found


def make_bucket(address: str, bucket: str = BUCKET) -> None:
    ask("PUT", f"{address}/{bucket}", Authorization=f"AWS {KEY_ID}:x")


def put(address: str, name: str, data: bytes) -> None:
    ask("PUT", f"{address}/{BUCKET}/{name}", data, Authorization=f"AWS {KEY_ID}:x")


def put_folder(address: str, folder: Path, under: str = "") -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(address, f"{under}{path.relative_to(folder)}", path.read_bytes())


def delete(address: str, name: str) -> None:
    ask("DELETE", f"{address}/{BUCKET}/{name}", Authorization=f"AWS {KEY_ID}:x")


# What a proxy is to do with a request: nothing special, answer with this status, or cut the body after so many bytes.
Fault = int | tuple[str, int] | None
# Is given the number of a request, its method and its path with the query.
Choose = Callable[[int, str, str], Fault]


class Proxy:
    """Passes requests on to a server, and keeps what it was asked for."""

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("http://")
        self.reset()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy.pass_on(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.delay = 0.0
        self.hangs_up = False  # after each answer, without a word before
        self.choose: Choose = lambda number, method, path: None
        self.requests: list[tuple[str, str, str]] = []  # method, path, range

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def gets(self, name: str = "") -> list[str]:
        """The ranges that were asked for of a file."""
        return [asked for method, path, asked in self.requests if method == "GET" and name in path]

    def pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            number = len(self.requests)
            self.requests.append((handler.command, handler.path, handler.headers.get("Range", "")))
        if self.delay:
            time.sleep(self.delay)
        fault = self.choose(number, handler.command, handler.path)
        if isinstance(fault, int):
            handler.send_response(fault)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        there = http.client.HTTPConnection(self.target, timeout=HANGS)
        try:
            headers = {name: value for name, value in handler.headers.items() if name.lower() != "connection"}
            there.request(handler.command, handler.path, headers=headers)
            answer = there.getresponse()
            self._send(handler, answer, answer.read(), fault[1] if fault else None)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True
        finally:
            there.close()

    def _send(self, handler: BaseHTTPRequestHandler, answer: Any, body: bytes, cut: int | None) -> None:
        handler.send_response(answer.status)
        size = answer.headers.get("Content-Length") if handler.command == "HEAD" else str(len(body))
        for name, value in answer.headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding", "server", "date"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", size or "0")
        handler.end_headers()
        handler.wfile.write(body if cut is None else body[:cut])
        if cut is not None or self.hangs_up:
            handler.wfile.flush()
            handler.close_connection = True
