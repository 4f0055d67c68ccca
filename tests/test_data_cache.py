"""The cache of fetched data: bounded, shared by threads and processes, and of no harm when it is deleted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import clean_env

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.caching.cache import Cache, NoRoom
from hostmesh.worker.remote.caching.settings import CacheSettings

NAMES = [f"{n:02x}{'0' * 38}" for n in range(40)]


def make_cache(folder: Path, limit: int = 10_000) -> Cache:
    return Cache(CacheSettings(folder / "cache", limit))


def writer(data: bytes, done: Callable[[], object] = lambda: None) -> Callable[[int], None]:
    def fetch(part: int) -> None:
        os.pwrite(part, data, 0)
        done()

    return fetch


def used(cache: Cache) -> int:
    return sum(path.stat().st_size for path in cache.folder.glob("files/*/*"))


def test_what_was_used_last_stays_and_the_size_is_kept(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    for number, name in enumerate(NAMES):
        cache.bring(name, 1_000, writer(b"x" * 1_000))
        os.utime(cache.path_of(name), ns=(number, number))
        os.utime(cache.path_of(NAMES[0]), ns=(number, number))  # it is used all the time
        assert used(cache) <= 10_000
    assert cache.find(NAMES[0]) and cache.find(NAMES[-1]) and not cache.find(NAMES[1])


def test_what_is_open_is_never_removed(tmp_path: Path) -> None:
    cache, other = make_cache(tmp_path), make_cache(tmp_path)
    for name in NAMES[:5]:
        cache.bring(name, 1_000, writer(b"x" * 1_000), pinned=True)
    for name in NAMES[5:]:
        other.bring(name, 1_000, writer(b"x" * 1_000))
    assert all(cache.find(name) for name in NAMES[:5])
    with pytest.raises(NoRoom):
        other.bring("ff", 6_000, writer(b""))
    for name in NAMES[:5]:
        cache.unpin(name)
    other.bring("ff", 6_000, writer(b"x" * 6_000))
    assert used(cache) <= 10_000


def test_threads_fetch_a_file_once(tmp_path: Path) -> None:
    calls: list[int] = []
    begun = threading.Barrier(8)

    def bring() -> None:
        begun.wait()
        make_cache(tmp_path).bring(NAMES[0], 3, writer(b"abc", lambda: calls.append(1)))

    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1] and make_cache(tmp_path).path_of(NAMES[0]).read_bytes() == b"abc"


DYING = """
import os, signal, sys
from pathlib import Path
from hostmesh.worker.remote.caching.cache import Cache
from hostmesh.worker.remote.caching.settings import CacheSettings
cache = Cache(CacheSettings(Path(sys.argv[1]), 10_000))
cache.bring("aa", 1_000, lambda part: None, pinned=True)
cache.bring("bb", 1_000, lambda part: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_process_that_is_killed_holds_nothing_back(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    died = subprocess.run([sys.executable, "-c", DYING, str(cache.folder)], env=clean_env())
    assert died.returncode == -signal.SIGKILL
    cache.bring("bb", 1_000, writer(b"y" * 1_000))
    assert cache.path_of("bb").read_bytes() == b"y" * 1_000
    cache.bring("cc", 9_000, writer(b"z" * 9_000))  # what it had open may go
    assert used(cache) <= 10_000


def test_a_fetch_that_fails_leaves_nothing_and_is_tried_by_the_next(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)

    def fail() -> None:
        raise DataError("no")

    with pytest.raises(DataError, match="^no$"):
        cache.bring(NAMES[0], 3, writer(b"abc", fail), pinned=True)
    assert used(cache) == 0
    cache.bring(NAMES[0], 3, writer(b"abc"))
    assert cache.find(NAMES[0])


def test_a_folder_that_is_deleted_by_hand_is_made_again(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    cache.bring(NAMES[0], 3, writer(b"abc"), pinned=True)
    shutil.rmtree(cache.folder)
    assert cache.find(NAMES[0]) is None
    calls: list[int] = []

    def delete_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            shutil.rmtree(cache.folder)

    assert cache.bring(NAMES[0], 3, writer(b"abc", delete_once), pinned=True).read_bytes() == b"abc"
    assert len(calls) == 2
    cache.unpin(NAMES[0])


def test_a_folder_that_cannot_be_written_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DataError, match=r"cache of data in .*/cache cannot be written: .*HOSTMESH_DATA_CACHE names"):
        make_cache(tmp_path).bring(NAMES[0], 3, writer(b"abc"))


@pytest.mark.parametrize(
    ("text", "size"), [("50GB", 50 * 10**9), ("200 GiB", 200 << 30), ("1.5T", 15 * 10**11), ("100000000", 10**8)]
)
def test_sizes_are_read(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("HOSTMESH_DATA_CACHE_SIZE", text)
    assert CacheSettings.from_env().size == size


@pytest.mark.parametrize("text", ["much", "-5GB", "5 XB", "1KB", "5I"])
def test_a_size_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HOSTMESH_DATA_CACHE_SIZE", text)
    with pytest.raises(DataError, match="HOSTMESH_DATA_CACHE_SIZE wants"):
        CacheSettings.from_env()


def test_the_folder_is_that_of_the_environment_or_below_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOSTMESH_DATA_CACHE", "relative/folder")
    with pytest.raises(DataError, match="wants an absolute path"):
        CacheSettings.from_env()
    monkeypatch.delenv("HOSTMESH_DATA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert CacheSettings.from_env().folder == tmp_path / "hostmesh" / "data"
