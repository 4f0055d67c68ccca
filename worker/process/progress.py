"""Tells now and then how far a long piece of work has come, so that it does not look hung."""

from __future__ import annotations

import sys
import time

QUIET = 3.0  # seconds before the first line
EVERY = 10.0


class Progress:
    """`skipping to batch 20,000 of numbers: 12% after 5 s, about 40 s left`, by process 0."""

    def __init__(self, total: int, what: str, quiet: float | None = None) -> None:
        self._total, self._what = total, what
        self._began = time.monotonic()
        self._tell_at = self._began + (QUIET if quiet is None else quiet)

    def reached(self, done: int) -> None:
        now = time.monotonic()
        if now < self._tell_at:
            return
        self._tell_at = now + EVERY
        spent = now - self._began
        left = spent * (self._total - done) / done
        how_far = f"{done / self._total:.0%} after {spent:.0f} s, about {_show(left)} left"
        if _is_first():
            print(f"{self._what}: {how_far}", file=sys.stderr, flush=True)


def _is_first() -> bool:
    """Without making a backend, which `jax.process_index` would do: files are opened before processes join."""
    from jax._src import distributed  # the public API has no such state

    return distributed.global_state.process_id == 0


def _show(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
