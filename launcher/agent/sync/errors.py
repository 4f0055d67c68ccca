"""What can go wrong while a workdir is synced, as sentences for the user."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import Iterator

from hostmesh.launcher.agent.files import measure_disk
from hostmesh.launcher.agent.sync.manifest import SyncError, show, to_text
from hostmesh.launcher.agent.sync.safe_dirs import NotADirectory

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explain_os_errors(workdir: str, act: str, path: str = "") -> Iterator[None]:
    """An OSError inside becomes a SyncError: `cannot write /work/train.py: …` for the act `write` on train.py."""
    try:
        yield
    except NotADirectory as obstacle:
        raise explain_obstacle(workdir, to_text(obstacle.path), "a file or a link", "a folder") from None
    except OSError as error:
        where = show(os.path.join(workdir, path) if path else workdir)
        raise SyncError(f"cannot {act} {where}: {error.strerror}{_suggest_fix(workdir, error)}") from None


def explain_obstacle(workdir: str, path: str, found: str, wanted: str) -> SyncError:
    where = f"{show(path)} in {show(workdir)}"
    return SyncError(f"{where} is {found} where the code has {wanted}; move it away on this host")


def _suggest_fix(workdir: str, error: OSError) -> str:
    if error.errno not in FULL:
        return "; choose a workdir where this user may write"
    _, free = measure_disk(workdir)
    return f" ({free:,} bytes are free); make room there or choose another workdir"
