"""Turn a workdir from the tree an earlier sync left into the one whose files have arrived."""

from __future__ import annotations

import os
import stat
import time
from typing import Dict, Iterable, List, Tuple

from hostmesh.launcher.agent.sync.errors import Complaints
from hostmesh.launcher.agent.sync.manifest import READ, STATE_FOLDER, Entry, folders_above, split_path, to_bytes
from hostmesh.launcher.agent.sync.safe_dirs import NotADirectory, SafeDirs
from hostmesh.launcher.agent.sync.state import Record, Records, SyncState, is_ours

SECOND = 1_000_000_000
LINK = b"link"


class Place:
    """`numbered` are the entries by the numbers that their files have in the staging folder."""

    def __init__(self, beneath: SafeDirs, state: SyncState, numbered: Dict[int, Entry], complaints: Complaints) -> None:
        self.beneath, self.state, self.numbered, self.complaints = beneath, state, numbered, complaints
        self.entries = list(numbered.values())
        self.paths = {entry.path for entry in self.entries}

    def place_all(self) -> Tuple[int, int]:
        with self.complaints.of("use", STATE_FOLDER):
            manifest, found = self.state.read_manifest(), self.state.read_found()
            missing = [(number, entry) for number, entry in self.numbered.items() if entry.path not in found]
            self._claim([entry for _, entry in missing], manifest)
        deleted = self._delete([path for path in manifest if is_ours(path, manifest) and path not in self.paths])
        records = {entry.path: self._keep(entry, found[entry.path]) for entry in self.entries if entry.path in found}
        for number, entry in sorted(missing, key=lambda pair: pair[1].place):
            with self.complaints.of("write", entry.path):
                records[entry.path] = self._place(number, entry)
        self.beneath.close()
        if records != manifest:
            with self.complaints.of("use", STATE_FOLDER):
                self.state.write_manifest(records)
        return len(missing), deleted

    def _claim(self, missing: List[Entry], manifest: Records) -> None:
        """Say what is ours before it is in place: what a killed sync wrote can then be deleted by a later one."""
        claims = {
            entry.path: Record(entry.digest, entry.mode, entry.size, 0, 0, 0, True)
            for entry in missing
            if not is_ours(entry.path, manifest)
        }
        if claims:
            self.state.write_manifest({**manifest, **claims})

    def _delete(self, paths: Iterable[str]) -> int:
        deleted = 0
        for path in sorted(paths):
            with self.complaints.of("delete", path):
                deleted += self._delete_one(path)
        for path in sorted(folders_above(paths) - folders_above(self.paths), reverse=True):
            self._delete_empty(path)
        return deleted

    def _delete_one(self, path: str) -> bool:
        """False if it is gone, or has made way for a folder of the host's own or something behind a link."""
        place, name = split_path(path)
        try:
            folder = self.beneath.folder(place)
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return False
            os.unlink(name, dir_fd=folder)
        except (FileNotFoundError, NotADirectory):
            return False
        return True

    def _delete_empty(self, path: str) -> None:
        place, name = split_path(path)
        try:
            os.rmdir(name, dir_fd=self.beneath.folder(place))
        except (OSError, NotADirectory):
            pass  # it holds something of the host's own, or is not a folder any more

    def _keep(self, entry: Entry, record: Record) -> Record:
        """A file whose content is right may have the wrong mode."""
        if record.mode == entry.mode:
            return record
        place, name = entry.place
        with self.complaints.of("set the mode of", entry.path):
            fd = os.open(name, READ, dir_fd=self.beneath.folder(place))
            try:
                os.fchmod(fd, entry.mode)
                return record._replace(mode=entry.mode, ctime_ns=os.fstat(fd).st_ctime_ns)
            finally:
                os.close(fd)

    def _place(self, number: int, entry: Entry) -> Record:
        place, name = entry.place
        folder, staging = self.beneath.folder(place, make=True), self.state.staging
        if entry.target is not None:
            staged = LINK
            os.symlink(to_bytes(entry.target), staged, dir_fd=staging)
        else:
            staged = b"%d" % number
            stamp(staged, staging, find_time(name, folder))
        os.rename(staged, name, src_dir_fd=staging, dst_dir_fd=folder)
        record = Record.of(entry.digest, os.stat(name, dir_fd=folder, follow_symlinks=False), True)
        return record._replace(mode=entry.mode)


def find_time(name: bytes, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0


def stamp(name: bytes, folder: int, replaced: int) -> None:
    """Give a new file a time no later change can have, and another second than the file it replaces.

    Python takes a module's cached code for current as long as size and second are the same.
    """
    now = time.time_ns()
    os.utime(name, ns=(now, max(now - SECOND, replaced + SECOND)), dir_fd=folder, follow_symlinks=False)
