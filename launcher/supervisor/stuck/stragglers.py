"""Stragglers: processes that are slow, and hold the others up while the run goes on; pure.

All processes of a run take their steps together, so their step times are alike. What differs is how long each waits for
the others: who never waits is who they wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hostmesh.launcher.supervisor.state.progress import Progress

LOOK_EVERY = 5.0
WINDOW = 60.0
# The others wait so much more of their time.
MIN_SHARE = 0.2
MIN_LOOKS = 20
MIN_STEPS = 2


@dataclass(frozen=True)
class Sample:
    at: float
    step: int
    loading: float
    looks: int
    waits: int


@dataclass(frozen=True)
class Share:
    """Of the time in the window: how much a process waited inside jax, and how much for its input."""

    waiting: float
    loading: float
    step_seconds: float


@dataclass(frozen=True)
class Straggler:
    process_id: int
    held_up: float  # the share of their time that the others wait for it
    loading: float  # the share of its own time that it waits for input, beyond what the others do
    step_seconds: float

    @property
    def cause(self) -> str:
        """What it spends the time on."""
        if self.loading > self.held_up / 2:
            return f"waiting for its input ({self.loading:.0%} of its time more than they do)"
        return "its own work (its input is there as soon as theirs)"


class Stragglers:
    """Each finding is told once; again when another process is found, or the same after it had recovered."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[Sample]] = {}
        self._looked_at = float("-inf")
        self._found: int | None = None

    def look(self, progress: Mapping[int, Progress], now: float) -> Straggler | None:
        if now - self._looked_at < LOOK_EVERY or len(progress) < 2:
            return None
        self._looked_at = now
        for process_id, each in progress.items():
            samples = self._samples.setdefault(process_id, deque())
            samples.append(Sample(now, each.step, each.seen.loading, each.seen.looks, each.seen.waits))
            while now - samples[0].at > WINDOW:
                samples.popleft()
        found = find_straggler({process_id: measure(samples) for process_id, samples in self._samples.items()})
        is_new = found is not None and found.process_id != self._found
        self._found = found.process_id if found is not None else None
        return found if is_new else None


def measure(samples: deque[Sample]) -> Share | None:
    """None where too little is known."""
    first, last = samples[0], samples[-1]
    looks, steps, seconds = last.looks - first.looks, last.step - first.step, last.at - first.at
    if looks < MIN_LOOKS or steps < MIN_STEPS or seconds < WINDOW - 2 * LOOK_EVERY:
        return None
    return Share((last.waits - first.waits) / looks, (last.loading - first.loading) / seconds, seconds / steps)


def find_straggler(shares: Mapping[int, Share | None]) -> Straggler | None:
    """The one that waits least, if the others wait for it."""
    known = {process_id: share for process_id, share in shares.items() if share is not None}
    if len(known) < len(shares) or len(known) < 2:
        return None
    slowest = min(known, key=lambda process_id: known[process_id].waiting)
    others = [share for process_id, share in known.items() if process_id != slowest]
    held_up = middle([share.waiting for share in others]) - known[slowest].waiting
    if held_up <= MIN_SHARE:
        return None
    loading = known[slowest].loading - middle([share.loading for share in others])
    return Straggler(slowest, held_up, loading, known[slowest].step_seconds)


def middle(values: Sequence[float]) -> float:
    """The median, or the lower one of two; the module `statistics` would take longer to import than all of this."""
    return sorted(values)[(len(values) - 1) // 2]
