"""Files that may not be there, disks that may be full, locks that others may hold."""

from __future__ import annotations

import fcntl
import os
import time

LOCK_PAUSE = 0.02


def read_if_there(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def measure_disk(place: str) -> os.statvfs_result:
    """Of the nearest folder that is there: a workdir may be yet to come."""
    there = os.path.abspath(place)
    while not os.path.isdir(there) and there != "/":
        there = os.path.dirname(there)
    return os.statvfs(there)


def lock_within(fd: int, timeout: float) -> bool:
    """False when somebody else has held it all the time."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOCK_PAUSE)
