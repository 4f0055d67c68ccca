"""What the built-in job does about numbers that are not finite: stop, warn or ignore."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from hostmesh.worker.checkpoint import Checkpoint
from hostmesh.worker.errors import NotFiniteError
from hostmesh.worker.job.model import TrainState, are_finite
from hostmesh.worker.job.progress import say
from hostmesh.worker.job.task import Task
from hostmesh.worker.loading.rows import Ids
from hostmesh.worker.sources import Source

MAX_NAMED = 5


class FiniteCheck:
    def __init__(self, nan: str) -> None:
        """`nan` is what `--nan` says."""
        self._nan = nan
        self._are_finite = jax.jit(are_finite)
        self._has_refused = False

    def check(self, state: TrainState) -> bool:
        return self._nan == "ignore" or bool(self._are_finite(state))

    def refuse(self, problem: str, explain: Callable[[], str], checkpoint: Checkpoint | None) -> None:
        """Raise, or warn once."""
        if self._nan == "ignore" or self._has_refused:
            return
        self._has_refused = True
        message = f"{problem}; {explain()}"
        if self._nan == "stop":
            if checkpoint is not None:
                checkpoint.wait()  # a good state may still be on its way to the disk
            raise NotFiniteError(f"{message} (--nan warn goes on all the same)")
        say(f"warning: {message}. Training goes on (--nan warn); a state that is not finite is not saved")


def find_not_finite(source: Source, task: Task, ids: Ids) -> str:
    """The first records with numbers that are not finite, as in `3, 17, …`; empty where there is none."""
    images = task.prepare(source.read(ids))["image"]
    strange = ids[~np.isfinite(images.reshape(len(ids), -1)).all(axis=1)]
    return ", ".join(map(str, strange[:MAX_NAMED])) + (", …" if len(strange) > MAX_NAMED else "")
