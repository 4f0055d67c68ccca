"""Tells now and then how far the reading up to a later batch of a stream has come, so that it does not look hung."""

from __future__ import annotations

import sys
import time

import jax

QUIET = 3.0  # seconds before the first line
EVERY = 10.0


class SkipProgress:
    """`skipping to batch 20,000 of numbers: 12% after 5 s, about 40 s left`, by process 0."""

    def __init__(self, steps: int, name: str) -> None:
        self._steps, self._name = steps, name
        self._began = time.monotonic()
        self._tell_at = self._began + QUIET

    def reached(self, step: int) -> None:
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + EVERY
        spent = now - self._began
        left = spent * (self._steps - step) / step
        how_far = f"{step / self._steps:.0%} after {spent:.0f} s, about {_show(left)} left"
        if jax.process_index() == 0:
            print(f"skipping to batch {self._steps:,} of {self._name}: {how_far}", file=sys.stderr, flush=True)


def _show(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
