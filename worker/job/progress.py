"""How training goes: speed, the share of time spent waiting for input, the time left."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

EVERY = 1.0


class Progress:
    """The clock starts after the first step, which compiles."""

    def __init__(self, total: int, batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._total, self._batch_size = clock, total, batch_size
        self._shown = clock()
        self._first = 0
        self._began: float | None = None
        self._waited = 0.0

    def count_from(self, step: int, waited: float) -> None:
        self._began, self._first, self._waited = self._clock(), step, waited

    @property
    def is_counting(self) -> bool:
        return self._began is not None

    def is_due(self) -> bool:
        return self._clock() - self._shown >= EVERY

    def line(self, step: int, loss: float, waited: float) -> str:
        """`step 120/700  loss 0.3121  52,431 records/s  0.3% waiting for input  0:12 left`."""
        self._shown = self._clock()
        shown = f"step {step:>{len(str(self._total))}}/{self._total}  loss {loss:.4f}"
        speed, waiting = self.rates(step, waited)
        if not speed:
            return shown
        left = round((self._total - step) * self._batch_size / speed)
        time_left = f"{left // 60}:{left % 60:02d} left"
        return f"{shown}  {speed:,.0f} records/s  {waiting:.1%} waiting for input  {time_left}"

    def rates(self, step: int, waited: float) -> tuple[float, float]:
        """Records a second, and the share of time in which the next batch was not there yet."""
        if self._began is None or step <= self._first:
            return 0.0, 0.0
        seconds = max(self._clock() - self._began, 1e-9)
        return (step - self._first) * self._batch_size / seconds, (waited - self._waited) / seconds


def say(line: str) -> None:
    """Process 0 prints it."""
    if jax.process_index() == 0:
        print(line, flush=True)
