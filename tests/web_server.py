"""A small server of files, which knows ranges, and versions only where a test gives it some."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.asked: list[str] = []  # the ranges
        self.drip = 0.0  # seconds after each byte of an answer

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Whoever asked has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        name = self.path.lstrip("/").partition("?")[0]
        data, asked = self.server.files.get(name), self.headers.get("Range", "")
        self.server.asked.append(asked)
        if data is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last = asked.removeprefix("bytes=").split("-") if asked else ("0", str(len(data)))
        part = data[int(first) : int(last) + 1]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        if name in self.server.etags:
            self.send_header("ETag", self.server.etags[name])
        self.end_headers()
        if not self.server.drip or len(part) < 2:
            self.wfile.write(part)
            return
        for at in range(len(part)):
            self.wfile.write(part[at : at + 1])
            time.sleep(self.server.drip)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Web]:
    server = Web()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
