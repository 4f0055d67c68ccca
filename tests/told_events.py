"""Events as the processes of a run would cause them, made by hand, with the records that a test wants."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.launcher.audit.audit import audit_events
from hostmesh.worker.audit.recount import recount
from hostmesh.worker.audit.used import WORD, sum_hashes, take_own
from hostmesh.worker.ordering.order import Order
from hostmesh.worker.ordering.schedule import Schedule

SPEC = {"length": 50, "batch_size": 12, "tail": "carry", "epochs": 3, "steps": None, "seed": 5, "shuffle": True}


class Events:
    """`ids` are the records that were really used at a step, where those are not the ones of the order."""

    def __init__(self, **spec: Any) -> None:
        self.spec = {**SPEC, **spec}
        order = {name: self.spec[name] for name in ("length", "seed", "shuffle")}
        self.order = Order(**order)
        of_order = ("seed", "shuffle", "mixture")
        self.schedule = Schedule(**{name: self.spec[name] for name in self.spec if name not in of_order})
        self.lines: list[bytes] = []
        self.ids: dict[tuple[int, int], list[int]] = {}  # by process and step
        self.attempt = 1

    def tell(self, event: str, **detail: Any) -> None:
        self.lines.append(json.dumps({"time": 1.0, "event": event, **detail}).encode() + b"\n")

    def say(self, event: str, process_id: int, **detail: Any) -> None:
        self.tell(event, host="a", process_id=process_id, detail=detail)

    def begin_attempt(self, last_step: int | None = None) -> None:
        self.attempt += 1
        self.tell("attempt ended", attempt=self.attempt - 1, last_step=last_step)
        self.tell("attempt began", attempt=self.attempt, pause=0.0)

    def deliver(
        self,
        first: int,
        lasts: Sequence[int] | int,
        processes: int = 2,
        loader: int = 0,
        stretch: int = 0,
        words: Sequence[int] = (),
        **more: Any,
    ) -> None:
        """Each process delivers the steps from `first` to its last; it tells so at the steps `words` and at its end."""
        lasts = [lasts] * processes if isinstance(lasts, int) else lasts
        shares = np.array_split(np.arange(self.spec["batch_size"]), processes)
        for process, (last, rows) in enumerate(zip(lasts, shares, strict=True)):
            runs = [[int(rows[0]), int(rows[-1]) + 1]]
            if stretch == 0:
                self.say("loading", process, loader=loader, spec=self.spec, rows=runs)
            self._deliver(process, rows, first, last, {*words, last}, loader=loader, stretch=stretch, **more)

    def _deliver(
        self, process: int, rows: NDArray[np.int64], first: int, last: int, words: set[int], **more: Any
    ) -> None:
        count = total = 0
        for step in range(first, last + 1):
            real, words_of_step = self._use(process, rows, step)
            count, total = count + real, total + words_of_step
            if step in words:
                told = {"first": first, "last": step, "steps": step - first + 1, "rows": count, "kept": True}
                self.say("delivered", process, **{**told, "sum": f"{total & WORD:016x}", **more})

    def _use(self, process: int, rows: NDArray[np.int64], step: int) -> tuple[int, int]:
        start, stop = self.schedule.positions(step - 1)
        ids = self.order.ids(start, stop)[np.minimum(rows, stop - start - 1)]
        if (process, step) in self.ids:
            ids = np.array(self.ids[process, step])
            rows = rows[: len(ids)]
        used = take_own(ids, rows, slice(None), stop - start)
        return len(used), sum_hashes([step], [used])

    def end(self, outcome: str = "succeeded") -> None:
        self.tell("run ended", outcome=outcome)

    def audit(self) -> dict[str, Any]:
        found = audit_events(self.lines, recount)
        assert found is not None
        return found
