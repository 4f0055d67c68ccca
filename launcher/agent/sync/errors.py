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


class Complaints:
    def __init__(self, workdir: str) -> None:
        self.workdir = workdir

    @contextmanager
    def of(self, act: str, path: str = "") -> Iterator[None]:
        """System errors while we read, write or delete `path` become a SyncError that names it."""
        try:
            yield
        except NotADirectory as obstacle:
            raise self.in_the_way(to_text(obstacle.path), "a file or a link", "a folder") from None
        except OSError as error:
            where = show(os.path.join(self.workdir, path) if path else self.workdir)
            raise SyncError(f"cannot {act} {where}: {error.strerror}{self._say_how_to_mend(error)}") from None

    def in_the_way(self, path: str, found: str, wanted: str) -> SyncError:
        where = f"{show(path)} in {show(self.workdir)}"
        return SyncError(f"{where} is {found} where the code has {wanted}; move it away on this host")

    def _say_how_to_mend(self, error: OSError) -> str:
        if error.errno not in FULL:
            return "; choose a workdir where this user may write"
        room = measure_disk(self.workdir)
        free = room.f_bavail * room.f_frsize
        return f" ({free:,} bytes are free); make room there or choose another workdir"
