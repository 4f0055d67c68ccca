"""Flow control: a bound on the bytes on their way, small on a slow link so that urgent messages come in time."""

from __future__ import annotations

import time
from collections import deque
from typing import Callable, Deque, NamedTuple, Tuple


class Limits(NamedTuple):
    """Sizes in bytes, and seconds until something is acknowledged: below `quick` a window grows, above `slow` it
    shrinks."""

    first: int
    least: int
    most: int
    quick: float
    slow: float


# For output of processes; the message that tells of a failure may have to wait behind it.
OUTPUT = Limits(first=256 << 10, least=32 << 10, most=2 << 20, quick=0.1, slow=0.3)
# For files that are sent to a host in chunks of up to a mebibyte.
FILES = Limits(first=1 << 20, least=1 << 20, most=8 << 20, quick=0.5, slow=1.0)


class Window:
    """Bytes that were sent and not acknowledged yet. One thread may send while another acknowledges."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = limits.first
        self._limits, self._clock = limits, clock
        self._sent = self._acknowledged = 0
        self._marks: Deque[Tuple[int, float]] = deque()

    @property
    def room(self) -> int:
        return max(0, self.size - (self._sent - self._acknowledged))

    def note_sent(self, size: int) -> None:
        self._sent += size
        self._marks.append((self._sent, self._clock()))

    def note_acknowledged(self, size: int) -> None:
        self._acknowledged += size
        sent_at = None
        while self._marks and self._marks[0][0] <= self._acknowledged:
            sent_at = self._marks.popleft()[1]
        if sent_at is not None:
            self._adapt(self._clock() - sent_at)

    def _adapt(self, seconds: float) -> None:
        if seconds < self._limits.quick:
            self.size = min(2 * self.size, self._limits.most)
        elif seconds > self._limits.slow:
            self.size = max(self.size // 2, self._limits.least)
