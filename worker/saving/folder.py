"""A checkpoint's folder or bucket: shared by all processes, owned by one program, and the steps in it."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import jax

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.process.coordination import exchange
from hostmesh.worker.process.machine import host_name
from hostmesh.worker.process.words import list_some
from hostmesh.worker.remote.url_secrets import hide_secrets
from hostmesh.worker.saving.ownership import Ownership, own
from hostmesh.worker.saving.stores.base import Place
from hostmesh.worker.saving.stores.bucket import Bucket
from hostmesh.worker.saving.stores.mounted import Mounted
from hostmesh.worker.saving.stores.url import StoreUrl, is_url
from hostmesh.worker.specs.paths import find_lost_slash, path_text

# A network filesystem may show a new file to other hosts a little late.
TOKEN_TIMEOUT = 5.0
MAX_LOOKS = 5


class CheckpointFolder:
    """Opened together by all processes: as the one program that may write there, or to read."""

    def __init__(self, folder: str | os.PathLike[str], read_only: bool) -> None:
        self.place = _find_place(folder)
        self.path = self.place.path
        self.read_only = read_only
        self.owner_token = ""  # the same on all processes
        self._ownership: Ownership | None = None  # of process 0
        if not read_only:
            _require_shared(self.place)
            self._own()
        self.steps: list[int] = []
        self.list_steps()

    def list_steps(self) -> None:
        """Finds the saved steps, the same on all processes. A reader may be so slow that the newest step is gone again:
        then it looks once more."""
        for _ in range(MAX_LOOKS):
            found = exchange("list the saved steps", _try_to_list(self.place) if jax.process_index() == 0 else None)[0]
            if isinstance(found, str):
                raise CheckpointError(f"{self.path} cannot be read: {found}")
            self.steps = found
            if not (self.read_only and found) or _is_seen(self.place, found[-1]):
                return
        raise CheckpointError(f"{self.path} changes faster than it can be read: its owner removes what was just listed")

    def why_not_owned(self) -> str | None:
        """Why nothing may be written here any more, or None; only process 0 knows it."""
        return None if self._ownership is None else self._ownership.why_lost()

    def require_owned(self) -> None:
        """Called on process 0, just before a save becomes visible."""
        if reason := self.why_not_owned():
            raise CheckpointError(reason)

    def remove_all_but(self, keep: int) -> None:
        old, self.steps = self.steps[:-keep], self.steps[-keep:]
        if self._ownership is not None and self._ownership.why_lost() is None:
            for step in old:
                self.place.remove_step(step)

    def close(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    def _own(self) -> None:
        problem = None
        if jax.process_index() == 0:
            try:
                self._ownership = own(self.place, self.place.remove_leftovers)
            except OSError as error:
                problem = _cannot_hold(self.place, error)
            except CheckpointError as error:
                problem = str(error)
        token = self._ownership.owner.token if self._ownership else ""
        problem, self.owner_token = exchange("own the checkpoint folder", [problem, token])[0]
        if problem:
            raise CheckpointError(problem)


def _find_place(folder: str | os.PathLike[str]) -> Place:
    text = path_text(folder)
    if is_url(text):
        return _open_bucket(StoreUrl.parse(text))
    if (meant := find_lost_slash(text)) is not None:
        raise CheckpointError(
            f"found {hide_secrets(text)}, which would be a folder on this disk; wanted {meant}, as a string: pathlib"
            f" takes a slash from a URL; for the folder write ./{hide_secrets(text)}"
        )
    return Mounted(Path(text).expanduser().absolute())


def _open_bucket(url: StoreUrl) -> Place:
    try:
        return Bucket(url)
    except OSError as error:
        raise CheckpointError(f"{url} cannot be opened: {error.strerror}") from error


def _require_shared(place: Place) -> None:
    """Raises on every process unless all see the same folder and may write there."""
    is_first = jax.process_index() == 0
    written = exchange("write to the checkpoint folder", _write_token(place) if is_first else None)[0]
    if "problem" in written:
        raise CheckpointError(written["problem"])
    token = written["token"]
    problems = _collect_problems(_try_to_see(place, token) or _try_to_write(place, f"{token}-{jax.process_index()}"))
    if is_first:
        place.remove(token)
    if problems:
        raise CheckpointError(f"{place.path} is not shared: {problems}; wanted one {_kind(place)} and may write")


def _is_seen(place: Place, step: int) -> bool:
    """By all processes; False if it is gone, because not even process 0 sees it any more, which has just listed it."""
    if problems := _collect_problems(None if _appears(place, str(step)) else f"does not see step {step}"):
        if exchange("look for a step again", not place.exists(str(step)))[0]:
            return False
        raise CheckpointError(f"{place.path} is not shared: {problems}; wanted one {_kind(place)}")
    return True


def _collect_problems(problem: str | None) -> str:
    """`process 1 (host gpu-b) does not see …`, for all processes that have a problem; empty if none has."""
    by_process = exchange("look into the checkpoint folder", {"host": host_name(), "problem": problem})
    found = [f"process {k} (host {one['host']}) {one['problem']}" for k, one in enumerate(by_process) if one["problem"]]
    return list_some(found)


def _write_token(place: Place) -> dict[str, str]:
    token = f".token-{uuid.uuid4().hex}"
    try:
        place.make_ready()
        place.create(token)
    except OSError as error:
        return {"problem": _cannot_hold(place, error)}
    return {"token": token}


def _cannot_hold(place: Place, error: OSError) -> str:
    return f"{place.path} cannot hold checkpoints: {error.strerror} ({error.filename})"


def _kind(place: Place) -> str:
    return "bucket that all hosts reach" if isinstance(place, Bucket) else "folder that all hosts mount"


def _appears(place: Place, name: str) -> bool:
    deadline = time.monotonic() + TOKEN_TIMEOUT
    while not place.exists(name):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _try_to_see(place: Place, token: str) -> str | None:
    """The problem, if there is one."""
    try:
        return None if _appears(place, token) else "does not see what process 0 wrote"
    except OSError as error:
        return f"cannot read there: {error.strerror}"


def _try_to_write(place: Place, name: str) -> str | None:
    """The problem, if there is one."""
    try:
        place.create(name)
        place.remove(name)
    except OSError as error:
        return f"cannot write there: {error.strerror}"
    return None


def _try_to_list(place: Place) -> Any:
    """The steps in numeric order, or why not."""
    try:
        return sorted(place.list_steps())
    except OSError as error:
        return f"{error.strerror} ({error.filename})"
