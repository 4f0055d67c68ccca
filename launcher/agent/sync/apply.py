"""Turn a workdir from the tree an earlier sync left into the one whose files have arrived."""

from __future__ import annotations

import os
import stat
import time
from typing import Dict, Iterable, List, Tuple

from hostmesh.launcher.agent.sync.errors import explain_os_errors
from hostmesh.launcher.agent.sync.manifest import READ, STATE_FOLDER, Entry, folders_above, split_path, to_bytes
from hostmesh.launcher.agent.sync.safe_dirs import NotADirectory, SafeDirs
from hostmesh.launcher.agent.sync.state import SECOND, Record, Records, SyncState, is_ours

LINK = b"link"


class Update:
    """Of a workdir. `manifest` has the entries by their numbers, which are their files' names in the staging folder."""

    def __init__(self, workdir: str, dirs: SafeDirs, state: SyncState, manifest: Dict[int, Entry]) -> None:
        self.workdir, self.dirs, self.state, self.manifest = workdir, dirs, state, manifest
        self.paths = {entry.path for entry in manifest.values()}

    def apply(self) -> Tuple[int, int]:
        """How many files and links were written and deleted."""
        with explain_os_errors(self.workdir, "use", STATE_FOLDER):
            known, unchanged = self.state.read_records(), self.state.read_unchanged()
            missing = [(number, entry) for number, entry in self.manifest.items() if entry.path not in unchanged]
            self._claim([entry for _, entry in missing], known)
        deleted = self._delete([path for path in known if is_ours(path, known) and path not in self.paths])
        records = {
            entry.path: self._correct_mode(entry, unchanged[entry.path])
            for entry in self.manifest.values()
            if entry.path in unchanged
        }
        for number, entry in sorted(missing, key=lambda pair: pair[1].folder_and_name):
            with explain_os_errors(self.workdir, "write", entry.path):
                records[entry.path] = self._install(number, entry)
        self.dirs.close()
        if records != known:
            with explain_os_errors(self.workdir, "use", STATE_FOLDER):
                self.state.write_records(records)
        return len(missing), deleted

    def _claim(self, missing: List[Entry], known: Records) -> None:
        """Record files as ours before they are installed: if this sync is killed, a later one may delete them."""
        claims = {
            entry.path: Record(entry.digest, entry.mode, entry.size, 0, 0, 0, True)
            for entry in missing
            if not is_ours(entry.path, known)
        }
        if claims:
            self.state.write_records({**known, **claims})

    def _delete(self, paths: Iterable[str]) -> int:
        deleted = 0
        for path in sorted(paths):
            with explain_os_errors(self.workdir, "delete", path):
                deleted += self._delete_one(path)
        for path in sorted(folders_above(paths) - folders_above(self.paths), reverse=True):
            self._delete_if_empty(path)
        return deleted

    def _delete_one(self, path: str) -> bool:
        """False if it is gone, or if the host has a folder of its own there, or a link instead of a folder above."""
        folder, name = split_path(path)
        try:
            fd = self.dirs.open(folder)
            if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                return False
            os.unlink(name, dir_fd=fd)
        except (FileNotFoundError, NotADirectory):
            return False
        return True

    def _delete_if_empty(self, path: str) -> None:
        folder, name = split_path(path)
        try:
            os.rmdir(name, dir_fd=self.dirs.open(folder))
        except (OSError, NotADirectory):
            pass  # it holds something of the host's own, or is not a folder any more

    def _correct_mode(self, entry: Entry, record: Record) -> Record:
        """A file whose content is right may have the wrong mode."""
        if record.mode == entry.mode:
            return record
        folder, name = entry.folder_and_name
        with explain_os_errors(self.workdir, "set the mode of", entry.path):
            fd = os.open(name, READ, dir_fd=self.dirs.open(folder))
            try:
                os.fchmod(fd, entry.mode)
                return record._replace(mode=entry.mode, ctime_ns=os.fstat(fd).st_ctime_ns)
            finally:
                os.close(fd)

    def _install(self, number: int, entry: Entry) -> Record:
        """Rename a staged file, or a new link, to its path in the workdir."""
        folder, name = entry.folder_and_name
        fd, staging = self.dirs.open(folder, make=True), self.state.staging
        if entry.target is not None:
            staged = LINK
            os.symlink(to_bytes(entry.target), staged, dir_fd=staging)
        else:
            staged = b"%d" % number
            set_time(staged, staging, read_time(name, fd))
        os.rename(staged, name, src_dir_fd=staging, dst_dir_fd=fd)
        record = Record.of(entry.digest, os.stat(name, dir_fd=fd, follow_symlinks=False), True)
        return record._replace(mode=entry.mode)


def read_time(name: bytes, folder: int) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0


def set_time(name: bytes, folder: int, replaced: int) -> None:
    """Give a new file a time that no later change can have, and another second than the file it replaces.

    Python takes a module's cached code for current as long as size and second are the same.
    """
    now = time.time_ns()
    os.utime(name, ns=(now, max(now - SECOND, replaced + SECOND)), dir_fd=folder, follow_symlinks=False)
