"""How much output may be on its way to the launcher: little on a slow link, so that a verdict need not wait for it."""

from __future__ import annotations

import time
from collections import deque
from typing import Callable, Deque, Tuple

FIRST_WINDOW = 256 << 10
MIN_WINDOW, MAX_WINDOW = 32 << 10, 8 << 20
# Seconds until output is acknowledged: below the first the window grows, above the second it shrinks.
QUICK, SLOW = 0.1, 0.3


class Window:
    """Bytes of output that were sent and not acknowledged by the launcher yet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = FIRST_WINDOW
        self._clock = clock
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
        if seconds < QUICK:
            self.size = min(2 * self.size, MAX_WINDOW)
        elif seconds > SLOW:
            self.size = max(self.size // 2, MIN_WINDOW)
