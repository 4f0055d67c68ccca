"""The rows of a source as a loader needs them: any step at any time, and one number as the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import RowSet
from hostmesh.worker.loading.reader import SourceReader
from hostmesh.worker.mixing.mixture_order import AnyOrder, MixtureOrder
from hostmesh.worker.ordering.schedule import Schedule
from hostmesh.worker.reading.row_reader import RowReader
from hostmesh.worker.reading.transforms import Transforms
from hostmesh.worker.sources import Source
from hostmesh.worker.streams.state import LoaderState
from hostmesh.worker.verify.content import Content
from hostmesh.worker.verify.fingerprint import describe_source


class SourceRows:
    compares_replicas = False

    def __init__(self, source: Source, schedule: Schedule, order: AnyOrder, transforms: Transforms) -> None:
        self.source, self.schedule, self.order, self.transforms = source, schedule, order, transforms

    @property
    def total(self) -> int | None:
        """All steps, or None without end."""
        return self.schedule.total

    @property
    def left_out(self) -> int | None:
        return self.schedule.left_out

    def describe(self) -> dict[str, Any]:
        """What gives a step its meaning: equal on all processes, and saved with it."""
        schedule, order = self.schedule, self.order
        return {
            **describe_source(self.source),
            "batch_size": schedule.batch_size,
            "tail": schedule.tail,
            "seed": order.seed,
            "shuffle": order.shuffle,
        }

    def describe_steps(self) -> dict[str, Any]:
        """All that it takes to compute which records a step has."""
        order, schedule = self.order, self.schedule
        mixture = {"mixture": order.describe()} if isinstance(order, MixtureOrder) else {}
        return {**asdict(schedule), "seed": order.seed, "shuffle": order.shuffle, **mixture}

    def find_content(self, data_spec: Mapping[str, Any]) -> Content | None:
        """What can be compared between processes: on all of them, or on none."""
        if data_spec["content"] == "varies":
            return None
        found = getattr(self.source, "content", None)
        return found if isinstance(found, Content) else None

    def record_ids(self, step: int) -> NDArray[np.int64]:
        return self.order.ids(*self.schedule.positions(step))

    def reader(self, row_sets: Sequence[RowSet], step: int, ahead: int) -> SourceReader:
        """A reader of any step, so it needs to know neither the first one nor how many are read ahead."""
        return SourceReader(RowReader(self.source, self.transforms), self.order, self.schedule, row_sets)

    def has_next(self) -> bool:
        """True up to the last step, which the total tells."""
        return True

    def note_taken(self, has_next: bool) -> None:
        """Nothing to note: every process knows the total."""

    def state(self, step: int) -> LoaderState:
        return step

    def step_of(self, state: LoaderState) -> Any:
        return state

    def restore(self, state: LoaderState) -> None:
        """Nothing to restore beside the step."""

    def close(self, step: int) -> None:
        """Nothing to keep of a reader."""
