"""What sync keeps in a workdir's `.hostmesh`: a lock, files that are arriving, and a record of every installed file."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Dict, NamedTuple

from hostmesh.launcher.agent.files import lock_within
from hostmesh.launcher.agent.sync.manifest import STATE_FOLDER, is_safe
from hostmesh.launcher.agent.sync.safe_dirs import FOLDER, make_folder

LOCK, STAGING, RECORDS, UNCHANGED = b"lock", b"staging", b"manifest.json", b"found.json"
SECOND = 1_000_000_000  # in the unit of file times
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Record(NamedTuple):
    """An installed file: the digest of its content, its status when that was read, and whether a sync wrote it."""

    digest: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    ours: bool

    @classmethod
    def of(cls, digest: str, status: os.stat_result, ours: bool) -> Record:
        mode, size = status.st_mode & 0o777, status.st_size
        return cls(digest, mode, size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, ours)

    def fits(self, status: os.stat_result) -> bool:
        """Whether a file has not been touched since, so that the digest still holds."""
        return self == Record.of(self.digest, status, self.ours)


Records = Dict[str, Record]


def is_ours(path: str, records: Records) -> bool:
    return path in records and records[path].ours


class SyncState:
    """`folder` and `staging` are descriptors: whatever anybody renames, they stay the same folders."""

    def __init__(self, top: int) -> None:
        make_folder(STATE_FOLDER.encode(), top)
        self.folder = os.open(STATE_FOLDER, FOLDER, dir_fd=top)
        make_folder(STAGING, self.folder)
        self.staging = os.open(STAGING, FOLDER, dir_fd=self.folder)
        self._lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644, dir_fd=self.folder)

    def lock_within(self, timeout: float) -> bool:
        """The lock belongs to the descriptor: when a forked child takes it, its parent holds it, too."""
        return lock_within(self._lock, timeout)

    def unlock(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def clear(self) -> None:
        """Empty the staging folder; the caller must hold the lock."""
        for name in os.listdir(self.staging):
            os.unlink(name, dir_fd=self.staging)

    def close(self) -> None:
        # Closing alone would not unlock while a child has the descriptor, too.
        self.unlock()
        for fd in (self._lock, self.staging, self.folder):
            os.close(fd)

    def read_records(self) -> Records:
        """Of every file that the last sync installed or found unchanged."""
        return self._read(RECORDS, self.folder)

    def write_records(self, records: Records) -> None:
        self._write(RECORDS, records)
        os.rename(RECORDS, RECORDS, src_dir_fd=self.staging, dst_dir_fd=self.folder)

    def read_unchanged(self) -> Records:
        """Of the files that this sync need not install, as its comparison wrote them."""
        return self._read(UNCHANGED, self.staging)

    def write_unchanged(self, records: Records) -> None:
        self._write(UNCHANGED, records)

    def _write(self, name: bytes, records: Records) -> None:
        with os.fdopen(os.open(name, NEW_FILE, 0o644, dir_fd=self.staging), "w") as file:
            file.write(json.dumps(records))

    def _read(self, name: bytes, folder: int) -> Records:
        """Empty if there is no such file, or one that cannot be understood: then every file is compared by content,
        and none is deleted."""
        try:
            with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)) as file:
                records = {path: Record(*fields) for path, fields in json.load(file).items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return {}
        return {path: record for path, record in records.items() if is_safe(path)}
