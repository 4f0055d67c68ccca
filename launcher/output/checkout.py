"""Which commit a folder is at, asked of git; never waits for long."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import NamedTuple

# Options that keep git from running a program (fsmonitor) and from taking a lock of the repository.
STATUS = [
    *("git", "--no-optional-locks", "-c", "core.fsmonitor=false"),
    *("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=untracked"),
]
# Set inside git's own hooks, where they would name another repository.
MISLEADING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")

POLL_EVERY = 0.1


class Checkout(NamedTuple):
    commit: str
    changed: bool  # a file that git knows is not as in the commit


def find_checkout(folder: str | Path, timeout: float, enough: threading.Event | None = None) -> Checkout | None:
    """The commit that a folder is at; None without git, without a repository or a commit there.

    Also None when git takes longer than `timeout` seconds, or is not done when `enough` is set.
    """
    env = {name: value for name, value in os.environ.items() if name not in MISLEADING}
    try:
        git = subprocess.Popen(
            STATUS,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C is not meant for it
        )
    except OSError:
        return None
    deadline = time.monotonic() + timeout
    while True:
        try:
            output, _ = git.communicate(timeout=POLL_EVERY)
            return _parse(output.decode("utf-8", "replace")) if git.returncode == 0 else None
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline or (enough is not None and enough.is_set()):
                git.kill()  # without waiting for its end, which never comes on a hung disk
                return None


def _parse(status: str) -> Checkout | None:
    """`# branch.oid 1b2c…`, other lines of that kind, and one for each file that was changed."""
    lines = status.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    return None if commit == "(initial)" else Checkout(commit, any(not line.startswith("#") for line in lines))
