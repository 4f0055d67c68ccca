"""A folder of compiled programs that several processes and runs share; stdlib only, Python 3.9 or newer.

    compiled/                                the base, for all versions of jax; 0700
      jax-0.10.2-0.10.2-1f0c…/               of one version, for one kind of processor
        0b5e…                                an entry: MAGIC, a digest of its name and content, the content

An entry is written aside and renamed, so whoever reads it sees all of it or nothing. Its time of change is that of its
last use.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Iterator, List, NamedTuple, Optional

from hostmesh.worker.compiling.names import ENTRY, FOLDER

MAGIC = b"hostmesh-compiled-1\n"
DIGEST_SIZE = 32
HEAD_SIZE = len(MAGIC) + DIGEST_SIZE
# Bytes of all entries of all versions; when there are more, the least recently used go, down to this share.
MAX_BYTES = 4 << 30
KEPT_SHARE = 0.9
# A process looks at the sizes of all entries before its first one, and again after writing so many bytes.
LOOK_EVERY = 64 << 20
# Seconds after which a file that was being written is one that nobody finished.
ABANDONED = 3600.0
PART = ".part"


class Entry(NamedTuple):
    path: str
    size: int
    used_at: float


def is_own(path: str) -> bool:
    """Whoever can write there can have this user run any code."""
    status = os.stat(path)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


class Store:
    """The entries of one folder below `base`. What cannot be read is a miss; a folder that cannot be used is
    an OSError."""

    def __init__(self, base: str, folder: str, max_bytes: int = MAX_BYTES) -> None:
        self.base, self.folder, self.max_bytes = base, folder, max_bytes
        self._path = os.path.join(base, folder)
        self._unlooked = LOOK_EVERY
        self._number = 0
        self._is_checked = False

    def path_of(self, name: str) -> str:
        if not ENTRY.fullmatch(name) or not FOLDER.fullmatch(self.folder):
            raise ValueError(f"not the name of an entry: {self.folder}/{name}")
        return os.path.join(self._path, name)

    def make(self) -> None:
        for path in (self.base, self._path):
            os.makedirs(path, mode=0o700, exist_ok=True)
            if not is_own(path):
                raise PermissionError(f"{path} belongs to somebody else, or others can write there")
        self._is_checked = True

    def size_of(self, name: str) -> Optional[int]:
        try:
            return os.stat(self.path_of(name)).st_size
        except OSError:
            return None

    def get(self, name: str) -> Optional[bytes]:
        """An entry that is not what was written is removed."""
        path = self.path_of(name)
        if not self._is_checked and os.path.isdir(self._path):
            self.make()
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return None
        if not is_whole(name, data):
            _remove(path)
            return None
        try:
            os.utime(path)
        except OSError:
            pass  # it may be gone already, or the disk be read-only
        return data[HEAD_SIZE:]

    def put(self, name: str, content: bytes) -> None:
        part = self.begin(name)
        try:
            with open(part, "wb") as file:
                file.write(MAGIC + digest(name, content) + content)
            os.replace(part, self.path_of(name))
        except OSError:
            _remove(part)
            raise
        self._note_written(HEAD_SIZE + len(content))

    def begin(self, name: str) -> str:
        """The path of a file that will become this entry."""
        self.make()
        self._number += 1
        return f"{self.path_of(name)}.{os.getpid()}.{self._number}.{time.time_ns()}{PART}"

    def finish(self, name: str, part: str) -> bool:
        """Make a file that was begun an entry, if that is what it holds."""
        try:
            with open(part, "rb") as file:
                data = file.read()
            if is_whole(name, data):
                os.replace(part, self.path_of(name))
                self._note_written(len(data))
                return True
        except OSError:
            pass
        _remove(part)
        return False

    def _note_written(self, size: int) -> None:
        self._unlooked += size
        if self._unlooked >= min(LOOK_EVERY, self.max_bytes // 16):
            self._unlooked = 0
            make_room(self.base, self.max_bytes)


def digest(name: str, content: bytes) -> bytes:
    """With the name, so that no entry passes for another."""
    return hashlib.blake2b(content, key=name.encode(), digest_size=DIGEST_SIZE).digest()


def is_whole(name: str, data: bytes) -> bool:
    return data.startswith(MAGIC) and data[len(MAGIC) : HEAD_SIZE] == digest(name, data[HEAD_SIZE:])


def make_room(base: str, max_bytes: int) -> None:
    """Remove what was used longest ago, of any version, and what nobody finished."""
    entries = list(_find_entries(base))
    total = sum(entry.size for entry in entries)
    if total <= max_bytes:
        return
    for entry in sorted(entries, key=lambda entry: entry.used_at):
        _remove(entry.path)
        total -= entry.size
        if total <= KEPT_SHARE * max_bytes:
            return


def _find_entries(base: str) -> Iterator[Entry]:
    for folder in _scan(base):
        if FOLDER.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
            for file in _scan(folder.path):
                try:
                    status = file.stat(follow_symlinks=False)
                except OSError:
                    continue  # somebody else removed it
                if file.name.endswith(PART) and time.time() - status.st_mtime > ABANDONED:
                    _remove(file.path)
                elif ENTRY.fullmatch(file.name):
                    yield Entry(file.path, status.st_size, status.st_mtime)


def _scan(path: str) -> List[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return list(found)
    except OSError:
        return []


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
