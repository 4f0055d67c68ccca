"""Whole files, brought to the cache and opened there like any other file."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.identity import LOCAL_PROCESS_ID, LOCAL_PROCESSES
from hostmesh.worker.process.progress import Progress
from hostmesh.worker.remote.caching.cache import Cache, NoRoom
from hostmesh.worker.remote.caching.own_cache import own_cache
from hostmesh.worker.remote.caching.settings import FOLDER, SIZE
from hostmesh.worker.remote.fetching import fetch
from hostmesh.worker.remote.pool import FETCHERS, run_all
from hostmesh.worker.remote.stores.base import RemoteFile
from hostmesh.worker.remote.stores.opening import find_store

PART = 16 << 20  # what one request asks for


class LocalFiles:
    """Files of a store as they are on this host. They stay in the cache until this is closed, or nobody has it."""

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self.files = list(files)
        self._cache = own_cache()
        names: list[str] = []
        self._end = weakref.finalize(self, _unpin, self._cache, names)
        _refuse_too_large(self.files, self._cache)
        progress = Tally(self.files)
        self.paths = _in_threads(self.files, lambda file: _bring(file, self._cache, names, progress))

    def close(self) -> None:
        self._end()

    def keep_with(self, thing: Any) -> None:
        """They stay as long as that does."""
        weakref.finalize(thing, self.close).atexit = False


class Tally:
    """Tells now and then how much of all files has come."""

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self._lock, self._done = threading.Lock(), 0
        what = files[0].url if len(files) == 1 else f"{len(files)} files like {files[0].url}" if files else "nothing"
        self._progress = Progress(max(1, sum(file.size for file in files)), f"fetching {what}")

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._progress.reached(max(1, self._done))


def _bring(file: RemoteFile, cache: Cache, names: list[str], progress: Tally) -> Path:
    store, name = find_store(file.url), file.key()

    def fill(part: int) -> None:
        def fetch_part(start: int) -> None:
            data = fetch(store, file, start, min(start + PART, file.size))
            write_all(part, data, start)
            progress.add(len(data))

        run_all([partial(fetch_part, start) for start in range(0, file.size, PART)])

    try:
        path = cache.bring(name, file.size, fill, pinned=True)
    except NoRoom as error:
        raise _explain_no_room(file.url, file.size, cache, error.in_use) from None
    names.append(name)
    return path


def write_all(file: int, data: bytes | bytearray, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _unpin(cache: Cache, names: Sequence[str]) -> None:
    for name in names:
        cache.unpin(name)


def _refuse_too_large(files: Sequence[RemoteFile], cache: Cache) -> None:
    size = sum(file.size for file in files)
    if files and size > cache.limit:
        what = files[0].url if len(files) == 1 else f"{files[0].url} and {len(files) - 1} other files"
        raise _explain_no_room(what, size, cache, 0)


def _explain_no_room(what: str, size: int, cache: Cache, in_use: int) -> DataError:
    used = f", of which {in_use:,} are in use," if in_use else ""
    return DataError(
        f"{what}: {size:,} bytes, which are opened as whole files, do not fit into the cache of {cache.limit:,}"
        f" bytes{used} in {cache.folder}: set {SIZE} to more, or {FOLDER} to a folder on a larger disk"
    )


def _in_threads(files: Sequence[RemoteFile], bring: Any) -> list[Path]:
    """Each thread sees one file through, while the parts of all are fetched by the pool."""
    if len(files) < 2:
        return [bring(file) for file in files]
    found: dict[int, Path] = {}
    errors: list[BaseException] = []
    numbers = _own_order(len(files))
    lock = threading.Lock()

    def work() -> None:
        while not errors:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                found[number] = bring(files[number])
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(FETCHERS, len(files)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(files))]


def _own_order(count: int) -> Iterator[int]:
    """Processes of one host begin at different files, so that they share the work."""
    local, of = (
        int(os.environ.get(name) or default) for name, default in ((LOCAL_PROCESS_ID, 0), (LOCAL_PROCESSES, 1))
    )
    first = local * count // max(1, of)
    return iter([*range(first, count), *range(first)])
