"""One sync on a host, step by step: make a workdir hold the launcher's tree, and touch nothing else."""

from __future__ import annotations

import os
import time
import zlib
from typing import Dict, List, Optional, Set, Tuple

from hostmesh.launcher.agent.sync.apply import Update
from hostmesh.launcher.agent.sync.compare import Comparison
from hostmesh.launcher.agent.sync.errors import explain_os_errors
from hostmesh.launcher.agent.sync.manifest import (
    STATE_FOLDER,
    Entry,
    SyncError,
    hash_manifest,
    new_hash,
    show,
    unpack_manifest,
)
from hostmesh.launcher.agent.sync.safe_dirs import SafeDirs
from hostmesh.launcher.agent.sync.state import NEW_FILE, SyncState
from hostmesh.launcher.agent.sync.users import User, Users, wait_for

__all__ = ["Incoming", "SyncError"]

LOCK_TIMEOUT = 60.0
ASK_USERS_EVERY = 0.1
MAX_NAMED = 3


class Incoming:
    """The steps are compare, expect, store for every chunk of every needed file (or skip), apply. Close may come at any
    time. A forked child may compare or apply for its parent.

    `mark` is the agent's. With it compare() registers the run as a user of the workdir, and `usage` is the descriptor
    that the agent must keep for as long as the code is in use.
    """

    def __init__(self, workdir: str, data: bytes, mark: Optional[str] = None) -> None:
        self.usage: Optional[int] = None
        self._me = User.of(mark, hash_manifest(data)) if mark else None
        self.workdir = os.path.abspath(os.path.expanduser(workdir))
        self._manifest = unpack_manifest(data)
        self._needed: Optional[Set[int]] = None  # by their numbers in the manifest; None until the lock is held
        self._skipped: Set[int] = set()
        self._arrivals: Dict[int, Arrival] = {}
        self._closed = False
        with explain_os_errors(self.workdir, "use"):
            self._top = open_top(self.workdir)
        with explain_os_errors(self.workdir, "use", STATE_FOLDER):
            self._state = SyncState(self._top)

    def compare(self) -> List[int]:
        """Wait for the lock, compare what is there by content; the numbers of the files that must be sent."""
        with explain_os_errors(self.workdir, "use", STATE_FOLDER):
            self._lock()
            if self._me is not None:
                self.usage = self._register(self._me)
            self._state.clear()
            comparison = Comparison(self.workdir, SafeDirs(self._top), self._state.read_records())
        unchanged = comparison.find_unchanged(self._manifest)
        with explain_os_errors(self.workdir, "use", STATE_FOLDER):
            self._state.write_unchanged(unchanged)
        numbered = enumerate(self._manifest)
        return [number for number, entry in numbered if entry.kind == "file" and entry.path not in unchanged]

    def expect(self, needed: List[int]) -> None:
        """`needed` is what compare() returned; from now on the lock counts as held. If it is empty, apply() is next."""
        self._needed = set(needed)

    def store(self, number: int, last: bool, data: bytes) -> bool:
        """The next chunk of a needed file; True when all of them have arrived."""
        try:
            self._check_is_needed(number)
            with explain_os_errors(self.workdir, "write", self._manifest[number].path):
                self._write_chunk(number, last, data)
        except SyncError:
            self.close()
            raise
        return not self._needed

    def skip(self, number: int) -> bool:
        """Do without a needed file, as if the manifest did not have it; True when all others have arrived."""
        self._check_is_needed(number)
        assert self._needed is not None
        self._needed.remove(number)
        self._skipped.add(number)
        if number in self._arrivals:
            os.close(self._arrivals.pop(number).fd)  # close() removes what has arrived of it
        return not self._needed

    def apply(self) -> Tuple[int, int]:
        """Install what arrived and delete what is no longer in the tree; how many were written and deleted.

        close() is next, whatever happens.
        """
        if self._needed is None or self._needed:
            raise SyncError("the sync was to end before all files had arrived")
        manifest = {number: entry for number, entry in enumerate(self._manifest) if number not in self._skipped}
        return Update(self.workdir, SafeDirs(self._top), self._state, manifest).apply()

    def close(self) -> None:
        """Remove what arrived and was not installed, release the lock; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        has_lock, self._needed = self._needed is not None, None
        for arrival in self._arrivals.values():
            os.close(arrival.fd)
        try:
            if has_lock:
                self._state.clear()
        except OSError:
            pass  # the next sync clears it, or says why it cannot
        self._state.close()
        os.close(self._top)

    def _check_is_needed(self, number: int) -> None:
        if self._needed is None or number not in self._needed:
            raise SyncError(f"a piece of file number {number} came, which was not asked for")

    def _lock(self) -> None:
        if not self._state.lock_within(LOCK_TIMEOUT):
            raise SyncError(
                f"another run, or another host that shares {show(self.workdir)}, has been syncing into it for"
                f" {LOCK_TIMEOUT:g} s; wait for it, or give this run another workdir"
            )

    def _register(self, me: User) -> int:
        """The caller holds the lock, so that nobody syncs meanwhile. Refuses before anything is written or deleted."""
        users, deadline = Users(self._state.folder), None
        try:
            while others := users.find_others(me):
                now = time.monotonic()
                deadline = deadline or now + max(wait_for(other, me, time.time()) for other in others)
                if now > deadline:
                    raise self._refuse(others)
                self._state.unlock()  # other hosts of those runs may wait for it
                time.sleep(ASK_USERS_EVERY)
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
        """Which files this sync would change: ` (train.py, model.py and 3 more differ)`."""
        installed = {path: record.digest for path, record in self._state.read_records().items()}
        wanted = {entry.path: entry.digest for entry in self._manifest}
        names = sorted(path for path in {*installed, *wanted} if installed.get(path) != wanted.get(path))
        if not names:
            return ""
        more = len(names) - MAX_NAMED
        shown = ", ".join(map(show, names[:MAX_NAMED]))
        return f" ({shown}{f' and {more} more' if more > 0 else ''} {'differs' if len(names) == 1 else 'differ'})"

    def _write_chunk(self, number: int, last: bool, chunk: bytes) -> None:
        assert self._needed is not None
        if number not in self._arrivals:
            self._arrivals[number] = Arrival(self._manifest[number], b"%d" % number, self._state.staging)
        arrival = self._arrivals[number]
        arrival.write(chunk)
        if last:
            arrival.end()
            os.close(self._arrivals.pop(number).fd)
            self._needed.remove(number)


class Arrival:
    """A file of which chunks are arriving in the staging folder."""

    def __init__(self, entry: Entry, name: bytes, staging: int) -> None:
        self.entry = entry
        self.left = entry.size
        self.hash = new_hash()
        self.fd = os.open(name, NEW_FILE, 0o600, dir_fd=staging)

    def write(self, chunk: bytes) -> None:
        raw = decompress(chunk, self.left + 1)
        if len(raw) > self.left:
            raise self._explain_difference()
        self.left -= len(raw)
        self.hash.update(raw)
        view = memoryview(raw)
        while view:
            view = view[os.write(self.fd, view) :]

    def end(self) -> None:
        if self.hash.hexdigest() != self.entry.digest:
            raise self._explain_difference()
        os.fchmod(self.fd, self.entry.mode)

    def _explain_difference(self) -> SyncError:
        return SyncError(f"{show(self.entry.path)} arrived with other content than was listed; start again")


def decompress(chunk: bytes, most: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(chunk, most)
    except zlib.error as error:
        raise SyncError(f"a piece of a file arrived damaged ({error}); start again") from None


def open_top(workdir: str) -> int:
    """A descriptor of the workdir, which is made if it is missing. It and the folders above it may be links."""
    try:
        os.makedirs(workdir, 0o755)
    except FileExistsError:
        pass
    return os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
