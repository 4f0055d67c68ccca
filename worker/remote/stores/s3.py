"""Amazon's store and all that speak its language, through s3fs: it finds credentials, regions and the endpoint."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from typing import Any

from hostmesh.worker.remote.failures import Kind, StoreFailure, of_code, of_status, of_transport, wants_own_words
from hostmesh.worker.remote.stores import timeouts
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.direct import Connections, is_direct
from hostmesh.worker.remote.stores.settings import CERTIFICATES, check_certificates, find_address
from hostmesh.worker.specs.packages import load

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
MAX_CONNECTIONS = 64
CONFIG = {
    "connect_timeout": timeouts.TIMEOUTS.connect,
    "read_timeout": timeouts.TIMEOUTS.silence,
    "max_pool_connections": MAX_CONNECTIONS,
    "retries": {"total_max_attempts": 1, "mode": "standard"},  # we try again ourselves, and count
}

only_signed: ContextVar[bool] = ContextVar("only_signed", default=False)


class Signed(Exception):
    """A request that is ready to be sent, instead of its answer."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        super().__init__("signed")
        self.url, self.headers = url, headers


def give_back(request: Any, **_: Any) -> None:
    if only_signed.get():
        text = {
            name: value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()
        }
        raise Signed(request.url, text)


class S3Store:
    """botocore signs and explains; answers of many bytes are read by the standard library."""

    def __init__(self) -> None:
        self.where = find_address(*ENDPOINTS)
        check_certificates()
        s3fs = load("s3fs", "s3fs", "object-stores", "s3://")
        self._fs = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, config_kwargs=CONFIG)
        self._fs.retries = 1
        self._connections = Connections(timeouts.TIMEOUTS.connect, timeouts.TIMEOUTS.silence)

    @wants_own_words()
    def look(self, url: str) -> RemoteFile:
        try:
            found, _ = self._call("head_object", url)
        except StoreFailure as failure:
            if failure.kind is Kind.NO_ANSWER:
                raise
            # The answer to a HEAD has no room for a reason: a bucket that is not there looks like a missing file.
            self._call("get_object", url, Range="bytes=0-0")
            raise
        return RemoteFile(url, int(found["ContentLength"]), str(found.get("ETag", "")), self.where)

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes | bytearray:
        asked = {"IfMatch": file.version} if file.version else {}
        asked["Range"] = f"bytes={start}-{stop - 1}"
        seconds = timeouts.TIMEOUTS.seconds(stop - start)
        direct = self._read_directly(file.url, asked, seconds)
        if direct is None:
            found, body = self._call("get_object", file.url, seconds, **asked)
            direct = str(found.get("ETag", "")), body
        etag, data = direct
        if etag != file.version:
            raise StoreFailure(Kind.CHANGED)
        return data

    def _read_directly(self, url: str, asked: dict[str, str], seconds: float) -> tuple[str, bytes | bytearray] | None:
        """The ETag and the bytes; None where botocore should ask, and explain the answer."""
        if any(os.environ.get(name) for name in CERTIFICATES):  # unknown to the library
            return None
        from fsspec.asyn import sync

        request = sync(self._fs.loop, self._sign, url, asked)
        if request is None or not is_direct(request.url):
            return None
        status, headers, data = self._connections.get(request.url, request.headers, seconds)
        if status == 206:
            return headers.get("ETag", ""), data
        if (failure := of_status(status)).kind is Kind.NO_ANSWER:
            raise failure
        return None

    async def _sign(self, url: str, asked: dict[str, str]) -> Signed | None:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        try:
            await self._fs.set_session()
            client = await self._fs.get_s3(bucket)
            # The last thing that botocore does before it sends a request; with its id it is registered once.
            client.meta.events.register("before-send.s3.GetObject", give_back, unique_id="hostmesh signed")
            only_signed.set(True)  # in this task
            await self._fs._call_s3("get_object", Bucket=bucket, Key=key, **asked)
        except Signed as request:
            return request
        except Exception as error:
            raise as_failure(error) from None
        return None

    @wants_own_words()
    def list(self, url: str) -> list[str]:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page, _ = self._call("list_objects_v2", f"s3://{bucket}/", None, Prefix=prefix, **more)
            found += [f"s3://{bucket}/{item['Key']}" for item in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return [name for name in found if not name.endswith("/")]
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _call(
        self, method: str, url: str, seconds: float | None = None, **options: Any
    ) -> tuple[dict[str, Any], bytes]:
        from fsspec.asyn import sync

        asking = self._ask(method, url, options)
        limit = timeouts.TIMEOUTS.seconds(None) if seconds is None else seconds
        return sync(self._fs.loop, _within, limit, asking)  # type: ignore[no-any-return]

    async def _ask(self, method: str, url: str, options: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        target = {"Bucket": bucket, **({"Key": key} if key else {})}
        try:
            found = await self._fs._call_s3(method, **target, **options)
            if method != "get_object":
                return found, b""
            async with found["Body"] as body:
                return found, await body.read()
        except Exception as error:
            raise as_failure(error) from None


async def _within(seconds: float, asking: Any) -> Any:
    try:
        return await asyncio.wait_for(asking, seconds)
    except TimeoutError as error:
        raise of_transport(error) from None


def as_failure(error: Exception) -> StoreFailure:
    """s3fs makes its own error of one that has an answer, and keeps that as the cause."""
    answered = next((one for one in (error, error.__cause__) if hasattr(one, "response")), None)
    if answered is None:
        return of_transport(error)
    response: Any = getattr(answered, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return of_code(str(response.get("Error", {}).get("Code", "")), status if isinstance(status, int) else 0)
