"""A folder of files of bounded total size, which all processes of a host share.

    data/                the folder; 0700
      usage              the bytes of all files, in text; whoever changes anything holds its lock
      pins/1234-5f       what a process has open, a name a line; its lock is held as long as the process lives
      files/3f/3f9a…     a file; its time of access is that of its last use, its time of change that of its fetching
      files/3f/3f9a….part
                           one that is being fetched, under a lock: others wait for it
      trees/3f9a…/         links to such files under their own names, for libraries that want a folder

A file is written aside and renamed, so that whoever reads it sees all of it or nothing. Whatever of this is deleted by
hand is fetched again.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hostmesh.worker.errors import DataError
from hostmesh.worker.remote.caching.settings import FOLDER, SIZE, CacheSettings

PART = ".part"
# How full it is after making room: to look at all files takes some time, so it is not done for each new one.
KEPT_SHARE = 0.9
# Seconds after which another use of a file is noted.
NOTE_EVERY = 60.0


class NoRoom(Exception):
    """What is open, and what is being fetched, leaves too little."""

    def __init__(self, in_use: int) -> None:
        super().__init__(in_use)
        self.in_use = in_use


class Cache:
    """Used by several threads and processes; after a fork it must be made anew."""

    def __init__(self, settings: CacheSettings) -> None:
        self.folder, self.limit = settings.folder, settings.size
        self._files, self._pins = settings.folder / "files", settings.folder / "pins"
        self._lock = threading.Lock()
        self._pinned: dict[str, int] = {}  # how many hold each name
        self._pin_path = self._pins / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._pin_file: int | None = None
        self._is_counted = False
        self._noted: dict[str, float] = {}

    def tree_of(self, name: str) -> Path:
        """A folder of links to files of the cache."""
        return self.folder / "trees" / name

    def path_of(self, name: str) -> Path:
        return self._files / name[:2] / name

    def find(self, name: str) -> Path | None:
        """The file of that name, noted as used, or None."""
        path = self.path_of(name)
        now = time.monotonic()
        try:
            if now - self._noted.get(name, -NOTE_EVERY) < NOTE_EVERY:
                return path if path.exists() else None
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        except OSError:
            return None
        self._noted[name] = now
        return path

    def bring(self, name: str, size: int, fetch: Callable[[int], None], pinned: bool = False) -> Path:
        """The file of that name. Where it is not there, `fetch` writes its bytes into the given open file; of several
        threads and processes one does, and the others wait. A pinned one stays until `unpin`."""
        while True:
            with self._usage():
                if (path := self.find(name)) is not None:
                    if pinned:
                        self._pin(name)
                    return path
            with self._claim(name) as part:
                # None where another one has just brought it, or has failed.
                if part is not None and not self.path_of(name).exists():
                    self._fill(part, name, size, fetch)

    def _fill(self, part: int, name: str, size: int, fetch: Callable[[int], None]) -> None:
        self._reserve(part, size)
        try:
            fetch(part)
            os.fsync(part)
            os.rename(self._part_of(name), self.path_of(name))
        except FileNotFoundError:
            pass  # somebody has deleted the folder meanwhile
        except OSError as error:
            self._give_back(size)
            raise self.explain(error) from error
        except BaseException:
            self._give_back(size)
            raise

    def unpin(self, name: str) -> None:
        with self._lock:
            count = self._pinned.get(name, 0) - 1
            if count > 0:
                self._pinned[name] = count
            else:
                self._pinned.pop(name, None)
            self._write_pins()

    def explain(self, error: OSError) -> DataError:
        return DataError(
            f"the cache of data in {self.folder} cannot be written: {error.strerror}; {FOLDER} names another folder,"
            f" {SIZE} says how large it may become"
        )

    # One file at a time, which the operating system sees to.

    @contextmanager
    def _claim(self, name: str) -> Iterator[int | None]:
        """The open file to write into, or None where another one had it first."""
        path = self._part_of(name)
        part = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(part, fcntl.LOCK_EX)
            is_ours = is_same_file(part, path)
            yield part if is_ours else None
            if is_ours and is_same_file(part, path):  # it was not finished
                with suppress(FileNotFoundError):
                    os.unlink(path)
        except BaseException:
            if is_same_file(part, path):
                with suppress(FileNotFoundError):
                    os.unlink(path)
            raise
        finally:
            os.close(part)

    def _part_of(self, name: str) -> Path:
        path = self.path_of(name)
        return path.with_name(path.name + PART)

    def _open(self, path: Path, flags: int) -> int:
        try:
            try:
                return os.open(path, flags, 0o600)
            except FileNotFoundError:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                return os.open(path, flags, 0o600)
        except OSError as error:
            raise self.explain(error) from error

    # How much there is.

    @contextmanager
    def _usage(self) -> Iterator[int]:
        """The open file with the bytes of all files, under its lock."""
        file = self._open(self.folder / "usage", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _reserve(self, part: int, size: int) -> None:
        """Makes the file so large; what was not used for longest goes where that is too much."""
        with self._usage() as usage:
            total = read_number(usage) if self._is_counted else None
            if total is None or total + size > self.limit:
                total = self._count_and_remove(size)
                self._is_counted = True
            if total + size > self.limit:
                write_number(usage, total)
                raise NoRoom(total)
            write_number(usage, total + size)
            os.truncate(part, size)

    def _give_back(self, size: int) -> None:
        with self._usage() as usage:
            total = read_number(usage)
            write_number(usage, max(0, (total or 0) - size))

    def _count_and_remove(self, size: int) -> int:
        """The bytes of all files, after the oldest were removed where more room is wanted."""
        entries = sorted(list_files(self._files), key=lambda entry: entry[2])
        total = sum(entry[1] for entry in entries)
        if total + size <= self.limit:
            return total
        wanted = max(0, int(self.limit * KEPT_SHARE) - size)
        pinned = self._read_all_pins()
        for path, held, _ in entries:
            if total <= wanted:
                break
            if path.name not in pinned and remove_unless_locked(path):
                total -= held
        return total

    # What is open.

    def _pin(self, name: str) -> None:
        """Under the lock of `usage`: who removes files reads all pins under it."""
        with self._lock:
            self._pinned[name] = self._pinned.get(name, 0) + 1
            self._write_pins()

    def _write_pins(self) -> None:
        if self._pin_file is None or not is_same_file(self._pin_file, self._pin_path):
            file = self._open(self._pin_path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._pin_file is not None:
                os.close(self._pin_file)
            self._pin_file = file
        data = "\n".join(self._pinned).encode()
        os.pwrite(self._pin_file, data, 0)
        os.truncate(self._pin_file, len(data))

    def _read_all_pins(self) -> set[str]:
        found: set[str] = set()
        with suppress(FileNotFoundError):
            for path in list(self._pins.iterdir()):
                if not remove_unless_locked(path):
                    with suppress(FileNotFoundError):
                        found |= set(path.read_text().split("\n"))
        return found


def list_files(folder: Path) -> list[tuple[Path, int, float]]:
    """Each with its size and the time of its last use; what is being fetched is among them, with its size to be."""
    found = []
    with suppress(FileNotFoundError):
        for part in os.scandir(folder):
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.scandir(part.path):
                    with suppress(FileNotFoundError):
                        status = entry.stat()
                        found.append((Path(entry.path), status.st_size, status.st_atime))
    return found


def remove_unless_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def is_same_file(file: int, path: Path) -> bool:
    try:
        there, own = os.stat(path), os.fstat(file)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)


def read_number(file: int) -> int | None:
    try:
        return int(os.pread(file, 32, 0))
    except ValueError:
        return None


def write_number(file: int, number: int) -> None:
    data = str(number).encode()
    os.pwrite(file, data, 0)
    os.truncate(file, len(data))
