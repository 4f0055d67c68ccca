"""Saved steps on orbax: the state, the loader's one integer and what that means, all in one atomic step."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import jax

from worker.agree import JSON, exchange, require_same
from worker.errors import CheckpointError
from worker.facts import send_fact
from worker.identity import Identity

PyTree: TypeAlias = Any

VERSION = 1
# A network filesystem may show a new file to other hosts a little late.
TOKEN_PATIENCE = 5.0
MOST_SHOWN = 4
# `40.orbax-checkpoint-tmp`: a save that never ended. `40.old`: a step that is being removed.
LEFTOVER = re.compile(r"\d+\.(orbax-checkpoint-tmp.*|old)")


class Checkpoint:
    """The newest `keep` steps in a folder that all hosts mount; every process makes the same calls.

    `about` says what the loader's integer means: a step that was saved about something else is refused. After an
    exception call neither `wait` nor `close`: they wait for processes that may be gone.
    """

    def __init__(self, folder: str | os.PathLike[str], *, about: Mapping[str, JSON], keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep wants at least 1 step, found {keep}")
        self.folder = _absolute(folder)
        self.keep = keep
        self.about: dict[str, Any] = json.loads(json.dumps(dict(about)))
        require_same("open the checkpoint", {"keep": keep, **{f"about.{key}": self.about[key] for key in self.about}})
        _require_shared(self.folder)
        self._steps: list[int] = exchange("list the saved steps", _list_steps(self.folder))[0]
        self._orbax = _open_orbax()
        self._reached: int | None = None
        self._pending: int | None = None

    def restore(self, like: PyTree) -> tuple[PyTree, int] | None:
        """The newest state, in the shardings of `like` (arrays, or ShapeDtypeStructs with a sharding), and the
        loader's integer; None when nothing was saved yet."""
        from orbax.checkpoint import args

        self.wait()
        if not self._steps:
            return None
        step = self._steps[-1]
        wanted = jax.tree_util.tree_map_with_path(_abstract, like)
        position = self._read(step, position=args.JsonRestore())["position"]
        self._check(step, position, like)
        state = self._read(step, state=args.StandardRestore([wanted]))["state"][0]
        self._reached = step
        return state, position["loader_state"]

    def save(self, step: int, state: PyTree, loader_state: int) -> None:
        """Returns when the state has been copied from the devices: it may be donated then. The write goes on."""
        from orbax.checkpoint import args

        self.wait()
        if self._is_saved(step):
            return
        jax.tree_util.tree_map_with_path(_abstract, state)
        position = {
            "version": VERSION,
            "loader_state": loader_state,
            "about": self.about,
            "state": _describe(state),
        }
        # In a list, because orbax refuses a lone array.
        items = args.Composite(state=args.StandardSave([state]), position=args.JsonSave(position))
        try:
            self._orbax.save(self.folder / str(step), args=items)
        except Exception as error:
            raise self._unsaved(step, error) from error
        self._pending = step

    def wait(self) -> None:
        """Until the last save is complete; its failure is raised here."""
        if self._pending is None:
            return
        step, self._pending = self._pending, None
        try:
            self._orbax.wait_until_finished()
        except Exception as error:
            raise self._unsaved(step, error) from error
        self._steps.append(step)
        self._reached = step
        if jax.process_index() == 0:
            send_fact("saved", must_arrive=True, step=step)
        self._remove_old_steps()

    def close(self) -> None:
        self.wait()
        self._orbax.close()

    def _read(self, step: int, **items: Any) -> Any:
        from orbax.checkpoint import args

        try:
            return self._orbax.restore(self.folder / str(step), args=args.Composite(**items))
        except Exception as error:
            raise CheckpointError(
                f"step {step} in {self.folder} cannot be read: {_first_line(error)}; "
                f"remove {self.folder / str(step)} to go back to the step before"
            ) from error

    def _check(self, step: int, position: Mapping[str, Any], like: PyTree) -> None:
        where = f"step {step} in {self.folder}"
        if position["version"] != VERSION:
            raise CheckpointError(f"{where} has format {position['version']}, wanted {VERSION}; use another folder")
        if differences := _compare(position["about"], self.about):
            raise CheckpointError(
                f"{where} was saved about other data: {differences}; "
                "use the old values, or another folder (--checkpoint-dir)"
            )
        if differences := _compare(position["state"], _describe(like)):
            raise CheckpointError(f"{where} holds another state: {differences}; use another folder (--checkpoint-dir)")

    def _is_saved(self, step: int) -> bool:
        if not self._steps or step > self._steps[-1]:
            return False
        if step == self._reached:
            return True
        raise CheckpointError(
            f"found step {self._steps[-1]} in {self.folder}, wanted only steps before {step} there to save it; "
            "restore from it first, or use another folder (--checkpoint-dir)"
        )

    def _unsaved(self, step: int, error: Exception) -> CheckpointError:
        why = "no space left on the device" if "No space left" in str(error) else _first_line(error)
        intact = f"; still there: steps {', '.join(map(str, self._steps))}" if self._steps else ""
        return CheckpointError(f"step {step} could not be saved in {self.folder}: {why}{intact}")

    def _remove_old_steps(self) -> None:
        old, self._steps = self._steps[: -self.keep], self._steps[-self.keep :]
        if jax.process_index() == 0:
            for step in old:
                _remove(self.folder / str(step))


def _absolute(folder: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(folder):
        raise CheckpointError(f"found {os.fspath(folder)}, wanted a folder that every host mounts")
    return Path(folder).expanduser().absolute()


def _open_orbax() -> Any:
    import orbax.checkpoint as ocp

    logging.getLogger("absl").addFilter(_is_not_orbax)
    # With its processes named, orbax meets through the coordination service; else through device collectives, which
    # have no timeout and mix with those of training. Its CheckpointManager is not used: after a failed save it waits
    # 20 minutes for the other processes before it says so, and asks jax about preemption from a thread.
    everyone = ocp.options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
    # Folders made by a thread that fails would leave other threads waiting for them, and the program unable to exit.
    at_once = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    together = ocp.CompositeOptions(multiprocessing_options=everyone, async_options=at_once)
    handler = ocp.CompositeCheckpointHandler(composite_options=together)
    return ocp.AsyncCheckpointer(handler, async_options=at_once, multiprocessing_options=everyone)


def _is_not_orbax(record: logging.LogRecord) -> bool:
    """What matters of orbax's log is raised; the rest is not for the user's screen."""
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _require_shared(folder: Path) -> None:
    """One folder for all, writable by all; raises on every process."""
    is_first = jax.process_index() == 0
    written = exchange("write to the checkpoint folder", _write_token(folder) if is_first else None)[0]
    if "problem" in written:
        raise CheckpointError(f"{folder} cannot hold checkpoints: {written['problem']}")
    token = folder / written["token"]
    seen = exchange("look into the checkpoint folder", {"host": _host(), "problem": _use_token(token)})
    if is_first:
        token.unlink(missing_ok=True)
    problems = [f"process {k} (host {one['host']}) {one['problem']}" for k, one in enumerate(seen) if one["problem"]]
    if problems:
        raise CheckpointError(
            f"{folder} is not shared: {_cut(problems)}; wanted one folder that all hosts mount and may write"
        )


def _write_token(folder: Path) -> dict[str, str]:
    token = f".token-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / token).touch()
        for entry in folder.iterdir():
            if LEFTOVER.fullmatch(entry.name):
                shutil.rmtree(entry)
    except OSError as error:
        return {"problem": f"{error.strerror} ({error.filename})"}
    return {"token": token}


def _use_token(token: Path) -> str | None:
    """The problem, if there is one."""
    deadline = time.monotonic() + TOKEN_PATIENCE
    while not token.exists():
        if time.monotonic() > deadline:
            return "does not see what process 0 wrote"
        time.sleep(0.05)
    own = token.with_name(f"{token.name}-{jax.process_index()}")
    try:
        own.touch()
        own.unlink()
    except OSError as error:
        return f"cannot write there: {error.strerror}"
    return None


def _host() -> str:
    identity = Identity.from_env()
    return socket.gethostname() if identity is None else identity.host


def _list_steps(folder: Path) -> list[int]:
    """In numeric order. A step gets its plain name in one rename, when it is complete."""
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())


def _remove(path: Path) -> None:
    """Under another name first: half a step must not look like one."""
    old = path.with_name(f"{path.name}.old")
    with suppress(FileNotFoundError):  # somebody was quicker
        path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def _abstract(path: Any, leaf: Any) -> Any:
    """An array as its shape, type and sharding; anything else as it is."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    name, sharding = jax.tree_util.keystr(path), leaf.sharding
    if sharding is None:
        raise CheckpointError(f"{name} of the state has no sharding, wanted one to restore into")
    if jax.process_count() > 1 and sharding.is_fully_addressable:
        raise CheckpointError(
            f"{name} of the state lives on one process, wanted a global array: give it a sharding over the whole mesh"
        )
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _describe(state: PyTree) -> dict[str, str]:
    """`['params']['w']: float32[8,4]` for each leaf."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path): _describe_leaf(leaf) for path, leaf in leaves}


def _describe_leaf(leaf: Any) -> str:
    if not hasattr(leaf, "shape"):
        return type(leaf).__name__
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _compare(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """`seed: found 0, wanted 1; …`, empty where both are the same."""
    keys = dict.fromkeys([*wanted, *found])
    return _cut(
        [
            f"{key}: found {_show(found, key)}, wanted {_show(wanted, key)}"
            for key in keys
            if key not in found or key not in wanted or found[key] != wanted[key]
        ]
    )


def _show(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "none"
    value = values[key]
    return value if isinstance(value, str) else json.dumps(value)


def _cut(parts: Sequence[str]) -> str:
    more = len(parts) - MOST_SHOWN
    return "; ".join([*parts[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
