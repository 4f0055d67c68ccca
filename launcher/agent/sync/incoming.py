"""The host's end of code sync: make a workdir hold the launcher's tree, and touch nothing else."""

from __future__ import annotations

import os
import time
import zlib
from typing import Dict, List, Optional, Set, Tuple

from hostmesh.launcher.agent.sync.apply import Place
from hostmesh.launcher.agent.sync.compare import Comparison
from hostmesh.launcher.agent.sync.errors import Complaints
from hostmesh.launcher.agent.sync.manifest import (
    STATE_FOLDER,
    Entry,
    SyncError,
    hash_listing,
    new_hash,
    show,
    unpack_entries,
)
from hostmesh.launcher.agent.sync.safe_dirs import SafeDirs
from hostmesh.launcher.agent.sync.state import NEW_FILE, SyncState
from hostmesh.launcher.agent.sync.users import User, Users, wait_for

__all__ = ["Incoming", "SyncError"]

LOCK_TIMEOUT = 60.0
LOOK_AGAIN = 0.1
MAX_NAMED = 3


class Incoming:
    """One sync: look (perhaps in a child), expect what is wanted, take every piece of it, place; close at any time.

    `mark` is the agent's. With it look() registers the run as a user of the workdir, and `usage` is the descriptor that
    the agent must keep for as long as the code is in use.
    """

    def __init__(self, workdir: str, data: bytes, mark: Optional[str] = None) -> None:
        self.usage: Optional[int] = None
        self._me = User.of(mark, hash_listing(data)) if mark else None
        self.workdir = os.path.abspath(os.path.expanduser(workdir))
        self._entries = unpack_entries(data)
        self._wanted: Optional[Set[int]] = None
        self._left: Set[int] = set()
        self._arrivals: Dict[int, Arrival] = {}
        self._closed = False
        self._complaints = Complaints(self.workdir)
        with self._complaints.of("use"):
            self._top = open_top(self.workdir)
        with self._complaints.of("use", STATE_FOLDER):
            self._state = SyncState(self._top)

    def look(self) -> List[int]:
        """Wait for the lock, compare what is there by content, say which files must be sent."""
        with self._complaints.of("use", STATE_FOLDER):
            self._lock()
            if self._me is not None:
                self.usage = self._register(self._me)
            self._state.clear()
            look = Comparison(SafeDirs(self._top), self._state.read_manifest(), self._complaints)
        found = look.find_all(self._entries)
        with self._complaints.of("use", STATE_FOLDER):
            self._state.write_found(found)
        numbered = enumerate(self._entries)
        return [number for number, entry in numbered if entry.kind == "file" and entry.path not in found]

    def expect(self, wanted: List[int]) -> None:
        """What look() answered, and with it the lock. When nothing is wanted, place() is next."""
        self._wanted = set(wanted)

    def take(self, number: int, last: bool, data: bytes) -> bool:
        """The next piece of a wanted file; True when all of them have arrived."""
        try:
            self._check_is_wanted(number)
            with self._complaints.of("write", self._entries[number].path):
                self._store(number, last, data)
        except SyncError:
            self.close()
            raise
        return not self._wanted

    def leave(self, number: int) -> bool:
        """Do without a wanted file, as if it had not been listed; True when all others have arrived."""
        self._check_is_wanted(number)
        assert self._wanted is not None
        self._wanted.remove(number)
        self._left.add(number)
        if number in self._arrivals:
            os.close(self._arrivals.pop(number).fd)  # what is there of it goes with close()
        return not self._wanted

    def place(self) -> Tuple[int, int]:
        """Put what arrived in place and delete what is no longer in the tree; how many were written and deleted.

        May be done in a child, since thousands of files take seconds on a busy disk; close() is next in any case.
        """
        if self._wanted is None or self._wanted:
            raise SyncError("the sync was to end before all files had arrived")
        numbered = {number: entry for number, entry in enumerate(self._entries) if number not in self._left}
        return Place(SafeDirs(self._top), self._state, numbered, self._complaints).place_all()

    def close(self) -> None:
        """Drop what arrived and is not in place, release the lock; a second time does nothing."""
        if self._closed:
            return
        self._closed = True
        has_lock, self._wanted = self._wanted is not None, None
        for arrival in self._arrivals.values():
            os.close(arrival.fd)
        try:
            if has_lock:
                self._state.clear()
        except OSError:
            pass  # the next sync clears it, or says why it cannot
        self._state.close()
        os.close(self._top)

    def _check_is_wanted(self, number: int) -> None:
        if self._wanted is None or number not in self._wanted:
            raise SyncError(f"a piece of file number {number} came, which was not asked for")

    def _lock(self) -> None:
        if not self._state.lock_within(LOCK_TIMEOUT):
            raise SyncError(
                f"another run, or another host that shares {show(self.workdir)}, has been syncing into it for"
                f" {LOCK_TIMEOUT:g} s; wait for it, or give this run another workdir"
            )

    def _register(self, me: User) -> int:
        """Under the lock, so that nobody syncs in between; refuses before anything is written or deleted."""
        users, deadline = Users(self._state.folder), None
        try:
            while others := users.find_others(me):
                now = time.monotonic()
                deadline = deadline or now + max(wait_for(other, me, time.time()) for other in others)
                if now > deadline:
                    raise self._refuse(others)
                self._state.unlock()  # other hosts of those runs may wait for it
                time.sleep(LOOK_AGAIN)
                self._lock()
            return users.add(me)
        finally:
            users.close()

    def _refuse(self, others: List[User]) -> SyncError:
        who = "; and by ".join(map(str, others[:MAX_NAMED]))
        return SyncError(
            f"workdir {show(self.workdir)} is in use with other code{self._name_differences()}, by {who};"
            " wait until that has ended, stop it, or give this run another workdir"
        )

    def _name_differences(self) -> str:
        """What is in place beside what would be: ` (train.py, model.py and 3 more files differ)`."""
        there = {path: record.digest for path, record in self._state.read_manifest().items()}
        here = {entry.path: entry.digest for entry in self._entries}
        names = sorted(path for path in {*there, *here} if there.get(path) != here.get(path))
        if not names:
            return ""
        more = len(names) - MAX_NAMED
        shown = ", ".join(map(show, names[:MAX_NAMED]))
        return f" ({shown}{f' and {more} more' if more > 0 else ''} {'differs' if len(names) == 1 else 'differ'})"

    def _store(self, number: int, last: bool, piece: bytes) -> None:
        assert self._wanted is not None
        if number not in self._arrivals:
            self._arrivals[number] = Arrival(self._entries[number], b"%d" % number, self._state.staging)
        arrival = self._arrivals[number]
        arrival.write(piece)
        if last:
            arrival.end()
            os.close(self._arrivals.pop(number).fd)
            self._wanted.remove(number)


class Arrival:
    """A file on its way into the staging folder."""

    def __init__(self, entry: Entry, name: bytes, staging: int) -> None:
        self.entry = entry
        self.left = entry.size
        self.hash = new_hash()
        self.fd = os.open(name, NEW_FILE, 0o600, dir_fd=staging)

    def write(self, piece: bytes) -> None:
        raw = unpack_piece(piece, self.left + 1)
        if len(raw) > self.left:
            self._complain()
        self.left -= len(raw)
        self.hash.update(raw)
        view = memoryview(raw)
        while view:
            view = view[os.write(self.fd, view) :]

    def end(self) -> None:
        if self.hash.hexdigest() != self.entry.digest:
            self._complain()
        os.fchmod(self.fd, self.entry.mode)

    def _complain(self) -> None:
        raise SyncError(f"{show(self.entry.path)} arrived with other content than was listed; start again")


def unpack_piece(piece: bytes, most: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(piece, most)
    except zlib.error as error:
        raise SyncError(f"a piece of a file arrived damaged ({error}); start again") from None


def open_top(workdir: str) -> int:
    """The workdir itself, and what is above it, may well be links."""
    try:
        os.makedirs(workdir, 0o755)
    except FileExistsError:
        pass
    return os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
