"""Which files of a manifest a workdir holds already, by content."""

from __future__ import annotations

import os
import stat
import time
from typing import Iterable, Optional

from hostmesh.launcher.agent.sync.errors import explain_obstacle, explain_os_errors
from hostmesh.launcher.agent.sync.manifest import READ, Entry, hash_file, to_bytes, to_text
from hostmesh.launcher.agent.sync.safe_dirs import NotADirectory, SafeDirs
from hostmesh.launcher.agent.sync.state import SECOND, Record, Records, is_ours


class Comparison:
    """`known` are the records that earlier syncs left."""

    def __init__(self, workdir: str, dirs: SafeDirs, known: Records) -> None:
        self.workdir, self.dirs, self.known = workdir, dirs, known

    def find_unchanged(self, manifest: Iterable[Entry]) -> Records:
        """A record of every file and link that is as the manifest wants it. It goes folder by folder, so that each is
        opened once."""
        unchanged: Records = {}
        for entry in sorted(manifest, key=lambda entry: entry.folder_and_name):
            with explain_os_errors(self.workdir, "read", entry.path):
                record = self._compare(entry)
            if record is not None:
                unchanged[entry.path] = record
        self.dirs.close()
        return unchanged

    def _compare(self, entry: Entry) -> Optional[Record]:
        folder, name = entry.folder_and_name
        try:
            fd = self.dirs.open(folder)
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except NotADirectory as obstacle:
            if is_ours(to_text(obstacle.path), self.known):
                return None
            raise
        if stat.S_ISDIR(status.st_mode):
            self._check_all_is_ours(entry.path)
        elif stat.S_ISLNK(status.st_mode) and entry.target is not None:
            return self._compare_link(entry, name, fd, status)
        elif stat.S_ISREG(status.st_mode) and entry.target is None and status.st_size == entry.size:
            return self._compare_file(entry, name, fd, status)
        return None

    def _compare_link(self, entry: Entry, name: bytes, folder: int, status: os.stat_result) -> Optional[Record]:
        assert entry.target is not None
        if os.readlink(name, dir_fd=folder) != to_bytes(entry.target):
            return None
        return Record.of(entry.digest, status, is_ours(entry.path, self.known))._replace(mode=entry.mode)

    def _compare_file(self, entry: Entry, name: bytes, folder: int, status: os.stat_result) -> Optional[Record]:
        record = self.known.get(entry.path)
        if record is None or not record.fits(status):
            record = examine(name, folder, is_ours(entry.path, self.known))
        return record if record is not None and record.digest == entry.digest else None

    def _check_all_is_ours(self, path: str) -> None:
        """Where the manifest has a file and the host a folder, this sync must be able to delete all of the folder."""
        with os.scandir(self.dirs.open(to_bytes(path))) as items:
            content = [(to_text(os.fsencode(item.name)), item.is_dir(follow_symlinks=False)) for item in items]
        if not content:
            raise explain_obstacle(self.workdir, path, "an empty folder", "a file")
        for name, is_folder in content:
            below = f"{path}/{name}"
            if is_folder:
                self._check_all_is_ours(below)
            elif not is_ours(below, self.known):
                raise explain_obstacle(self.workdir, below, "a file that no sync wrote, in a folder", "a file")


def examine(name: bytes, folder: int, ours: bool) -> Optional[Record]:
    """A record of a file by its content; None if it cannot be opened, so that it is replaced."""
    began = time.time_ns()
    try:
        fd = os.open(name, READ, dir_fd=folder)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        record = Record.of(hash_file(fd, status.st_size), status, ours)
    finally:
        os.close(fd)
    # Clocks of file systems tick slowly: a file that changed a moment ago may change again within the same tick. With
    # this change time, which no file has, the record fits nothing, and the next sync reads the file again.
    is_fresh = began - max(status.st_mtime_ns, status.st_ctime_ns) < SECOND
    return record._replace(ctime_ns=0) if is_fresh else record
