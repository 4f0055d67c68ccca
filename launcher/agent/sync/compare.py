"""Which files of a tree a workdir holds already, by content, and whether the others have room there."""

from __future__ import annotations

import os
import stat
import time
from typing import Iterable, Optional

from hostmesh.launcher.agent.sync.errors import Complaints
from hostmesh.launcher.agent.sync.manifest import READ, Entry, hash_file, to_bytes, to_text
from hostmesh.launcher.agent.sync.safe_dirs import NotADirectory, SafeDirs
from hostmesh.launcher.agent.sync.state import Record, Records, is_ours

SECOND = 1_000_000_000


class Comparison:
    def __init__(self, beneath: SafeDirs, manifest: Records, complaints: Complaints) -> None:
        self.beneath, self.manifest, self.complaints = beneath, manifest, complaints

    def find_all(self, entries: Iterable[Entry]) -> Records:
        """What is known of every file and link that is the wanted one already; folder by folder, each opened once."""
        found: Records = {}
        for entry in sorted(entries, key=lambda entry: entry.place):
            with self.complaints.of("read", entry.path):
                record = self._find(entry)
            if record is not None:
                found[entry.path] = record
        self.beneath.close()
        return found

    def _find(self, entry: Entry) -> Optional[Record]:
        place, name = entry.place
        try:
            folder = self.beneath.folder(place)
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except NotADirectory as obstacle:
            if is_ours(to_text(obstacle.path), self.manifest):
                return None
            raise
        if stat.S_ISDIR(status.st_mode):
            self._check_will_go(entry.path)
        elif stat.S_ISLNK(status.st_mode) and entry.target is not None:
            return self._compare_link(entry, name, folder, status)
        elif stat.S_ISREG(status.st_mode) and entry.target is None and status.st_size == entry.size:
            return self._compare_file(entry, name, folder, status)
        return None

    def _compare_link(self, entry: Entry, name: bytes, folder: int, status: os.stat_result) -> Optional[Record]:
        assert entry.target is not None
        if os.readlink(name, dir_fd=folder) != to_bytes(entry.target):
            return None
        return Record.of(entry.digest, status, is_ours(entry.path, self.manifest))._replace(mode=entry.mode)

    def _compare_file(self, entry: Entry, name: bytes, folder: int, status: os.stat_result) -> Optional[Record]:
        record = self.manifest.get(entry.path)
        if record is None or not record.fits(status):
            record = examine(name, folder, is_ours(entry.path, self.manifest))
        return record if record is not None and record.digest == entry.digest else None

    def _check_will_go(self, path: str) -> None:
        """A folder stands where the tree has a file: all in it must be what this sync will delete."""
        with os.scandir(self.beneath.folder(to_bytes(path))) as items:
            content = [(to_text(os.fsencode(item.name)), item.is_dir(follow_symlinks=False)) for item in items]
        if not content:
            raise self.complaints.in_the_way(path, "an empty folder", "a file")
        for name, is_folder in content:
            below = f"{path}/{name}"
            if is_folder:
                self._check_will_go(below)
            elif not is_ours(below, self.manifest):
                raise self.complaints.in_the_way(below, "a file that no sync wrote, in a folder", "a file")


def examine(name: bytes, folder: int, ours: bool) -> Optional[Record]:
    """Read a file; None if it cannot be opened, so that it is replaced."""
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
    # Clocks of file systems tick slowly: what changed a moment ago may change again and look the same.
    fresh = began - max(status.st_mtime_ns, status.st_ctime_ns) < SECOND
    return record._replace(ctime_ns=0) if fresh else record
