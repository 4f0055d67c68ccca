"""A folder has one owner at a time: others are refused with its name, and replace it when it is dead."""

from __future__ import annotations

import atexit
import errno
import getpass
import json
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.identity import Identity
from hostmesh.worker.process.machine import host_name, machine_id
from hostmesh.worker.saving.stores.base import Place
from hostmesh.worker.saving.stores.mounted import Mounted

# `.owner-3`: whoever made the file with the highest number owns the folder. To take it over is to make the next one,
# which only one process can: the exclusive creation of a file is the one lock that network filesystems agree on.
OWNER_FILE = re.compile(r"\.owner-(\d+)")
# The owner touches its file every BEAT_EVERY seconds. A process that saw no change for STALE_AFTER seconds, by its own
# clock, takes over.
BEAT_EVERY = 2.0
STALE_AFTER = 20.0
LOOK_EVERY = 0.1
# Seconds of silence that one look counts at most. A look that took longer means that the filesystem did not answer, and
# then the owner could not touch its file either.
MAX_LOOK = 0.5
TRIES = 50


@dataclass(frozen=True)
class Owner:
    """Who owns a folder, as its file says it."""

    token: str
    run: str | None  # None without a launcher
    attempt: int
    program: str
    user: str
    host: str
    machine: str | None
    pid: int
    started: str | None
    since: str

    @classmethod
    def here(cls) -> Owner:
        identity, pid = Identity.from_env(), os.getpid()
        return cls(
            token=uuid.uuid4().hex[:12],
            run=identity.run_id if identity else None,
            attempt=identity.attempt if identity else 0,
            program=os.path.basename(sys.argv[0]) or "python",
            user=_user(),
            host=host_name(),
            machine=machine_id(),
            pid=pid,
            started=_look_up(pid)[1],
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        )

    def __str__(self) -> str:
        what = f"run {self.run}" if self.run else self.program
        return f"{what} of {self.user} on {self.host} (pid {self.pid}) since {self.since}"

    def is_alive(self) -> bool | None:
        """None where that is not known here."""
        if self.machine is None or self.machine != machine_id():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # somebody else's, and alive
        state, started = _look_up(self.pid)
        if state is None or self.started is None:
            return None
        return started == self.started and state not in "ZX"

    def is_followed_by(self, other: Owner) -> bool:
        """A run starts its next attempt when the one before has ended."""
        return self.run is not None and self.run == other.run and self.attempt < other.attempt


class Ownership:
    """Of a folder, by this process: kept alive by a thread, given back by `release` or when the process ends."""

    def __init__(self, place: Place, name: str, owner: Owner) -> None:
        """`name` is that of the owner's file."""
        self._place, self.name, self.owner = place, name, owner
        self._users = 1
        self._released = threading.Event()
        atexit.register(self._give_back)
        threading.Thread(target=self._beat, name="owner of a folder", daemon=True).start()

    def share(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self._give_back()
            atexit.unregister(self._give_back)

    def why_lost(self) -> str | None:
        """Why this process may not write any more, or None."""
        try:
            newest = _numbers(self._place)[-1:]
            name = f".owner-{newest[0]}" if newest else "no owner"
            found = _look(self._place, name)
        except OSError as error:
            return f"{error.strerror} ({self._place.path})"
        owner = found.owner if found else None
        if owner is None or (name == self.name and owner.token != self.owner.token):
            return f"it is no longer this run's: found {name} there, wanted {self.name}"
        if owner.token != self.owner.token:
            return f"this run gave no sign of life for a while, and the folder was taken over by {owner}"
        return None

    def _beat(self) -> None:
        while not self._released.wait(BEAT_EVERY):
            with suppress(OSError):  # the next save will tell
                if not self._is_foreign():
                    self._place.touch(self.name)

    def _is_foreign(self) -> bool:
        """Whether the file is another owner's: after a takeover that has ended, its name may be used again."""
        found = _look(self._place, self.name)
        return found is not None and found.owner is not None and found.owner.token != self.owner.token

    def _give_back(self) -> None:
        if os.getpid() != self.owner.pid or self._released.is_set():
            return  # a forked child owns nothing
        self._released.set()
        if _held.get(self._place.path) is self:
            del _held[self._place.path]
        with suppress(OSError):
            if not self._is_foreign():
                _remove(self._place, self.name)


# What this process owns: a program that opens its folder twice is still one owner.
_held: dict[Path | str, Ownership] = {}


def own(folder: Path | Place, prepare: Callable[[], None]) -> Ownership:
    """Raises where somebody else owns the folder. The new owner calls `prepare` before others can read its name."""
    place = _resolve(folder)
    held = _held.get(place.path)
    if held is not None and held.why_lost() is None:
        held.share()
        return held
    me = Owner.here()
    for _ in range(TRIES):
        before = _numbers(place)
        if before:
            _await_end(place, f".owner-{before[-1]}", me)
        number = before[-1] + 1 if before else 1
        if place.create(f".owner-{number}"):
            if set(_numbers(place)) == {*before, number}:
                return _become_owner(place, f".owner-{number}", me, before, prepare)
            _remove(place, f".owner-{number}")  # somebody was quicker, who saw other files than this process
        time.sleep(LOOK_EVERY)
    raise CheckpointError(f"{place.path} cannot be owned: found another owner {TRIES} times, wanted none")


def _resolve(folder: Path | Place) -> Place:
    """Two ways to one folder are one folder."""
    path = folder.path if isinstance(folder, Mounted) else folder
    return Mounted(path.resolve()) if isinstance(path, Path) else path


def _become_owner(place: Place, name: str, me: Owner, before: list[int], prepare: Callable[[], None]) -> Ownership:
    mine = _held[place.path] = Ownership(place, name, me)
    try:
        for number in before:
            _remove(place, f".owner-{number}")
        written = _write(place, name, me)
        prepare()
        if not written:
            place.write(name, _as_text(me))
    except BaseException:
        mine.release()
        raise
    return mine


class _Look(NamedTuple):
    changed: object
    owner: Owner | None  # None before the file was written, or where it may not be read


def _await_end(place: Place, file: str, me: Owner) -> None:
    """Returns when the owner has ended or gives no sign of life; raises when it lives."""
    first = look = _look(place, file)
    quiet, told, last = 0.0, False, time.monotonic()
    while first is not None and look is not None:
        owner, name = look.owner, look.owner or "somebody whose name cannot be read"
        alive = owner.is_alive() if owner else None
        if owner and (alive is False or owner.is_followed_by(me)):
            return
        if alive or look.changed != first.changed:
            raise CheckpointError(
                f"{place.path} is in use by {name}; wanted one owner at a time: wait for its end, stop it, or use "
                "another folder (--checkpoint-dir); Checkpoint(…, read_only=True) may read beside it"
            )
        if quiet > STALE_AFTER:
            _say(f"{place.path}: taken over from {name}, which gave no sign of life for {STALE_AFTER:g} s")
            return
        if quiet > BEAT_EVERY and not told:
            told = True
            _say(f"{place.path}: waiting up to {STALE_AFTER:g} s for a sign of life from {name}")
        time.sleep(LOOK_EVERY)
        now = time.monotonic()
        quiet, last = quiet + min(now - last, MAX_LOOK), now
        look = _look(place, file)


def _look(place: Place, name: str) -> _Look | None:
    """None where there is no such file."""
    found = place.read(name)
    if found is None:
        return None
    try:
        return _Look(found.changed, Owner(**json.loads(found.text)))
    except (ValueError, TypeError):
        return _Look(found.changed, None)


def _write(place: Place, name: str, owner: Owner) -> bool:
    """False on a full disk: then leftovers of the last owner have to be removed first."""
    try:
        place.write(name, _as_text(owner))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _as_text(owner: Owner) -> str:
    return json.dumps(asdict(owner))


def _remove(place: Place, name: str) -> None:
    with suppress(OSError):  # it may be another user's: then the file with the higher number counts
        place.remove(name)


def _numbers(place: Place) -> list[int]:
    names = place.list_marks(".owner-")
    return sorted(int(found[1]) for name in names if (found := OWNER_FILE.fullmatch(name)))


def _look_up(pid: int) -> tuple[str | None, str | None]:
    """A process's state, and when it started in ticks of its machine: pids are reused, but not with the same start."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None, None
    return fields[0], fields[19]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"


def _say(line: str) -> None:
    print(f"checkpoint: {line}", file=sys.stderr, flush=True)
