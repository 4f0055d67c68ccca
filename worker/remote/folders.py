"""A folder of a store as a folder of this host, for libraries that open nothing else."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.caching.own_cache import own_cache
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.opening import list_folder, look_at_all
from hostmesh.worker.remote.urls import check_url, name_of
from hostmesh.worker.remote.whole import LocalFiles


class Mirror:
    """The files below a URL, or one file, of those that are wanted by their place below it."""

    def __init__(self, url: str, is_wanted: Callable[[str], bool] = lambda place: True) -> None:
        check_url(url)
        self.url = base = url.rstrip("/")
        places = [found.removeprefix(f"{base}/") for found in list_folder(base)]
        wanted = [place for place in places if is_wanted(place)]
        urls = {place: f"{base}/{place}" for place in wanted} if places else {name_of(base): base}
        check_places(base, urls)
        self._local = LocalFiles(look_at_all(list(urls.values())))
        known = "".join(file.key() for file in self._local.files)
        self.folder = own_cache().tree_of(hashlib.sha256(f"{base} {known}".encode()).hexdigest()[:40])
        for place, path in zip(urls, self._local.paths, strict=True):
            link(self.folder / place, path)
        self.path = self.folder if places else self.folder / name_of(base)

    @property
    def files(self) -> list[RemoteFile]:
        return self._local.files

    def keep_with(self, thing: Any) -> None:
        """The files stay as long as that does."""
        self._local.keep_with(thing)

    def name_urls(self, text: str) -> str:
        """A text of somebody who knows only the folder here, with the URLs instead of the places in it."""
        names = {str(self.folder): self.url, str(self.path): self.url}
        names |= {str(path): file.url for path, file in zip(self._local.paths, self.files, strict=True)}
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, names[name])
        return text


def check_places(base: str, places: Iterable[str]) -> None:
    """Whoever may write to the store names what lies there: no name may lead out of the folder, or to another file."""
    known = set(places)
    for place in known:
        parts = place.split("/")
        if {"", ".", ".."} & set(parts) or "\0" in place:
            wanted = "without empty parts, . and .. between its slashes"
            raise DataError(
                f"{base} holds the name {place!r}, which would lead out of its folder here; wanted one {wanted}:"
                " rename it in the store, or name another folder"
            )
        above = next((at for at in range(1, len(parts)) if "/".join(parts[:at]) in known), None)
        if above is not None:
            raise DataError(
                f"{base} holds {'/'.join(parts[:above])!r} both as a file and as the folder of {place!r}, which no disk"
                " can; wanted one of them: rename it in the store, or name another folder"
            )


def link(at: Path, to: Path) -> None:
    """Others may do the same at this moment."""
    try:
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = at.with_name(f".{at.name}.{os.getpid()}-{threading.get_ident()}")
        with suppress(FileNotFoundError):
            aside.unlink()
        aside.symlink_to(to)
        aside.replace(at)
    except OSError as error:
        raise own_cache().explain(error) from error
