"""Exact evaluation: the loss and accuracy over every record once."""

from __future__ import annotations

from typing import NamedTuple

import jax

from hostmesh.worker.errors import DataError
from hostmesh.worker.job.model import Params, score
from hostmesh.worker.loading.loader import Loader
from hostmesh.worker.sources import Source


class Evaluation(NamedTuple):
    loss: float
    correct: int
    records: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.records

    def __str__(self) -> str:
        return f"test accuracy {self.accuracy:.4f} ({self.correct} of {self.records}), test loss {self.loss:.4f}"


class Evaluator:
    def __init__(self, source: Source, loader: Loader) -> None:
        """The loader gives each record of the source once; padding is masked."""
        self.source, self._loader = source, loader
        self._score = jax.jit(score)

    def evaluate(self, params: Params) -> Evaluation:
        sums = [self._score(params, batch) for batch in self._loader]
        loss, correct, count = (sum(float(part[n]) for part in sums) for n in range(3))
        if count != len(self.source):
            raise DataError(f"evaluated {count:g} records of {self.source.name}, wanted {len(self.source)}")
        return Evaluation(loss / count, int(correct), int(count))
