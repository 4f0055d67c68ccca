"""Files behind HTTP, by ranged requests; and in Google's store, which is one more kind of HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from hostmesh.worker.remote.failures import Kind, StoreFailure, of_status, of_transport, wants_own_words
from hostmesh.worker.remote.stores import timeouts
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.settings import check_google_file
from hostmesh.worker.remote.urls import bucket_of
from hostmesh.worker.specs.packages import load

EMULATOR = "STORAGE_EMULATOR_HOST"


class HttpStore:
    """Any server. One that cannot answer for a range sends the whole file, of which the range is taken."""

    where = ""

    def __init__(self) -> None:
        http = load("fsspec.implementations.http", "aiohttp", "object-stores", "https://")
        # Proxies are those of the environment, as everywhere else.
        self._fs = http.HTTPFileSystem(skip_instance_cache=True, client_kwargs={"trust_env": True})

    def look(self, url: str) -> RemoteFile:
        status, headers, _ = self.get(url, {"Range": "bytes=0-0"}, limit=1)
        # Content-Range: bytes 0-0/12345
        size = headers.get("Content-Range", "").rpartition("/")[2] if status == 206 else headers.get("Content-Length")
        if not (size or "").isdecimal():
            raise StoreFailure(Kind.REFUSED, "it does not say how large the file is")
        return RemoteFile(url, int(size or 0), _version(headers), self.where)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        status, headers, data = self.get(file.url, {"Range": f"bytes={start}-{stop - 1}"})
        if file.version != _version(headers):
            raise StoreFailure(Kind.CHANGED)
        return data if status == 206 else data[start:stop]

    def list(self, url: str) -> list[str]:
        raise StoreFailure(Kind.REFUSED, "HTTP knows no folders and no *: name each file")

    def get(self, url: str, headers: Mapping[str, str], limit: int | None = None) -> tuple[int, Any, bytes]:
        """Status, headers and body; of a longer body than `limit` nothing more is read."""
        from fsspec.asyn import sync

        return sync(self._fs.loop, self._get, url, headers, limit)  # type: ignore[no-any-return]

    async def _get(self, url: str, headers: Mapping[str, str], limit: int | None) -> tuple[int, Any, bytes]:
        import aiohttp

        limits = timeouts.TIMEOUTS
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect, sock_read=limits.silence)
        # Compressed on its way, a file would have other bytes at each place.
        asked = {**await self._headers(url), **headers, "Accept-Encoding": "identity"}
        try:
            session = await self._session()
            asking = session.get(self._encode(url), headers=asked, timeout=timeout)
            async with await asyncio.wait_for(asking, limits.connect + limits.silence) as answer:
                if answer.status >= 400:
                    raise of_status(answer.status)
                reading = answer.read() if limit is None else answer.content.read(limit)
                size = answer.content_length if limit is None else limit
                return answer.status, answer.headers, await asyncio.wait_for(reading, limits.seconds(size))
        except StoreFailure:
            raise
        except Exception as error:
            raise of_transport(error) from None

    async def _session(self) -> Any:
        return await self._fs.set_session()

    async def _headers(self, url: str) -> Mapping[str, str]:
        return {}

    def _encode(self, url: str) -> Any:
        return url


class GoogleStore(HttpStore):
    """By the JSON interface; gcsfs finds credentials and keeps them fresh."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its libraries tell how long they will support this Python
            gcsfs = load("gcsfs", "gcsfs", "object-stores", "gs://")
        emulator = os.environ.get(EMULATOR)
        if not emulator:
            check_google_file()
        token = {"token": "anon"} if emulator else {}
        self._fs = gcsfs.GCSFileSystem(skip_instance_cache=True, session_kwargs={"trust_env": True}, **token)
        self.where = emulator or ""

    @wants_own_words()
    def look(self, url: str) -> RemoteFile:
        found = self._json(self._object(url))
        return RemoteFile(url, int(found["size"]), str(found.get("generation") or found["etag"]), self.where)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        # Old generations are kept where a bucket has versions; elsewhere a file that was replaced is not found.
        url = f"{self._object(file.url)}?alt=media&ifGenerationMatch={quote(file.version, safe='')}"
        status, headers, data = self.get(url, {"Range": f"bytes={start}-{stop - 1}"})
        if headers.get("X-Goog-Generation", file.version) != file.version:
            raise StoreFailure(Kind.CHANGED)
        return data if status == 206 else data[start:stop]

    @wants_own_words()
    def list(self, url: str) -> list[str]:
        bucket, _, prefix = url.removeprefix("gs://").partition("/")
        page, found = "", []
        while True:
            at = f"{self._bucket(url)}/o?prefix={quote(prefix, safe='')}&pageToken={quote(page, safe='')}"
            answer = self._json(at.removesuffix("&pageToken="))
            found += [f"gs://{bucket}/{item['name']}" for item in answer.get("items", [])]
            page = answer.get("nextPageToken") or ""
            if not page:
                return [name for name in found if not name.endswith("/")]

    def _bucket(self, url: str) -> str:
        return f"{self._fs.base}b/{quote(bucket_of(url), safe='')}"

    def _object(self, url: str) -> str:
        key = url.removeprefix("gs://").partition("/")[2]
        return f"{self._bucket(url)}/o/{quote(key, safe='')}"

    def _json(self, url: str) -> Any:
        try:
            return json.loads(self.get(url, {})[2])
        except StoreFailure as failure:
            if failure.kind is Kind.NO_FILE and "/o" in url:
                self._refuse_bucket(url)
            raise

    def _refuse_bucket(self, url: str) -> None:
        """Whether it is the bucket that is missing."""
        try:
            self.get(url.partition("/o?")[0].partition("/o/")[0], {})
        except StoreFailure as failure:
            if failure.kind is Kind.NO_FILE:
                raise StoreFailure(Kind.NO_BUCKET) from None

    async def _session(self) -> Any:
        await self._fs._set_session()
        return self._fs.session

    async def _headers(self, url: str) -> Mapping[str, str]:
        headers: Mapping[str, str] = self._fs._get_headers(None)
        return headers

    def _encode(self, url: str) -> Any:
        from yarl import URL

        return URL(url, encoded=True)


def _version(headers: Mapping[str, str]) -> str:
    return headers.get("ETag") or headers.get("Last-Modified") or ""
