"""Folders of agents that nobody could clean up after, as when their host lost its power: removed by the next agent."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import time
from typing import List

from hostmesh.launcher.agent.guardian import LOCK, remove
from hostmesh.launcher.agent.linux import die_with_parent
from hostmesh.launcher.agent.process_tree import find_all

PREFIX = "hostmesh-"  # and then an agent's mark: `hostmesh-1116-k7m2xq.3`, as agent/unpack.py has it
# An agent locks its folder a moment after it has made it.
YOUNGEST = 60.0
# Without a lock only its age tells.
YOUNGEST_WITHOUT_LOCK = 7 * 24 * 3600.0
MAX_LOOKED_AT = 10_000
MAX_REMOVED = 100


def sweep_aside(own: str) -> None:
    """For the guardian, who has nothing else to do; in a child, since a disk may hang, and only if there is work."""
    try:
        found = [path for path in list_folders(own) if is_stale(path)][:MAX_REMOVED]
        if not found:
            return
        guardian = os.getpid()
        if os.fork() != 0:
            return
    except OSError:
        return
    try:
        die_with_parent(guardian)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for path in found:
            remove_stale(path)
    finally:
        os._exit(0)


def list_folders(own: str) -> List[str]:
    """What may be agents' folders beside one's own."""
    found = []
    with os.scandir(os.path.dirname(own)) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_LOOKED_AT:
                break
            if entry.name.startswith(PREFIX) and entry.name.rpartition(".")[2].isdigit() and entry.path != own:
                found.append(entry.path)
    return found


def is_stale(path: str) -> bool:
    """A folder of the same user, and no link, that no agent holds."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    age = time.time() - status.st_mtime
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or age < YOUNGEST:
        return False
    return is_free(path, age)


def is_free(path: str, age: float) -> bool:
    """The kernel drops a lock with the last who held it, also on other machines that share the disk."""
    try:
        lock = os.open(os.path.join(path, LOCK), os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return age > YOUNGEST_WITHOUT_LOCK
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
