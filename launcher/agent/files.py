"""Files that may be missing, the cache folder, programs on a PATH, the space on a disk, locks that others may hold."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Iterator, Mapping, Optional, Tuple

LOCK_PAUSE = 0.02


def read_if_there(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def find_cache(env: Mapping[str, str]) -> str:
    """Where this host keeps what it may lose. As the XDG rules have it, a relative XDG_CACHE_HOME does not count."""
    cache = env.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = env.get("HOME", "")
        cache = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "hostmesh")


def list_open(pid: int) -> Iterator[Tuple[str, str]]:
    """The descriptors of a process, as `/proc/7/fd/3`, and what each is: a path, or `socket:[4711]`. Nothing of a
    process that is gone, or that this user may not look at."""
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield f"{folder}/{name}", os.readlink(f"{folder}/{name}")
        except OSError:
            continue  # closed in between


def remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def remove_tree(folder: str) -> None:
    """As shutil.rmtree does, without the 5 ms that importing shutil takes; what cannot be removed stays."""
    for above, folders, names in os.walk(folder, topdown=False):
        for name in names:
            remove_file(f"{above}/{name}")
        for name in folders:
            try:
                os.rmdir(f"{above}/{name}")
            except OSError:
                remove_file(f"{above}/{name}")  # a link to a folder
    try:
        os.rmdir(folder)
    except OSError:
        pass


def find_program(name: str, path: str) -> Optional[str]:
    """As shutil.which does, without the 5 ms that importing shutil takes; `path` is a value of PATH."""
    folders = [""] if os.sep in name else path.split(os.pathsep)
    found = (os.path.join(folder, name) for folder in folders)
    return next((file for file in found if os.path.isfile(file) and os.access(file, os.X_OK)), None)


def measure_disk(path: str) -> Tuple[int, int]:
    """Size and free space, in bytes, of the disk that holds `path`, or will hold it once that has been made."""
    nearest = os.path.abspath(path)
    while not os.path.isdir(nearest) and nearest != "/":
        nearest = os.path.dirname(nearest)
    status = os.statvfs(nearest)
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def lock_within(fd: int, timeout: float) -> bool:
    """False if somebody else has held the lock all the time."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_PAUSE)
