"""Folders of agents that were killed with their guardian, or lost power: the next agent removes them."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from typing import List

from hostmesh.launcher.agent.children.fresh_child import leave_parent
from hostmesh.launcher.agent.children.process_tree import find_all
from hostmesh.launcher.agent.guardian import LOCK, remove
from hostmesh.launcher.agent.leftovers.snapshots import snapshots_of

PREFIX = "hostmesh-"  # followed by an agent's mark, `hostmesh-1116-k7m2xq.3`; agent/unpack.py makes the name
# A younger folder may be one that its agent has just made and not locked yet.
MIN_AGE = 60.0
# A folder without a lock is stale when it is old.
MIN_AGE_WITHOUT_LOCK = 7 * 24 * 3600.0
MAX_EXAMINED = 10_000
MAX_REMOVED = 100


def remove_stale_folders(own: str) -> None:
    """Remove them in a forked child, because a disk may hang; without one if there is nothing to remove."""
    try:
        beside = [*list_folders(own), *list_folders(snapshots_of(own))]
        found = [path for path in beside if is_stale(path)][:MAX_REMOVED]
        if not found:
            return
        guardian = os.getpid()
        if os.fork() != 0:
            return
    except OSError:
        return
    try:
        leave_parent(guardian, [signal.SIGTERM])
        for path in found:
            remove_stale(path)
    finally:
        os._exit(0)


def list_folders(own: str) -> List[str]:
    """The folders beside `own` that have the name of an agent's folder."""
    found = []
    try:
        with os.scandir(os.path.dirname(own)) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_EXAMINED:
                    break
                if entry.name.startswith(PREFIX) and entry.name.rpartition(".")[2].isdigit() and entry.path != own:
                    found.append(entry.path)
    except OSError:
        pass  # a host without /dev/shm
    return found


def is_stale(path: str) -> bool:
    """True for a folder (not a link) of this user that no agent holds."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    age = time.time() - status.st_mtime
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or age < MIN_AGE:
        return False
    return is_free(path, age)


def is_free(path: str, age: float) -> bool:
    """The kernel drops a lock when the last process that holds it ends, also for machines that share the disk."""
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return age > MIN_AGE_WITHOUT_LOCK
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def remove_stale(path: str) -> None:
    if not find_all(os.path.basename(path)[len(PREFIX) :], root=-1):
        remove(path)
