"""How much of a tree may be on its way to a host at a time: so little that an order is never long behind it."""

from __future__ import annotations

import threading
import time
from collections import deque

# Bytes. At the least what a host acknowledges at once; at the most what memory on both ends can well hold.
LEAST, MOST = 1 << 20, 8 << 20
# Seconds that an order may have to wait behind what is on its way.
DELAY = 1.0


class Window:
    """Grows while a host takes its pieces soon after they were sent, and shrinks on a slow link or disk."""

    def __init__(self) -> None:
        self.size = LEAST
        self._lock = threading.Lock()
        self._on_the_way: deque[tuple[float, int]] = deque()
        self._in_flight = 0

    @property
    def has_room(self) -> bool:
        return self._in_flight < self.size

    def note_sent(self, size: int) -> None:
        with self._lock:
            self._on_the_way.append((time.monotonic(), size))
            self._in_flight += size

    def note_taken(self, size: int) -> None:
        with self._lock:
            self._in_flight -= size
            waited = self._forget(size)
            self.size = max(LEAST, self.size // 2) if waited > DELAY else min(MOST, self.size + size)

    def _forget(self, size: int) -> float:
        """Seconds that the last of these bytes took."""
        sent_at = now = time.monotonic()
        while size > 0 and self._on_the_way:
            sent_at, length = self._on_the_way.popleft()
            if length > size:
                self._on_the_way.appendleft((sent_at, length - size))
            size -= length
        return now - sent_at
