"""Saved steps on orbax: the state, the loader's state and what that means, all in one atomic step."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, overload

import jax

from hostmesh.worker.audit.deliveries import LEDGER
from hostmesh.worker.distributed import require_joined
from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.loading.choices import DATA_CHANGED, REFUSE, require_choice
from hostmesh.worker.process.coordination import JSON, exchange, require_same
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.recording.recorder import phase
from hostmesh.worker.saving.folder import CheckpointFolder
from hostmesh.worker.saving.orbax_setup import open_orbax, restore_part
from hostmesh.worker.saving.snapshots import Snapshots
from hostmesh.worker.saving.state_shape import abstract, compare, compare_part, describe, require_global
from hostmesh.worker.saving.trained_data import TrainedData
from hostmesh.worker.streams.state import LoaderState, merge_states, split_state

PyTree: TypeAlias = Any

VERSION = 2
# How long a save waits for the other processes, one of which may be busy with something else.
TIMEOUT = 600.0


class Checkpoint:
    """The newest `keep` steps in a folder that all hosts mount, or below `gs://bucket/…` or `s3://bucket/…`; every
    process makes the same calls.

    `data_spec` says what the loader's state means: a step that was saved with another one is refused. The folder
    belongs to one program at a time, from here until `close` or its end; another one is refused with its owner's name.
    With `read_only` nothing is owned, written or removed: to evaluate what another run saves. After an exception call
    neither `wait` nor `close`: they wait for processes that may be gone.

    `data_changed="ok"` goes on although the content of the data has changed since the step was saved: it is told, and
    saved with the steps that follow.

    With `memory_every` each such step that is given to `snapshot` is kept in the hosts' memory until the run ends, in
    two copies at most: the run's next attempt goes on from there. It has no effect without `launch`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        data_spec: Mapping[str, JSON],
        keep: int = 3,
        read_only: bool = False,
        memory_every: int = 0,
        data_changed: str = REFUSE,
    ) -> None:
        require_joined("open the checkpoint")
        require_choice("data_changed", data_changed, DATA_CHANGED)
        if keep < 1:
            raise ValueError(f"keep wants at least 1 step, found {keep}")
        if memory_every < 0:
            raise ValueError(f"memory_every wants a number of steps, or 0 for no snapshots; found {memory_every}")
        self.keep = keep
        self.data_spec: dict[str, Any] = json.loads(json.dumps(dict(data_spec)))
        options: dict[str, JSON] = {
            "keep": keep,
            "read_only": read_only,
            "memory_every": memory_every,
            "data_changed": data_changed,
        }
        require_same(
            "open the checkpoint", {**options, **{f"data_spec.{key}": self.data_spec[key] for key in self.data_spec}}
        )
        self._trained_data = TrainedData(self.data_spec, data_changed)
        self._folder = CheckpointFolder(folder, read_only)
        self.folder = self._folder.path
        self._orbax = self._open_orbax()
        self._snapshots = None
        if memory_every and not read_only:
            self._snapshots = Snapshots(self.folder, memory_every, self.data_spec)
        self.restored_from: Literal["memory", "disk"] | None = None
        self._reached: int | None = None
        self._pending: int | None = None

    @overload
    def restore(self, like: PyTree, *, weights_only: Literal[False] = False) -> tuple[PyTree, LoaderState] | None: ...

    @overload
    def restore(self, like: PyTree, *, weights_only: Literal[True]) -> PyTree | None: ...

    def restore(self, like: PyTree, *, weights_only: bool = False) -> Any:
        """The newest state, in the shardings of `like` (arrays, or ShapeDtypeStructs with a sharding), and the
        loader's state; None when nothing was saved yet. `restored_from` then says whether it was in memory.

        With `weights_only` the state alone, whatever data it was trained on: for another batch size, source or seed.
        Then `like` may also leave out parts of what was saved, such as the optimizer's.
        """
        with phase("restoring"):
            found = self._restore(like, weights_only)
        if not self._folder.read_only and not weights_only:
            self._trained_data.begin_reading()
        return found

    def _restore(self, like: PyTree, weights_only: bool) -> Any:
        from orbax.checkpoint import args

        self.wait()
        if self._folder.read_only:
            self._folder.list_steps()
        step = self._folder.steps[-1] if self._folder.steps else None
        snapshots = None if weights_only else self._snapshots
        if snapshots is not None and (found := snapshots.restore(abstract(like), step)) is not None:
            self._note_restored(found.step, found.loader_state, "memory")
            if step is not None:
                self._check_data_on_disk(step)
            return found.state, found.loader_state
        if step is None:
            return None
        wanted = abstract(like)
        position = self._read_position(step)
        self._check(step, position, like, weights_only)
        if weights_only:
            return self._read_part(step, wanted)
        state = self._read(self._orbax, step, state=args.StandardRestore([wanted]))["state"][0]
        self._note_restored(step, position["loader_state"], "disk")
        if jax.process_index() == 0:
            LEDGER.tell_before(position.get("delivered") or {})  # an earlier version saved none
        return state, position["loader_state"]

    def _note_restored(self, step: int, loader_state: LoaderState, source: Literal["memory", "disk"]) -> None:
        self._reached, self.restored_from = step, source
        LEDGER.note_restored(split_state(loader_state)[0], self.data_spec)
        if jax.process_index() == 0:
            send_fact("resumed", must_arrive=True, step=step, source=source)

    def snapshot(self, step: int, state: PyTree, loader_state: LoaderState) -> None:
        """Keep a step in memory, if it is a `memory_every`-th one; to be called after every step, and almost free at
        all others. The state may be donated at once: it is copied on its devices, and brought to memory by a thread.

        A step that is still on its way when the next comes is waited for. Saves on disk are needed all the same: what
        is in memory is lost with its host.
        """
        if self._snapshots is not None:
            self._snapshots.take(step, state, loader_state)

    def save(self, step: int, state: PyTree, loader_state: LoaderState) -> None:
        """Save a step. `loader_state` is what `loader.state()` returned.

        Returns when the state has been copied from the devices, so that it may be donated; the write goes on.
        """
        with phase("saving"):
            self._save(step, state, loader_state)

    def _save(self, step: int, state: PyTree, loader_state: LoaderState) -> None:
        from orbax.checkpoint import args

        if self._folder.read_only:
            raise CheckpointError(f"step {step} is not to be saved in {self.folder}: it was opened with read_only=True")
        self.wait()
        if self._is_saved(step):
            return
        require_global(state)
        self._trained_data.begin_reading()
        LEDGER.tell_saved()
        everyone = exchange("save a step", [self._folder.why_not_owned(), LEDGER.words()], TIMEOUT)
        if reason := everyone[0][0]:
            raise self._save_error(step, reason)
        position = {
            "version": VERSION,
            "loader_state": merge_states(loader_state),
            "data_spec": self.data_spec,
            **self._trained_data.describe(),
            "state": describe(state),
            "delivered": LEDGER.describe_saved([words for _, words in everyone]),
        }
        # In a list, because orbax refuses a lone array.
        items = args.Composite(state=args.StandardSave([state]), position=args.JsonSave(position))
        try:
            self._orbax.save(self._folder.place.path_to_save(step), args=items)
        except Exception as error:
            raise self._save_error(step, self._folder.place.explain(error)) from error
        self._pending = step

    def wait(self) -> None:
        """Wait until the last save is complete; its failure is raised here."""
        if self._pending is None:
            return
        step, self._pending = self._pending, None
        try:
            with phase("saving"):
                self._orbax.wait_until_finished()
        except Exception as error:
            raise self._save_error(step, self._folder.place.explain(error)) from error
        self._folder.steps.append(step)
        self._reached = step
        self._folder.remove_all_but(self.keep)

    def close(self) -> None:
        """Wait for the last save, and give the folder back. Snapshots stay in memory until the run has ended."""
        self.wait()
        if self._snapshots is not None:
            self._snapshots.close()
        self._orbax.close()
        self._folder.close()

    def _open_orbax(self) -> Any:
        return open_orbax(self._folder.place, self._folder.owner_token, self._folder.require_owned)

    def _read_part(self, step: int, wanted: PyTree) -> PyTree:
        orbax = self._open_orbax()  # a second one, because a checkpointer handles an item in one way only
        state = self._read(orbax, step, state=restore_part([wanted]))["state"][0]
        orbax.close()
        return state

    def _check_data_on_disk(self, step: int) -> None:
        """A state in memory was trained on the data of the newest save too. It does not need that save to be whole."""
        try:
            position = self._read_position(step)
        except CheckpointError:
            position = None
        self._trained_data.check(f"step {step} in {self.folder}", step, position)

    def _read_position(self, step: int) -> dict[str, Any]:
        from orbax.checkpoint import args

        position: dict[str, Any] = self._read(self._orbax, step, position=args.JsonRestore())["position"]
        return position

    def _read(self, orbax: Any, step: int, **items: Any) -> Any:
        from orbax.checkpoint import args

        try:
            return orbax.restore(self._folder.place.path_to_read(step), args=args.Composite(**items))
        except Exception as error:
            back = f"remove {self.folder}/{step} to go back to the step before"
            what_now = "its owner may have removed it meanwhile: try again" if self._folder.read_only else back
            why = self._folder.place.explain(error)
            raise CheckpointError(f"step {step} in {self.folder} cannot be read: {why}; {what_now}") from error

    def _check(self, step: int, position: Mapping[str, Any], like: PyTree, weights_only: bool) -> None:
        where = f"step {step} in {self.folder}"
        if position["version"] != VERSION:
            raise CheckpointError(f"{where} has format {position['version']}, wanted {VERSION}; use another folder")
        if not weights_only:
            self._trained_data.check(where, step, position)
        found, wanted = position["state"], describe(like)
        if differences := compare_part(found, wanted) if weights_only else compare(found, wanted):
            raise CheckpointError(f"{where} holds another state: {differences}; use another folder (--checkpoint-dir)")

    def _is_saved(self, step: int) -> bool:
        if not self._folder.steps or step > self._folder.steps[-1]:
            return False
        if step == self._reached:
            return True
        raise CheckpointError(
            f"found step {self._folder.steps[-1]} in {self.folder}, wanted only steps before {step} there to save it; "
            "restore from it first, or use another folder (--checkpoint-dir)"
        )

    def _save_error(self, step: int, why: str) -> CheckpointError:
        steps = self._folder.steps
        intact = f"; still there: steps {', '.join(map(str, steps))}" if steps else ""
        return CheckpointError(f"step {step} could not be saved in {self.folder}: {why}{intact}")
