"""Requests that are signed already, sent by the standard library: a large answer goes straight into memory, without the
interpreter's lock, where an event loop handles it piece by piece."""

from __future__ import annotations

import io
import math
import ssl
import threading
import time
from collections.abc import Mapping
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from hostmesh.worker.remote.failures import Kind, StoreFailure


class Connections:
    """One for each thread and address, kept open."""

    def __init__(self, connect_timeout: float, read_timeout: float) -> None:
        self._timeouts = connect_timeout, read_timeout
        self._own = threading.local()

    def get(self, url: str, headers: Mapping[str, str], seconds: float = math.inf) -> tuple[int, Any, bytearray]:
        """Status, headers and body; of a transfer that was cut what has come. After so many seconds it is given up."""
        deadline = time.monotonic() + seconds
        address = urlsplit(url)
        where = f"{address.scheme}://{address.netloc}"
        path = f"{address.path or '/'}{f'?{address.query}' if address.query else ''}"
        try:
            connection, answer = self._send(where, path, headers, deadline)
        except (OSError, HTTPException) as error:
            raise StoreFailure(Kind.NO_ANSWER, type(error).__name__) from None
        try:
            body = read_body(answer)
        except (OSError, HTTPException) as error:
            connection.close()
            raise StoreFailure(Kind.NO_ANSWER, type(error).__name__) from None
        if answer.isclosed() and not answer.will_close:
            self._own.__dict__[where] = connection
        else:
            connection.close()
        return answer.status, answer.headers, body

    def close(self) -> None:
        """What this thread has kept open."""
        for connection in self._own.__dict__.values():
            connection.close()
        self._own.__dict__.clear()

    def _send(
        self, where: str, path: str, headers: Mapping[str, str], deadline: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        kept: HTTPConnection | None = self._own.__dict__.pop(where, None)
        if kept is not None:
            try:
                return self._ask(kept, where, path, headers, deadline)
            except (ConnectionError, HTTPException):
                pass  # the store has closed what was kept open
        return self._ask(None, where, path, headers, deadline)

    def _ask(
        self, connection: HTTPConnection | None, where: str, path: str, headers: Mapping[str, str], deadline: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connect_timeout, read_timeout = self._timeouts
        if connection is None:
            connection = self._connect(where, connect_timeout)
            assert connection.sock is not None
            connection.sock.settimeout(read_timeout)
        connection.response_class = partial(TimedResponse, deadline)  # type: ignore[assignment]
        try:
            connection.request("GET", path, headers=dict(headers))
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _connect(self, where: str, timeout: float) -> HTTPConnection:
        scheme, _, host = where.partition("://")
        connection: HTTPConnection
        if scheme == "https":
            connection = HTTPSConnection(host, timeout=timeout, context=ssl.create_default_context())
        else:
            connection = HTTPConnection(host, timeout=timeout)
        connection.connect()
        return connection


class TimedResponse(HTTPResponse):
    """The timeout of a socket begins anew with each byte that comes: here all of them have one."""

    def __init__(self, deadline: float, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fp = io.BufferedReader(TimedReader(self.fp.detach(), deadline))


class TimedReader(io.RawIOBase):
    def __init__(self, raw: Any, deadline: float) -> None:
        self._raw, self._deadline = raw, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        if time.monotonic() > self._deadline:
            raise TimeoutError("the answer takes too long")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def read_body(answer: HTTPResponse) -> bytearray:
    if answer.length is None:
        return bytearray(answer.read())
    data = bytearray(answer.length)
    view, got = memoryview(data), 0
    try:
        while got < len(data) and (count := answer.readinto(view[got:])):
            got += count
    except (ConnectionError, HTTPException):
        pass  # whoever asked sees that it is too short
    view.release()
    del data[got:]
    if got == 0:
        answer.read()
    return data


def is_direct(url: str) -> bool:
    """Not through a proxy, which needs to be spoken to in another way."""
    address = urlsplit(url)
    return address.scheme not in getproxies() or bool(proxy_bypass(address.hostname or ""))
