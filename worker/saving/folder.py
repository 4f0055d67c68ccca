"""A checkpoint folder: shared by all processes, owned by one program, and the steps in it."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.process.coordination import exchange
from hostmesh.worker.process.machine import host_name
from hostmesh.worker.process.words import list_some
from hostmesh.worker.saving.ownership import Ownership, own

# A network filesystem may show a new file to other hosts a little late.
TOKEN_TIMEOUT = 5.0
MAX_LOOKS = 5
# `40.orbax-checkpoint-tmp-1f2e3d`: a save that never ended. `40.old`: a step that is being removed.
LEFTOVER = re.compile(r"\d+\.(orbax-checkpoint-tmp.*|old)")


class CheckpointFolder:
    """Opened together by all processes: as the one program that may write there, or to read."""

    def __init__(self, folder: str | os.PathLike[str], read_only: bool) -> None:
        self.path = _absolute(folder)
        self.read_only = read_only
        self.owner_token = ""  # the same on all processes
        self._ownership: Ownership | None = None  # of process 0
        if not read_only:
            _require_shared(self.path)
            self._own()
        self.steps: list[int] = []
        self.list_steps()

    def list_steps(self) -> None:
        """Finds the saved steps, the same on all processes. A reader may be so slow that the newest step is gone again:
        then it looks once more."""
        for _ in range(MAX_LOOKS):
            found = exchange("list the saved steps", _try_to_list(self.path) if jax.process_index() == 0 else None)[0]
            if isinstance(found, str):
                raise CheckpointError(f"{self.path} cannot be read: {found}")
            self.steps = found
            if not (self.read_only and found) or _is_seen(self.path / str(found[-1])):
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
                _remove(self.path / str(step))

    def close(self) -> None:
        if self._ownership is not None:
            self._ownership.release()
            self._ownership = None

    def _own(self) -> None:
        problem = None
        if jax.process_index() == 0:
            try:
                self._ownership = own(self.path, lambda: _remove_leftovers(self.path))
            except CheckpointError as error:
                problem = str(error)
            except OSError as error:
                problem = _cannot_hold(self.path, error)
        token = self._ownership.owner.token if self._ownership else ""
        problem, self.owner_token = exchange("own the checkpoint folder", [problem, token])[0]
        if problem:
            raise CheckpointError(problem)


def _absolute(folder: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(folder):
        raise CheckpointError(f"found {os.fspath(folder)}, wanted a folder that every host mounts")
    return Path(folder).expanduser().absolute()


def _require_shared(folder: Path) -> None:
    """Raises on every process unless all see the same folder and may write there."""
    is_first = jax.process_index() == 0
    written = exchange("write to the checkpoint folder", _write_token(folder) if is_first else None)[0]
    if "problem" in written:
        raise CheckpointError(written["problem"])
    token = folder / written["token"]
    problem = None if _appears(token) else "does not see what process 0 wrote"
    problems = _collect_problems(problem or _try_to_write(token.with_name(f"{token.name}-{jax.process_index()}")))
    if is_first:
        token.unlink(missing_ok=True)
    if problems:
        raise CheckpointError(
            f"{folder} is not shared: {problems}; wanted one folder that all hosts mount and may write"
        )


def _is_seen(step: Path) -> bool:
    """By all processes; False if it is gone, because not even process 0 sees it any more, which has just listed it."""
    if problems := _collect_problems(None if _appears(step) else f"does not see step {step.name}"):
        if exchange("look for a step again", not step.exists())[0]:
            return False
        raise CheckpointError(f"{step.parent} is not shared: {problems}; wanted one folder that all hosts mount")
    return True


def _collect_problems(problem: str | None) -> str:
    """`process 1 (host gpu-b) does not see …`, for all processes that have a problem; empty if none has."""
    by_process = exchange("look into the checkpoint folder", {"host": host_name(), "problem": problem})
    found = [f"process {k} (host {one['host']}) {one['problem']}" for k, one in enumerate(by_process) if one["problem"]]
    return list_some(found)


def _write_token(folder: Path) -> dict[str, str]:
    token = f".token-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / token).touch()
    except OSError as error:
        return {"problem": _cannot_hold(folder, error)}
    return {"token": token}


def _cannot_hold(folder: Path, error: OSError) -> str:
    return f"{folder} cannot hold checkpoints: {error.strerror} ({error.filename})"


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + TOKEN_TIMEOUT
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _try_to_write(file: Path) -> str | None:
    """The problem, if there is one."""
    try:
        file.touch()
        file.unlink()
    except OSError as error:
        return f"cannot write there: {error.strerror}"
    return None


def _try_to_list(folder: Path) -> Any:
    """The steps in numeric order, or why not. A step gets its plain name by a rename when it is complete."""
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    except OSError as error:
        return f"{error.strerror} ({error.filename})"


def _remove_leftovers(folder: Path) -> None:
    for entry in folder.iterdir():
        if LEFTOVER.fullmatch(entry.name):
            shutil.rmtree(entry)


def _remove(path: Path) -> None:
    """Renames it first: a step that is half removed must not look like a whole one."""
    old = path.with_name(f"{path.name}.old")
    with suppress(FileNotFoundError):  # somebody was quicker
        path.rename(old)
    shutil.rmtree(old, ignore_errors=True)
