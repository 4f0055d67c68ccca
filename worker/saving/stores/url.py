"""The address of a checkpoint in an object store: read, checked, and told to tensorstore."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Any

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.remote.url_secrets import hide_secrets

# Seconds after which a store that does not answer is given up.
TIMEOUT_VARIABLE = "CHECKPOINT_STORE_TIMEOUT"
TIMEOUT = 60.0
# A request that fails is tried again after 0.5, 1, 2, … s. A pause takes an eighth of the timeout at most, so that all
# six end within it; a connection without a byte is given up after a quarter.
RETRIES = 6
PAUSE, SILENCE = 1 / 8, 1 / 4
# `s3` as tensorstore calls it, with its names of what is set here.
DRIVERS = {"gs": "gcs", "s3": "s3"}
WANTED = "wanted a folder that every host mounts, gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"


@dataclass(frozen=True)
class StoreUrl:
    scheme: str
    bucket: str
    folder: str  # without slashes at its ends

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.folder}"

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        scheme, _, rest = text.partition("://")
        path, query, _ = text.partition("?")
        shown = hide_secrets(path) + ("?…" if query else "")  # a query may hold a token
        if "@" in rest.partition("/")[0]:
            raise CheckpointError(
                f"found a {scheme}:// address with a name or key before the bucket, wanted the bucket alone: "
                "credentials come from the environment or the store's own files"
            )
        if scheme not in DRIVERS:
            raise CheckpointError(f"found {shown}, {WANTED}")
        bucket, _, folder = rest.partition("/")
        parts = folder.strip("/").split("/")
        if not re.fullmatch(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]", bucket):
            raise CheckpointError(
                f"found {shown}, wanted a bucket's name after {scheme}://, as in {scheme}://bucket/run1"
            )
        if parts == [""]:
            raise CheckpointError(f"found {shown}, wanted a folder in the bucket, as in {scheme}://{bucket}/run1")
        if {"", ".", ".."} & set(parts) or any(sign in folder for sign in "?#*\\\n"):
            raise CheckpointError(
                f"found {shown}, wanted plain names between the slashes, as in {scheme}://{bucket}/run1"
            )
        return cls(scheme, bucket, "/".join(parts))


def is_url(folder: str) -> bool:
    return "://" in folder


def read_timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise CheckpointError(f"{TIMEOUT_VARIABLE} wants a number of seconds above 0, found {text!r}")
    return seconds


def make_spec(scheme: str, bucket: str, path: str) -> dict[str, Any]:
    """What tensorstore opens. Its own 32 retries with pauses of up to 32 s would look like a hang."""
    longest = f"{read_timeout() * PAUSE:g}s"
    retries = {"max_retries": RETRIES, "initial_delay": f"{min(0.5, read_timeout() * PAUSE):g}s", "max_delay": longest}
    spec = {"driver": DRIVERS[scheme], "bucket": bucket, "path": path, f"{DRIVERS[scheme]}_request_retries": retries}
    return {**spec, **(_describe_s3() if scheme == "s3" else {})}


def _describe_s3() -> dict[str, Any]:
    """What Amazon's own tools take from the environment and tensorstore does not."""
    get = os.environ.get
    endpoint = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL")
    region = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
    found: dict[str, Any] = {"endpoint": endpoint, "aws_region": region}
    if get("AWS_ACCESS_KEY_ID") and get("AWS_SECRET_ACCESS_KEY"):
        found["aws_credentials"] = {"type": "environment"}  # else files are looked for first, and each miss is logged
    return {name: value for name, value in found.items() if value}


def limit_silence() -> None:
    """Of a connection: tensorstore reads these once, with its first request, and for all that it does."""
    seconds = str(max(1, round(read_timeout() * SILENCE)))
    os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", seconds)
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", seconds)
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
