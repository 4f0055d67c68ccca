"""How training goes: speed, the share of time spent waiting for input, the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import jax

EVERY = 1.0
# A share of time that is worth a word on what was waited for.
MUCH = 0.01


class Progress:
    """The clock starts after the first step, which compiles."""

    def __init__(self, total: int, batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._total, self._batch_size = clock, total, batch_size
        self._shown = clock()
        self._first = 0
        self._began: float | None = None
        self._waited: Mapping[str, float] = {}

    def count_from(self, step: int, waited: Mapping[str, float]) -> None:
        """`waited` is in seconds, by cause, as `Loader.waited_for` gives it."""
        self._began, self._first, self._waited = self._clock(), step, waited

    @property
    def is_counting(self) -> bool:
        return self._began is not None

    def is_due(self) -> bool:
        return self._clock() - self._shown >= EVERY

    def line(self, step: int, loss: float, waited: Mapping[str, float]) -> str:
        """`step 120/700  loss 0.3121  52,431 records/s  4.3% waiting for input (reading)  0:12 left`."""
        self._shown = self._clock()
        shown = f"step {step:>{len(str(self._total))}}/{self._total}  loss {loss:.4f}"
        speed, waiting = self.rates(step, waited)
        if not speed:
            return shown
        left = round((self._total - step) * self._batch_size / speed)
        time_left = f"{left // 60}:{left % 60:02d} left"
        return f"{shown}  {speed:,.0f} records/s  {describe_waiting(waiting)}  {time_left}"

    def rates(self, step: int, waited: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        """Records a second, and the share of time in which the next batch was not there yet, by cause."""
        if self._began is None or step <= self._first:
            return 0.0, dict.fromkeys(waited, 0.0)
        seconds = max(self._clock() - self._began, 1e-9)
        waiting = {cause: (total - self._waited.get(cause, 0.0)) / seconds for cause, total in waited.items()}
        return (step - self._first) * self._batch_size / seconds, waiting


def describe_waiting(shares: Mapping[str, float]) -> str:
    """`4.3% waiting for input (reading)`; a little has no cause."""
    total = sum(shares.values())
    cause = f" ({max(shares, key=lambda name: shares[name])})" if total >= MUCH else ""
    return f"{total:.1%} waiting for input{cause}"


def say(line: str) -> None:
    """Process 0 prints it."""
    if jax.process_index() == 0:
        print(line, flush=True)
