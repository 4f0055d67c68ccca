"""Reported values on their way to the agent: kept, thinned and sent without ever waiting for a device."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice, takewhile
from typing import Any

from hostmesh.worker.identity import FACTS_SOCKET, METRICS, NUM_PROCESSES, PROCESS_ID
from hostmesh.worker.process.facts import TIMEOUT, note_dropped, offer_fact
from hostmesh.worker.reporting.values import (
    Number,
    check_step,
    check_value,
    is_finite,
    is_in_computation,
    is_on_device,
    read_all,
    to_json,
)

REPORT_EVERY = 0.5
# Values of one name that may wait to be sent, and go out together. On average one goes out every half second.
MAX_UNSENT = 20
MAX_NAMES = 10_000
VALUES_A_MESSAGE = 500
MAX_MESSAGES = 100
# With `--metrics all`: what all processes but the first send together.
MESSAGES_A_SECOND_BY_ALL = 100
# A name whose values keep becoming finite and not finite is told of so many times.
MAX_CHANGES = 10
LOOK_EVERY = 0.001


class _Metric:
    """The values of one name that are not sent yet: the oldest, the newest, and some in between."""

    __slots__ = ("unsent", "thinned", "is_finite", "changes", "_allowed", "_counted_at")

    def __init__(self, now: float) -> None:
        self.unsent: list[tuple[int, Any]] = []
        self.thinned = 0
        self.is_finite = True
        self.changes = 0
        self._allowed = float(MAX_UNSENT)
        self._counted_at = now

    def add(self, step: int, value: Any) -> None:
        # The oldest always stays: on a device that is far behind, the newest is never ready.
        if len(self.unsent) > 1 and self.unsent[-1][0] == step:
            self.unsent.pop()
        elif len(self.unsent) == MAX_UNSENT:
            del self.unsent[1::2]
            self.thinned += MAX_UNSENT // 2
        self.unsent.append((step, value))

    def take_ready(self) -> list[tuple[int, Any]]:
        ready = list(takewhile(lambda entry: not is_in_computation(entry[1]), self.unsent))
        del self.unsent[: len(ready)]
        return ready

    def thin(self, ready: list[tuple[int, Any]], now: float, every: float) -> list[tuple[int, Any]]:
        """The newest, as many as may be sent now."""
        self._allowed = min(MAX_UNSENT, self._allowed + (now - self._counted_at) / every)
        self._counted_at = now
        sent = ready[-max(1, int(self._allowed)) :]
        self._allowed = max(0.0, self._allowed - len(sent))
        self.thinned += len(ready) - len(sent)
        return sent


class Reports:
    """Values by name, on their way through a bounded outbox; no call but `flush` and `leave` waits for anything."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may report, too
        self._metrics: dict[str, _Metric] = {}
        self._outbox: deque[tuple[str, dict[str, Any]]] = deque()
        self._changes: list[dict[str, Any]] = []  # from finite to not finite, and back
        self._due = -math.inf
        self._refused = 0

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        step = check_step(step)
        values = {name: check_value(name, value) for name, value in metrics.items()}
        if FACTS_SOCKET not in os.environ:
            return
        with self._lock:
            now = self._clock()
            for name, value in values.items():
                if (metric := self._metrics.get(name)) is None:
                    metric = self._begin(name, now)
                if metric is not None:
                    metric.add(step, value)
                    if not is_on_device(value):
                        self._note_changes(name, metric, [(step, value)])
            if now >= self._due:
                self._send_ready(now)

    def flush(self, timeout: float = math.inf) -> None:
        with self._lock:
            waiting = [value for metric in self._metrics.values() for _, value in metric.unsent]
        deadline = time.monotonic() + timeout
        while any(map(is_in_computation, waiting)) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        with self._lock:
            self._send_ready(self._clock(), must_arrive=True)

    def leave(self, timeout: float) -> None:
        """For the end of the process: also tells what was not sent, and keeps nothing."""
        self.flush(timeout)
        with self._lock:
            thinned = {name: metric.thinned for name, metric in self._metrics.items() if metric.thinned}
            if (thinned or self._refused) and _pace()[0]:
                most = dict(islice(thinned.items(), VALUES_A_MESSAGE))
                self._post("metrics thinned", values=most, refused=self._refused)
                self._empty_outbox(must_arrive=True)
            self._metrics.clear()

    def _begin(self, name: str, now: float) -> _Metric | None:
        if len(self._metrics) >= MAX_NAMES:
            self._refused += 1
            return None
        self._metrics[name] = metric = _Metric(now)
        return metric

    def _send_ready(self, now: float, must_arrive: bool = False) -> None:
        is_kept, every = _pace()
        found: list[tuple[int, str, Number]] = []
        for name, metric in list(self._metrics.items()):
            if ready := metric.take_ready():
                sent = read_all(newest := metric.thin(ready, now, every))
                found += [(step, name, number) for step, number in sent]
                # Reading from a device takes time: what is not sent is looked at only where the first value that is
                # not finite may be among it.
                turns = metric.is_finite and not all(is_finite(number) for _, number in sent)
                looked_at = (entry for entry in (ready if turns else newest) if is_on_device(entry[1]))
                self._note_changes(name, metric, read_all(looked_at))
        kept = sorted(found, key=lambda value: value[0]) if is_kept else []
        for start in range(0, max(len(kept), len(self._changes)), VALUES_A_MESSAGE):
            part = slice(start, start + VALUES_A_MESSAGE)
            self._post("metrics", reports=_by_step(kept[part]), changes=self._changes[part])
        self._changes = []
        if found or self._outbox:
            self._due = now + every
            self._empty_outbox(must_arrive)

    def _note_changes(self, name: str, metric: _Metric, numbers: Iterable[tuple[int, Number]]) -> None:
        for step, number in numbers:
            if is_finite(number) != metric.is_finite:
                metric.is_finite = not metric.is_finite
                metric.changes += 1
                if metric.changes <= MAX_CHANGES:
                    change = {"metric": name, "step": step, "value": to_json(number), "finite": metric.is_finite}
                    self._changes.append(change)

    def _post(self, fact: str, **detail: Any) -> None:
        if len(self._outbox) == MAX_MESSAGES:
            self._outbox.popleft()
            note_dropped()
        self._outbox.append((fact, detail))

    def _empty_outbox(self, must_arrive: bool) -> None:
        """What an agent that is busy does not take now goes first the next time."""
        deadline = time.monotonic() + (TIMEOUT if must_arrive else 0)
        while self._outbox:
            fact, detail = self._outbox[0]
            if offer_fact(fact, **detail):
                self._outbox.popleft()
            elif time.monotonic() < deadline:
                time.sleep(0.01)
            else:
                return


def _pace() -> tuple[bool, float]:
    """Whether the launcher keeps what this process reports, and the seconds between two messages."""
    if os.environ.get(PROCESS_ID) == "0":
        return True, REPORT_EVERY
    if os.environ.get(METRICS) != "all":
        return False, REPORT_EVERY
    return True, max(REPORT_EVERY, int(os.environ[NUM_PROCESSES]) / MESSAGES_A_SECOND_BY_ALL)


def _by_step(found: list[tuple[int, str, Number]]) -> list[dict[str, Any]]:
    steps: dict[int, dict[str, int | float | str]] = {}
    for step, name, number in found:
        steps.setdefault(step, {})[name] = to_json(number)
    return [{"step": step, "values": values} for step, values in steps.items()]
