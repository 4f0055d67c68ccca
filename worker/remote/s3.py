"""Amazon's store and all that speak its language, through s3fs: it finds credentials, regions and the endpoint."""

from __future__ import annotations

import os
from typing import Any

from hostmesh.worker.remote.failures import Kind, StoreFailure, of_code, of_transport
from hostmesh.worker.remote.files import RemoteFile
from hostmesh.worker.remote.http import CONNECT_TIMEOUT, READ_TIMEOUT
from hostmesh.worker.specs.packages import load

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
MAX_CONNECTIONS = 64
CONFIG = {
    "connect_timeout": CONNECT_TIMEOUT,
    "read_timeout": READ_TIMEOUT,
    "max_pool_connections": MAX_CONNECTIONS,
    "retries": {"total_max_attempts": 1, "mode": "standard"},  # we try again ourselves, and count
}


class S3Store:
    def __init__(self) -> None:
        s3fs = load("s3fs", "s3fs", "object-stores", "s3://")
        self._fs = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, config_kwargs=CONFIG)
        self._fs.retries = 1
        self.where = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")

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

    def read(self, file: RemoteFile, start: int, stop: int) -> bytes:
        asked = {"IfMatch": file.version} if file.version else {}
        found, data = self._call("get_object", file.url, Range=f"bytes={start}-{stop - 1}", **asked)
        if str(found.get("ETag", "")) != file.version:
            raise StoreFailure(Kind.CHANGED)
        return data

    def list(self, url: str) -> list[str]:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        found: list[str] = []
        more: dict[str, str] = {}
        while True:
            page, _ = self._call("list_objects_v2", f"s3://{bucket}/", Prefix=prefix, **more)
            found += [f"s3://{bucket}/{item['Key']}" for item in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return [name for name in found if not name.endswith("/")]
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _call(self, method: str, url: str, **options: Any) -> tuple[dict[str, Any], bytes]:
        from fsspec.asyn import sync

        return sync(self._fs.loop, self._ask, method, url, options)  # type: ignore[no-any-return]

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


def as_failure(error: Exception) -> StoreFailure:
    """s3fs makes its own error of one that has an answer, and keeps that as the cause."""
    answered = next((one for one in (error, error.__cause__) if hasattr(one, "response")), None)
    if answered is None:
        return of_transport(error)
    response: Any = getattr(answered, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return of_code(str(response.get("Error", {}).get("Code", "")), status if isinstance(status, int) else 0)
