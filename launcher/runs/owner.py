"""Who supervises a run: a lock in its folder, which the kernel releases when that process ends, however it ends."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import time
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path

from hostmesh.launcher.output.run_folder import Run

# Somebody who looks whether the lock is held has it for a moment.
LOCK_TIMEOUT = 2.0
NODE = "SLURMD_NODENAME"


@dataclass(frozen=True)
class Owner:
    """The supervisor of a run, as it has written itself down."""

    pid: int
    uid: int
    user: str
    host: str
    detached: bool = False
    node: str = ""  # what Slurm calls that host, where it runs the launcher

    @property
    def is_me(self) -> bool:
        return self.uid == os.getuid()

    @property
    def is_here(self) -> bool:
        return self.host == this_host()


def hold_run(run: Run, detached: bool = False) -> FileIO | None:
    """Take the run's lock for as long as the file that this returns is open; None where its folder cannot have one."""
    try:
        file = FileIO(run.lock, "a+")
        deadline = time.monotonic() + LOCK_TIMEOUT
        while not _try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        owner = Owner(os.getpid(), os.getuid(), _name_user(), this_host(), detached, os.environ.get(NODE, ""))
        file.truncate(0)
        file.write(json.dumps(asdict(owner)).encode() + b"\n")
    except OSError:
        return None
    return file


def find_owner(folder: Path) -> Owner | None:
    """The supervisor of a run that has one; None where it has ended, or never began."""
    try:
        with FileIO(folder / "lock", "r") as file:
            if _try_lock(file, fcntl.LOCK_SH):
                return None
            return Owner(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None


def is_held(folder: Path) -> bool:
    return find_owner(folder) is not None


def this_host() -> str:
    """What `socket.gethostname()` says: agents would start a millisecond later if that module were imported first."""
    return os.uname().nodename


def _try_lock(file: FileIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _name_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a uid that nobody has given a name
        return str(os.getuid())
