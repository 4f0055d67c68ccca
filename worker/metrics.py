"""How training goes, step by step, told to the launcher without ever waiting for a device."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from worker.facts import send_fact

REPORT_EVERY = 0.5
# What NumPy calls booleans, integers and floats; bfloat16 and its like are of the kind V.
NUMBER_KINDS = "biufV"


def report(step: int, **metrics: Any) -> None:
    """Tell the launcher how training goes; call it at every step.

    A metric is a Python number, or a scalar of NumPy or jax. A jax scalar may still be in computation: nobody waits
    for it, it is sent by a later call that finds it ready. So that no process talks all the time, a report goes out
    every half second at most, and the newest one that is ready wins; the launcher keeps those of process 0, as
    `metrics` in `events.jsonl`. A number that is not finite travels as text. A scalar that was donated meanwhile, or
    that lives on other processes only, is left out.
    """
    _reports.add(step, metrics)


def flush_report() -> None:
    """Send the last report if it has not been sent yet; this waits for its values."""
    _reports.flush()


class _Report(NamedTuple):
    step: int
    metrics: Mapping[str, Any]

    def is_ready(self) -> bool:
        return not any(_is_in_computation(value) for value in self.metrics.values())

    def send(self, must_arrive: bool = False) -> None:
        values = {name: _to_json(value) for name, value in self.metrics.items() if _is_here(value)}
        send_fact("metrics", must_arrive=must_arrive, step=self.step, values=values)


class Reports:
    """Holds two reports: the newest, and while that is never ready in time, an older one that will be."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due = -math.inf
        self._newest: _Report | None = None
        self._candidate: _Report | None = None

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        _check(step, metrics)
        self._newest = newest = _Report(int(step), metrics)
        if self._clock() < self._due:
            return
        self._candidate = self._candidate or newest
        for report in (newest, self._candidate):
            if report.is_ready():
                self._send(report)
                return

    def flush(self) -> None:
        if self._newest is not None:
            self._send(self._newest, must_arrive=True)

    def _send(self, report: _Report, must_arrive: bool = False) -> None:
        self._candidate = None
        self._newest = None if report is self._newest else self._newest
        self._due = self._clock() + REPORT_EVERY
        report.send(must_arrive)


_reports = Reports()


def _check(step: int, metrics: Mapping[str, Any]) -> None:
    if not (isinstance(step, int) or _is_numpy_integer(step)):
        raise TypeError(f"report: step: found {_describe(step)}, wanted a whole number such as loader.step")
    for name, value in metrics.items():
        if not (isinstance(value, (int, float)) or _is_scalar(value)):
            raise TypeError(f"report: {name}: found {_describe(value)}, wanted a number or a scalar of NumPy or jax")


def _is_scalar(value: Any) -> bool:
    """Of numpy, or of jax and no tracer: that has no `is_ready`."""
    is_known = hasattr(value, "is_ready") or _is_numpy(value)
    return is_known and value.shape == () and value.dtype.kind in NUMBER_KINDS


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray))


def _is_numpy_integer(value: Any) -> bool:
    return _is_numpy(value) and value.shape == () and value.dtype.kind in "iu"


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return (
        f"{kind} of shape {value.shape} and type {value.dtype}" if hasattr(value, "dtype") else f"{kind} {value!r:.80}"
    )


def _is_in_computation(value: Any) -> bool:
    return hasattr(value, "is_ready") and not value.is_deleted() and not value.is_ready()


def _is_here(value: Any) -> bool:
    return not hasattr(value, "is_ready") or (not value.is_deleted() and bool(value.addressable_shards))


def _to_json(value: Any) -> int | float | str:
    number: int | float = value if isinstance(value, (int, float)) else value.item()
    return number if isinstance(number, int) or math.isfinite(number) else str(number)
