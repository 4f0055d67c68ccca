"""Snapshots of the state in memory that outlives a process: taken beside training, gone back to by all together."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.identity import PID, SNAPSHOTS, Identity
from hostmesh.worker.process.coordination import exchange
from hostmesh.worker.process.machine import host_name
from hostmesh.worker.recording.recorder import phase
from hostmesh.worker.saving.completion import Completion, Taken, find_newest_common
from hostmesh.worker.saving.generation import DATA_AT, Generation
from hostmesh.worker.saving.pieces import Layout, Piece, list_needed, put_together, sign
from hostmesh.worker.saving.room import find_shortage, measure_room
from hostmesh.worker.saving.state_shape import describe
from hostmesh.worker.saving.writer import Snapshot, Writer
from hostmesh.worker.streams.state import LoaderState, merge_states

PyTree: TypeAlias = Any

BY_HAND = "only processes that `launch` starts can keep any"

_open_paths: set[Path] = set()  # of this program: two writers of one file would spoil it


class Restored(NamedTuple):
    step: int
    state: PyTree
    loader_state: LoaderState


class Snapshots:
    """Of one checkpoint folder's state, at every `every`-th step. All processes make the same calls."""

    def __init__(self, checkpoint: Path | str, every: int, data_spec: Mapping[str, Any]) -> None:
        self._every, self._data_spec = every, data_spec
        self._what = f"{zlib.crc32(os.fsencode(checkpoint)):08x}"
        self._generations: tuple[Generation, ...] = ()
        self._layout: Layout | None = None
        self._has_room = False
        folder = find_folder()
        missing = [host for host in exchange("open snapshots", None if folder else host_name()) if host]
        self._is_off = bool(missing)
        if folder is None or missing:
            is_known = Identity.from_env() is not None
            say_once(f"{missing[0]} has no folder in /dev/shm for them" if is_known else BY_HAND)
            return
        self._open(folder)
        self._writer = self._make_writer()

    def _open(self, folder: Path) -> None:
        self._folder = folder
        names = f"{self._what}-{jax.process_count()}-"
        for other in folder.glob(f"{self._what}-*"):
            if not other.name.startswith(names):
                other.unlink(missing_ok=True)  # the run had another number of processes: nobody can use it
        paths = [folder / f"{names}{jax.process_index()}-{letter}" for letter in "ab"]
        if _open_paths & {*paths}:
            raise CheckpointError("found two open checkpoints of one folder that keep snapshots, wanted one")
        _open_paths.update(paths)
        self._generations = tuple(map(Generation, paths))

    def take(self, step: int, state: PyTree, loader_state: LoaderState) -> None:
        """Returns when the devices have been told to copy the state, so that it may be donated; waits for nothing but
        the snapshot before, if that is still being written."""
        if step % self._every or self._is_off:
            return
        with phase("saving"):
            self._writer.wait()
            if self._is_over() or self._is_taken(step):
                return
            leaves, tree = jax.tree_util.tree_flatten(state)
            if self._layout is None or self._layout.signature != sign(leaves, tree):
                self._layout = Layout(state, DATA_AT)
            if not self._has_room and not self._find_room(self._layout):
                return
            pieces = self._layout.copy(leaves)
            header = self._describe(step, self._layout, self._layout.values(leaves), loader_state)
            self._writer.begin(Snapshot(step, self._layout, pieces, header))

    def restore(self, like: PyTree, saved_step: int | None) -> Restored | None:
        """The newest state that every process has in memory; None if there is none, or a newer one on disk.

        What is not gone back to is dropped before any process goes on: a step that is done again is another one.
        """
        if self._is_off:
            return None
        self._writer.stop()
        held = self._list_usable(like)
        common = find_newest_common(
            [[Taken(*each) for each in theirs] for theirs in exchange("agree on a snapshot", list(held))]
        )
        if common is not None and saved_step is not None and common.step < saved_step:
            common = None
        for generation in self._generations:
            if common is None or generation is not held[common][0]:
                generation.drop()
        self._writer = self._make_writer()
        found, problem = self._try_to_read(like, *held[common]) if common is not None else (None, None)
        if any(exchange("restore a snapshot", problem)):
            return None
        if found is not None and common is not None:
            self._writer.go_on_from(common.step, held[common][0])
            return found._replace(loader_state=merge_states(found.loader_state))
        return None

    def close(self) -> None:
        if self._generations:
            self._writer.stop()
            for each in self._generations:
                each.close()
            _open_paths.difference_update(each.path for each in self._generations)

    def _make_writer(self) -> Writer:
        return Writer(self._generations, Completion(self._what))

    def _is_over(self) -> bool:
        """A process that can take no more says so, and the others stop when they hear of it."""
        if self._writer.why_over is None:
            return False
        self._is_off = True
        if self._writer.is_own:
            say(f"process {jax.process_index()}: {self._writer.why_over}")
        return True

    def _is_taken(self, step: int) -> bool:
        newest = self._writer.newest_step
        if newest is not None and step < newest:
            raise CheckpointError(
                f"found a snapshot of step {newest}, wanted only steps before {step}; restore it first"
            )
        return step == newest

    def _find_room(self, layout: Layout) -> bool:
        held = sum(each.allocated() for each in self._generations)
        wanted = max(0, 2 * layout.end - held)
        shortage = find_shortage(exchange("make room for snapshots", measure_room(self._folder, wanted)))
        self._has_room, self._is_off = shortage is None, shortage is not None
        if shortage:
            say_once(shortage)
        return self._has_room

    def _describe(
        self, step: int, layout: Layout, values: Mapping[str, Any], loader_state: LoaderState
    ) -> dict[str, Any]:
        return {
            "step": step,
            "attempt": _attempt(),
            "data_spec": self._data_spec,
            "state": layout.description,
            "values": values,
            "pieces": layout.table,
            "loader_state": json.loads(json.dumps(loader_state)),
        }

    def _list_usable(self, like: PyTree) -> dict[Taken, tuple[Generation, dict[str, Any]]]:
        """What this process has of a state like that, in the same shards."""
        wanted, needed = describe(like), list_needed(like)
        found = {}
        for generation in self._generations:
            header = generation.read_header()
            if header is None or header["data_spec"] != self._data_spec or header["state"] != wanted:
                continue
            pieces = map(Piece.from_json, header["pieces"])
            if needed <= {(piece.leaf, piece.index) for piece in pieces}:
                found[Taken(header["attempt"], header["step"])] = generation, header
        return found

    def _try_to_read(
        self, like: PyTree, generation: Generation, header: Mapping[str, Any]
    ) -> tuple[Restored | None, str | None]:
        """The state, or why not."""
        pieces = [Piece.from_json(each) for each in header["pieces"]]
        try:
            state = put_together(like, pieces, header["values"], generation.read)
        except OSError as error:
            return None, str(error)
        return Restored(header["step"], state, header["loader_state"]), None


def find_folder() -> Path | None:
    """The folder of this run on this host. A program that a process starts inherits the variable, but has none."""
    found = os.environ.get(SNAPSHOTS)
    return Path(found) if found and os.environ.get(PID) == str(os.getpid()) else None


def say_once(why: str) -> None:
    """By one process for all, since all know it."""
    if jax.process_index() == 0:
        say(why)


def say(why: str) -> None:
    print(f"checkpoint: no snapshots are kept in memory: {why}; training goes on", file=sys.stderr, flush=True)


def _attempt() -> int:
    identity = Identity.from_env()
    return identity.attempt if identity else 1
