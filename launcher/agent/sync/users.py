"""Which live runs use a workdir: a file for each of their agents, locked for as long as that agent lives."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from typing import Dict, List, NamedTuple, Optional

from hostmesh.launcher.agent.sync.safe_dirs import FOLDER, make_folder

USERS = b"users"
# Seconds that a run which is ending has to be gone.
GRACE = 2.0
# Seconds after which a run that registered here is no longer starting. If another host refused it, it is gone by then:
# it waits up to 10 s for its other hosts' answers before it ends.
STARTING = 20.0


class User(NamedTuple):
    """An agent that uses a workdir: its run and its host in the run, the hash of its code, its machine, the person who
    started it, and since when."""

    run: str
    host: str
    code: str
    machine: str
    name: str
    since: float

    @classmethod
    def of(cls, mark: str, code: str) -> User:
        run, _, host = mark.rpartition(".")
        name = os.environ.get("USER") or os.environ.get("LOGNAME") or f"uid {os.getuid()}"
        return cls(run, host, code, socket.gethostname(), name, time.time())

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"run {self.run} of {self.name}, since {began} on {self.machine}"


def wait_for(other: User, me: User, now: float) -> float:
    """Seconds that `me` waits for `other` to go away.

    Two runs that start at once may each be first on some host. One of them must yield: the one with the larger id is
    refused soon, and the other waits for that. A run that is no longer starting will not yield.
    """
    if me.run > other.run:
        return GRACE
    return max(GRACE, STARTING - max(0.0, now - other.since))


class Users:
    """The folder of these files; whoever uses it must hold the sync lock."""

    def __init__(self, state_folder: int) -> None:
        make_folder(USERS, state_folder)
        self.folder = os.open(USERS, FOLDER, dir_fd=state_folder)

    def close(self) -> None:
        os.close(self.folder)

    def find_others(self, me: User) -> List[User]:
        """One live agent of each other run that has other code; the files of dead ones are deleted.

        One agent of a run is enough: a thousand hosts that share a workdir must not open a thousand files each.
        """
        found: Dict[str, User] = {}
        for name in sorted(os.listdir(self.folder)):
            run = name.rpartition(".")[0]
            if run != me.run and run not in found and (user := self._read_live(name)) is not None:
                found[run] = user
        return [user for user in found.values() if user.code != me.code]

    def add(self, me: User) -> int:
        """Returns a descriptor that holds the file's lock; `me` counts as live as long as some process has it."""
        name = f"{me.run}.{me.host}"
        self._delete(name)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=self.folder)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, json.dumps(me).encode())
        return fd

    def _read_live(self, name: str) -> Optional[User]:
        try:
            # Only for reading, since it may be another person's file; on NFS that suffices for a shared lock.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.folder)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return parse(os.read(fd, 1 << 16), name)
        finally:
            os.close(fd)
        self._delete(name)
        return None

    def _delete(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.folder)
        except OSError:
            pass  # gone, or not ours to delete


def parse(data: bytes, name: str) -> User:
    """A file that cannot be understood still tells by its name and its lock that some run uses the workdir."""
    try:
        user = User(*json.loads(data))
        float(user.since)
        return user._replace(run=str(user.run))
    except (ValueError, TypeError):
        run, _, host = name.rpartition(".")
        return User(run, host, "", "an unknown host", "an unknown user", time.time())
