"""Which strings are URLs of a store."""

from __future__ import annotations

import re

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.url_secrets import LOGIN, SIGNED, hide_secrets

STORES = ("s3", "gs", "hf", "http", "https")

# What comes before a file's path.
WHOSE = {"s3": "BUCKET", "gs": "BUCKET", "hf": "datasets/USER/NAME"}
URL = re.compile(r"([a-z][a-z0-9+.-]*)://")


def is_url(path: object) -> bool:
    return isinstance(path, str) and URL.match(path) is not None


def check_url(url: str) -> None:
    """Refuses stores that are not known, and URLs that hold credentials."""
    found = URL.match(url)
    if found is None:  # of `s3://` alone, whose slashes were cut off
        raise DataError(f"{hide_secrets(url)}: wanted a URL with a bucket or host and a path, as in s3://BUCKET/PATH")
    if found[1] not in STORES:
        wanted = ", ".join(f"{store}://" for store in STORES)
        raise DataError(f"{hide_secrets(url)}: {found[1]}:// is no store that is known; wanted one of {wanted}")
    refuse_secrets(url)
    bucket, _, key = url[found.end() :].partition("/")
    if not bucket or not key.strip("/"):
        raise DataError(f"{url}: wanted {found[1]}://{WHOSE.get(found[1], 'HOST')}/PATH")


def refuse_secrets(text: str) -> None:
    """Credentials in a URL would be in every message, event and log that names it."""
    _, _, query = text.replace("%3F", "?").replace("%3f", "?").partition("?")
    if LOGIN.search(text) or ("://" in text and SIGNED.search(query)):
        raise DataError(
            f"{hide_secrets(text)} holds credentials, which would be shown wherever it is named: leave them out of it;"
            " they are taken from the environment (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, …)"
            " or from the files of the store's own tools"
        )


def scheme_of(url: str) -> str:
    return url.partition("://")[0]


def bucket_of(url: str) -> str:
    """The host, of an HTTP address."""
    return url.partition("://")[2].partition("/")[0]


def name_of(url: str) -> str:
    """The last part of the path."""
    return url.rstrip("/").rpartition("/")[2]
