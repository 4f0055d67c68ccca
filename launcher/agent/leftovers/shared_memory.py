"""Shared memory that killed processes would leave in /dev/shm: noted while they hold it, removed when nobody does."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import stat
from typing import Callable, Iterable, Set, Tuple

from hostmesh.launcher.agent.files import list_open, read_if_there, remove_file

FOLDER = "/dev/shm"
# A file in an agent's folder, with a JSON line for each segment; whoever removes the folder removes the segments first.
NOTES = "segments"
# Names of what Python's multiprocessing makes, perhaps hundreds a second. A process of its own removes these; see
# CLEANERS in agent/children/process_tree.py.
TRACKED = ("psm_", "sem.mp-", "sem.loky-")
# "7f12a000-7f12b000 rw-s 00000000 00:1a 4242                    /dev/shm/name"
_MAPPED = re.compile(rb"^\S+ \S+ \S+ \S+ (\d+) +/dev/shm/[^/\n]+$", re.MULTILINE)

# A segment of shared memory by its inode and name; the name alone may be used again by somebody else.
Segment = Tuple[int, str]


class SharedMemory:
    """The segments that an agent's processes hold. Those that exist when this is made are somebody else's for ever."""

    def __init__(self, folder: str) -> None:
        self._folder, self._notes = folder, os.path.join(folder, NOTES)
        self._others = list_segments()
        self._noted: Set[Segment] = set()
        self._seen: Set[Segment] = set()

    def note_new(self, find_pids: Callable[[], Iterable[int]]) -> None:
        """Note who holds segments that have appeared since the last call. This is done from time to time, because a
        process that dies suddenly can no longer be asked what it held."""
        new = {each for each in self._unknown() - self._seen if not each[1].startswith(TRACKED)}
        self._seen |= new
        if new:
            self._note(new, find_pids())

    @property
    def any_new(self) -> bool:
        return bool(self._unknown())

    def note_held(self, pids: Set[int]) -> None:
        """Note what processes hold that are about to be killed. They are stopped first, so that they make no more."""
        if not self.any_new:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGSTOP)
            except (ProcessLookupError, PermissionError):
                pass
        self._note(self._unknown(), pids)

    def remove(self) -> None:
        """All that is noted: the processes that held it are gone."""
        remove_noted(self._folder)
        self.forget()

    def forget(self) -> None:
        """Drop the notes: processes that ended in order have removed what they did not mean to leave."""
        self._noted.clear()
        remove_file(self._notes)

    def _unknown(self) -> Set[Segment]:
        return list_segments() - self._others - self._noted

    def _note(self, segments: Set[Segment], pids: Iterable[int]) -> None:
        inodes = {inode for pid in pids for inode in list_held(pid)}
        found = {each for each in segments if each[0] in inodes}
        self._noted |= found
        try:
            with open(self._notes, "a") as notes:
                notes.writelines(json.dumps(each) + "\n" for each in sorted(found))
        except OSError:
            pass  # the disk is full: the segments stay


def list_segments() -> Set[Segment]:
    try:
        with os.scandir(FOLDER) as entries:
            # No folders: those of snapshots belong to agents, see agent/leftovers/snapshots.py.
            return {(entry.inode(), entry.name) for entry in entries if not entry.is_dir(follow_symlinks=False)}
    except OSError:
        return set()


def list_held(pid: int) -> Set[int]:
    """Inodes of the segments that a process has mapped or open."""
    held = {int(inode) for inode in _MAPPED.findall(read_if_there(f"/proc/{pid}/maps"))}
    for descriptor, path in list_open(pid):
        if path.startswith(FOLDER + "/"):
            try:
                held.add(os.stat(descriptor).st_ino)
            except OSError:
                continue  # closed in between
    return held


def remove_noted(folder: str) -> None:
    """Remove the noted segments of an agent whose processes are gone; not those that were replaced by others of the
    same name, and not those that anybody still uses."""
    for line in read_if_there(os.path.join(folder, NOTES)).decode("utf-8", "replace").splitlines():
        try:
            inode, name = json.loads(line)
            path = os.path.join(FOLDER, os.path.basename(name))
            if is_private(os.lstat(path), inode) and is_unused(path):
                os.unlink(path)
        except (OSError, ValueError, TypeError):
            continue


def is_private(status: os.stat_result, inode: int) -> bool:
    """Whether only its owner may read it, as it is with segments; a file that somebody keeps in the folder for later
    is as a rule readable for others, too."""
    is_own = status.st_ino == inode and status.st_uid == os.geteuid()
    return is_own and stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077


def is_unused(path: str) -> bool:
    """The kernel grants a lease for writing only while no other process of the machine has the file open."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # else the signal that tells of somebody opening it ends us
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
