"""Object stores for tests: moto's S3 server and a GCS emulator, behind a door that can be slow, shut or cut off."""

from __future__ import annotations

import http.client
import http.server
import json
import logging
import threading
import time
from collections.abc import Callable
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

TOKEN = "correct-horse-battery-staple"
# What a request is to meet: nothing, seconds to wait, a status, or the end of the connection in the middle.
Fate = float | int | str | None


class Door(http.server.ThreadingHTTPServer):
    """Passes requests on. `fate` decides what becomes of one, by its method and path."""

    daemon_threads = True

    def __init__(self, inner_port: int, complete_gcs: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.inner_port, self.complete_gcs = inner_port, complete_gcs
        self.fate: Callable[[str, str], Fate] = lambda method, path: None
        self.seen: list[str] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *args: object) -> None:
        """A client that was killed says nothing more."""

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> _Answer:
        inner = http.client.HTTPConnection("127.0.0.1", self.inner_port, timeout=60)
        inner.request(method, path, body, headers or {})
        answer = inner.getresponse()
        found = _Answer(answer.status, dict(answer.getheaders()), answer.read())
        inner.close()
        return found


class _Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer goes out at once and whole: two small packets would wait for each other
    disable_nagle_algorithm = True
    server: Door

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append(f"{self.command} {self.path}")
        fate = self.server.fate(self.command, self.path)
        if isinstance(fate, float):
            time.sleep(fate)
        if isinstance(fate, int):
            self.reply(_Answer(fate, {}, make_error(fate)))
        elif not self.is_allowed():
            self.reply(_Answer(401, {}, make_error(401)))
        elif self.server.complete_gcs:
            with self.server.lock:
                answer = self.ask_gcs(body)
            self.reply(answer, fate)
        else:
            self.reply(self.server.ask(self.command, self.path, body, dict(self.headers)), fate)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = relay

    def is_allowed(self) -> bool:
        """By moto itself where it is S3."""
        return not self.server.complete_gcs or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def ask_gcs(self, body: bytes) -> _Answer:
        """What the emulator lacks: conditions on the generation of an object, and its generation when it is read."""
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        bucket, _, name = parts.path.partition("/b/")[2].partition("/o")
        name = unquote(query.get("name") or name.removeprefix("/"))
        found = self.server.ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}") if name else None
        generation = json.loads(found.body)["generation"] if found and found.status == 200 else "0"
        if query.get("ifGenerationMatch", generation) != generation:
            return _Answer(412, {}, b"conditionNotMet")
        answer = self.server.ask(self.command, self.path, body, dict(self.headers))
        if self.command == "GET" and query.get("alt") == "media":
            answer.headers["x-goog-generation"] = generation
        return answer

    def reply(self, answer: _Answer, fate: Fate = None) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body if fate != "cut" else answer.body[: len(answer.body) // 2])
        if fate == "cut":
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def make_error(status: int) -> bytes:
    """As Google's servers say it."""
    return json.dumps({"error": {"code": status, "message": f"error {status}", "errors": []}}).encode()


class Store:
    """One real server with a bucket, and what a program needs to be told to use it."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        inner_port, self._stop = start_gcs() if scheme == "gs" else start_s3()
        self.key, self.secret = ("", TOKEN) if scheme == "gs" else make_key(inner_port)
        self.door = Door(inner_port, complete_gcs=scheme == "gs")

    def env(self, secret: str = "") -> dict[str, str]:
        secret = secret or self.secret
        if self.scheme == "gs":
            return {"TENSORSTORE_GCS_HTTP_URL": self.door.url, "GOOGLE_AUTH_TOKEN_FOR_TESTING": secret}
        return {"AWS_ENDPOINT_URL": self.door.url, "AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": secret}

    @property
    def boto_keys(self) -> dict[str, str]:
        return {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret}

    def close(self) -> None:
        self.door.shutdown()
        self.door.server_close()
        self._stop()


def start_gcs() -> tuple[int, Callable[[], None]]:
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator")
    logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    return server._api._httpd.server_address[1], server.stop


def start_s3() -> tuple[int, Callable[[], None]]:
    moto = pytest.importorskip("moto.server", reason="moto[server]")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    return server.get_host_and_port()[1], server.stop


def make_key(port: int) -> tuple[str, str]:
    """The bucket, and a user who may do everything; from then on moto checks who asks."""
    boto3 = pytest.importorskip("boto3", reason="moto[server]")
    anybody = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    iam, s3 = (boto3.client(name, endpoint_url=f"http://127.0.0.1:{port}", **anybody) for name in ("iam", "s3"))
    s3.create_bucket(Bucket="bucket")
    iam.create_user(UserName="trainer")
    key = iam.create_access_key(UserName="trainer")["AccessKey"]
    everything = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}, "Version": "2012-10-17"}
    iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=json.dumps(everything))
    inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    inner.request("POST", "/moto-api/reset-auth", b"0")
    assert inner.getresponse().status == 200
    inner.close()
    return key["AccessKeyId"], key["SecretAccessKey"]
