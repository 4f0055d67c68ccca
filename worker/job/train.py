"""The built-in job: train a classifier, evaluate it exactly, save and go on."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from hostmesh.worker.checkpoint import Checkpoint
from hostmesh.worker.distributed import join
from hostmesh.worker.errors import DataError, SettingsError, WorkerError
from hostmesh.worker.identity import EXIT_PREEMPTED
from hostmesh.worker.job.evaluation import Evaluation, Evaluator
from hostmesh.worker.job.finite import FiniteCheck, find_not_finite
from hostmesh.worker.job.model import Scores, init_params, init_state, make_optimizer, make_train_step
from hostmesh.worker.job.progress import Progress, describe_waiting, say
from hostmesh.worker.job.settings import EVAL_SOURCES, Settings
from hostmesh.worker.job.task import Task
from hostmesh.worker.loading.loader import Loader
from hostmesh.worker.mesh import make_mesh
from hostmesh.worker.metrics import report
from hostmesh.worker.preemption import handle_preemption, preemption_requested
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.process.freed_memory import keep_freed_memory
from hostmesh.worker.process.words import count
from hostmesh.worker.recording.recorder import phase
from hostmesh.worker.reporting.values import to_json
from hostmesh.worker.sources import Source, open_source
from hostmesh.worker.streams.stream import Stream

DEFAULT_EPOCHS = 15
# Steps given to the devices and not yet done: enough to keep them busy, few enough to notice a slow loader.
IN_FLIGHT = 2


class Job:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.began = time.monotonic()
        self.mesh = _make_mesh(settings)
        self.source = source = _open(settings.source)
        eval_spec = settings.eval_source or EVAL_SOURCES.get(settings.source, settings.source)
        self.task = Task.of(source)
        self.loader = self._load(source, seed=settings.seed, tail=settings.tail, **_length(settings))
        held_out = source if eval_spec == settings.source else _open(eval_spec)
        self.evaluator = Evaluator(held_out, self._load(held_out, shuffle=False, tail="pad", epochs=1))
        self.total = len(self.loader)
        optimizer = make_optimizer(settings.lr, self.total)
        self.state = init_state(init_params(settings.seed, self.task.features, self.task.classes), optimizer, self.mesh)
        self.train_step = make_train_step(optimizer)
        self.finite = FiniteCheck(settings.nan)
        self.checkpoint = self._open_checkpoint()
        self.resumed_from = self._resume()
        self.progress = Progress(self.total, settings.batch_size)
        self.in_flight: deque[tuple[int, Scores]] = deque()
        self.loss = float("nan")

    def run(self) -> int:
        self._introduce()
        for batch in self.loader:
            self.state, scores = self.train_step(self.state, batch)
            if self.checkpoint is not None and self.settings.memory_every:
                self.checkpoint.snapshot(self.loader.step, self.state, self.loader.state())
            self._follow(self.loader.step, scores)
            if self._is_time(self.settings.eval_every):
                say(f"step {self.loader.step}: {self._evaluate()}")
            if self.checkpoint is not None and preemption_requested(self.loader.step):
                return self._leave_early()
            if self.checkpoint is not None and self._is_time(self.settings.checkpoint_every):
                self._save()
        return self._finish()

    def _load(self, source: Source, **options: Any) -> Loader:
        size, loading = self.settings.batch_size, self.settings.loading
        options |= {"verify": not self.settings.no_verify, "workers": self.settings.workers}
        try:
            return Loader(source, self.mesh, size, map=self.task.prepare, loading=loading, **options)
        except WorkerError:
            raise
        except ValueError as error:
            raise SettingsError(f"--batch-size {size}: {error}") from error

    def _open_checkpoint(self) -> Checkpoint | None:
        if self.settings.checkpoint_dir is None:
            return None
        handle_preemption()
        settings = self.settings
        options: dict[str, Any] = {"memory_every": settings.memory_every, "data_changed": settings.data_changed}
        return Checkpoint(self.settings.checkpoint_dir, data_spec=self.loader.data_spec, **options)

    def _resume(self) -> int | None:
        found = self.checkpoint.restore(self.state) if self.checkpoint is not None else None
        if found is None:
            return None
        self.state, position = found
        assert isinstance(position, int)  # the state of a source, not of a stream
        if position > self.total:
            raise SettingsError(
                f"found a checkpoint at step {position} in {self.settings.checkpoint_dir}, wanted one of at most"
                f" {self.total} steps ({self._asked_length()}): ask for at least {position}, or use another folder"
                " (--checkpoint-dir)"
            )
        self.loader.restore(position)
        if not self.finite.check(self.state):
            where, remedy = f"{self.settings.checkpoint_dir}/{position}", "were its files changed? Remove it to go back"
            if self._is_in_memory:
                where, remedy = f"the snapshot of step {position}", "run again to go back to the last save"
            self._refuse_not_finite(f"{where} holds a state that is not finite", lambda: remedy)
        return position

    @property
    def _is_in_memory(self) -> bool:
        """Where training goes on from; it may not be saved then."""
        return self.checkpoint is not None and self.checkpoint.restored_from == "memory"

    def _refuse_not_finite(self, problem: str, explain: Callable[[], str]) -> None:
        """All processes see the same numbers at the same step, so all do the same."""
        self.finite.refuse(problem, explain, self.checkpoint)

    def _asked_length(self) -> str:
        given = {name: value for name, value in _length(self.settings).items() if value is not None}
        return " ".join(f"--{name} {value}" for name, value in given.items())

    def _introduce(self) -> None:
        axes = ", ".join(f"{name}={size}" for name, size in self.mesh.shape.items())
        where = f"{count(jax.process_count(), 'process')}, {count(jax.device_count(), 'device')}, mesh {axes}"
        what = f"{self.settings.source}: {len(self.source):,} records, {self.task.classes} classes"
        left_out = f"; {self.loader.left_out:,} records left out" if self.loader.left_out else ""
        say(f"{what}; {where}; {self.total} steps of {self.settings.batch_size}{left_out}")
        where = "kept in memory" if self._is_in_memory else f"saved in {self.settings.checkpoint_dir}"
        if self.resumed_from == self.total:
            say(f"nothing is left to train: step {self.total} is {where}")
        elif self.resumed_from is not None:
            say(f"going on after step {self.resumed_from}, {where}")

    def _follow(self, step: int, scores: Scores) -> None:
        """Reports a step, and waits for the one that was given to the devices some steps ago."""
        report(step, loss=scores.loss / scores.rows)
        self.in_flight.append((step, scores))
        if not self.progress.is_counting:
            self._wait_for_all()  # the first step compiles
            self.progress.count_from(step, self.loader.waited_for)
        while len(self.in_flight) > IN_FLIGHT:
            self._wait_for_oldest()
        if self.progress.is_due():
            waited = self.loader.waited_for
            say(self.progress.line(step, self.loss, waited))
            _, waiting = self.progress.rates(step, waited)
            report(step, **{f"waiting_{cause}": share for cause, share in waiting.items()})

    def _wait_for_oldest(self) -> None:
        step, scores = self.in_flight.popleft()
        if strange := int(scores.strange):
            raise DataError(
                f"step {step}: found {strange} labels that are not among the {self.task.classes} classes"
                f" of the records looked at first; wanted 0 to {self.task.classes - 1}"
            )
        self.loss = float(scores.loss) / int(scores.rows)
        if not math.isfinite(self.loss):
            self._refuse_not_finite(f"step {step}: the loss is {self.loss}", lambda: self._explain(step))

    def _explain(self, step: int) -> str:
        """Whether the records of the step are the reason."""
        self.loader.close()  # a source may not allow two readers at once
        ids = np.unique(self.loader.record_ids(step - 1))
        if not (strange := find_not_finite(self.source, self.task, ids)):
            return (
                f"the records of that step are all finite: look at the steps before, and at --lr {self.settings.lr:g}"
            )
        return f"in {self.settings.source} found numbers that are not finite, in records of that step: {strange}"

    def _require_finite_state(self) -> bool:
        """Checks the parameters too, because the loss of a step is that of the parameters before it."""
        step = self.loader.step
        if not (is_finite := self.finite.check(self.state)):
            self._refuse_not_finite(f"step {step}: the parameters are not finite after it", lambda: self._explain(step))
        return is_finite

    def _wait_for_all(self) -> None:
        while self.in_flight:
            self._wait_for_oldest()

    def _is_time(self, every: int) -> bool:
        return bool(every) and self.loader.step % every == 0 and self.loader.step < self.total

    def _evaluate(self) -> Evaluation:
        with phase("evaluating"):
            found = self.evaluator.evaluate(self.state.params)
        report(self.loader.step, eval_loss=found.loss, eval_accuracy=found.accuracy)
        if not math.isfinite(found.loss) and self.settings.nan != "ignore":
            self._require_finite_state()
            say(
                f"warning: step {self.loader.step}: the test loss is {found.loss}; look at {self.evaluator.source.name}"
            )
        return found

    def _save(self) -> bool:
        """Saves only a finite state, after the losses of all steps before it have been checked."""
        assert self.checkpoint is not None
        self._wait_for_all()
        if not self._require_finite_state():
            return False
        self.checkpoint.save(self.loader.step, self.state, self.loader.state())
        return True

    def _leave_early(self) -> int:
        assert self.checkpoint is not None
        is_saved = self._save()
        self.checkpoint.close()
        saved = f"saved after step {self.loader.step} in {self.settings.checkpoint_dir}"
        say(f"stopped as asked; {saved if is_saved else 'not saved: the state is not finite'}")
        return EXIT_PREEMPTED

    def _finish(self) -> int:
        self._wait_for_all()
        speed, waiting = self.progress.rates(self.loader.step, self.loader.waited_for)
        has_trained = self.resumed_from != self.loader.step
        if self.checkpoint is not None:
            if has_trained or self._is_in_memory:
                self._save()
            self.checkpoint.close()
        found = self._evaluate()
        seconds = time.monotonic() - self.began
        summary = self._summary(found, speed, waiting, seconds)
        if jax.process_index() == 0:
            send_fact("summary", must_arrive=True, **summary)
        if not has_trained:
            say(f"evaluated step {self.loader.step} in {seconds:.1f} s: {found}")
            return 0
        say(
            f"trained {self.loader.step} steps in {seconds:.1f} s: loss {self.loss:.4f}, {found}, "
            f"{speed:,.0f} records/s, {describe_waiting(waiting)}"
        )
        return 0

    def _summary(self, found: Evaluation, speed: float, waiting: dict[str, float], seconds: float) -> dict[str, Any]:
        settings = self.settings
        return {
            "steps": self.loader.step,
            "resumed_from": self.resumed_from,
            "loss": None if self.resumed_from == self.loader.step else to_json(self.loss),
            "eval_loss": to_json(found.loss),
            "eval_accuracy": found.accuracy,
            "eval_records": found.records,
            "records_per_second": round(speed, 1),
            "waiting_for_input": round(sum(waiting.values()), 5),
            "waiting_for": {cause: round(share, 5) for cause, share in waiting.items()},
            "seconds": round(seconds, 3),
            "source": settings.source,
            "records": len(self.source),
            "batch_size": settings.batch_size,
            "loading": settings.loading,
            "mesh": dict(self.mesh.shape),
            "processes": jax.process_count(),
            "devices": jax.device_count(),
        }


def _make_mesh(settings: Settings) -> Mesh:
    axes = settings.axes
    if axes is None:
        axes = {"data": -1, "model": 2 if jax.local_device_count() % 2 == 0 else 1}
    try:
        return make_mesh(span_processes=settings.span_processes, **axes)  # type: ignore[arg-type]
    except ValueError as error:
        raise SettingsError(f"--mesh: {error}") from error


def _open(spec: str) -> Source:
    source = open_source(spec)
    if isinstance(source, Stream):
        raise SettingsError(f"{spec} is a stream; the built-in job wants a source with records by number")
    return source


def _length(settings: Settings) -> dict[str, int | None]:
    epochs = DEFAULT_EPOCHS if settings.epochs is None and settings.steps is None else settings.epochs
    return {"epochs": epochs, "steps": settings.steps}


def main(settings: Settings) -> None:
    keep_freed_memory()
    join()
    sys.exit(Job(settings).run())
