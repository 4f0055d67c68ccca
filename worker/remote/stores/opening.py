"""The store that a URL belongs to, opened once a process: its connections do not survive a fork."""

from __future__ import annotations

import importlib
import os
import re
import threading
from functools import partial

from hostmesh.worker.errors import DataError
from hostmesh.worker.process.words import list_some
from hostmesh.worker.remote.failures import Kind, StoreFailure
from hostmesh.worker.remote.fetching import with_retries
from hostmesh.worker.remote.stores.base import RemoteFile, Store
from hostmesh.worker.remote.stores.settings import CERTIFICATES
from hostmesh.worker.remote.urls import check_url, scheme_of

KINDS = {
    "s3": ("s3", "S3Store"),
    "gs": ("http", "GoogleStore"),
    "hf": ("hub", "HubStore"),
    "http": ("http", "HttpStore"),
    "https": ("http", "HttpStore"),
}
MAGIC = re.compile(r"[*\[]")

_lock = threading.Lock()
# By process, kind, and the address in the environment, which may change between two sources of one process.
_stores: dict[tuple[int, str, str], Store] = {}


def find_store(url: str) -> Store:
    check_url(url)
    module, name = KINDS[scheme_of(url)]
    with _lock:
        key = os.getpid(), name, " ".join(os.environ.get(one, "") for one in _settings(scheme_of(url)))
        if key not in _stores:
            _stores[key] = getattr(importlib.import_module(f"hostmesh.worker.remote.stores.{module}"), name)()
        return _stores[key]


def look(url: str) -> RemoteFile:
    """Size and version of a file, by which it is known from here on."""
    store = find_store(url)
    return with_retries(lambda: store.look(url), url, store.where)


def list_folder(url: str) -> list[str]:
    """The URLs of all files below, in the order of their names; none where there is no such folder."""
    store = find_store(url)
    return sorted(with_retries(lambda: store.list(url.rstrip("/") + "/"), url, store.where))


def expand(pattern: str) -> list[str]:
    """The URLs that match; of one without `*` and `[…]` itself."""
    if not MAGIC.search(pattern):
        check_url(pattern)
        return [pattern]
    from fsspec.utils import glob_translate

    store = find_store(pattern)
    start = MAGIC.split(pattern)[0]
    wanted = re.compile(glob_translate(pattern))
    found = sorted(filter(wanted.match, with_retries(lambda: store.list(start), pattern, store.where)))
    if not found:
        raise DataError(f"no file matches {pattern}")
    return found


def look_at_all(urls: list[str]) -> list[RemoteFile]:
    """Of several files at once, in their order. All that are missing are named together."""
    from hostmesh.worker.remote.pool import run_all

    def try_look(url: str) -> RemoteFile | None:
        store = find_store(url)
        try:
            return with_retries(lambda: store.look(url), url, store.where, gives_up=(Kind.NO_FILE,))
        except StoreFailure:
            return None

    if len(urls) < 2:
        return [look(url) for url in urls]
    found = run_all([partial(try_look, url) for url in urls])
    if missing := [url for url, file in zip(urls, found, strict=True) if file is None]:
        raise DataError(f"{list_some(missing)}: {'does' if len(missing) == 1 else 'do'} not exist")
    return [file for file in found if file is not None]


def _settings(scheme: str) -> tuple[str, ...]:
    """What of the environment decides where a store is, and as whom it is asked."""
    if scheme == "s3":
        return (
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_PROFILE",
            *CERTIFICATES,
        )
    if scheme == "gs":
        return ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")
    if scheme == "hf":
        return ("HF_ENDPOINT", "HF_TOKEN")
    return ()
