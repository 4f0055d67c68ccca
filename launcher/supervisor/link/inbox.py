"""What has arrived for the one thread that owns a run's state, and the time: it passes while that thread waits here."""

from __future__ import annotations

import queue
import time
from typing import Any


class Inbox(queue.SimpleQueue[Any]):
    """Signal handlers and the threads of channels put entries in; the owner takes them out one by one."""

    def take(self, timeout: float) -> Any:
        """The next entry, or None when none came in time."""
        try:
            return self.get(timeout=timeout)
        except queue.Empty:
            return None

    def now(self) -> float:
        """Seconds by a clock that nobody sets."""
        return time.monotonic()

    def wall_clock(self) -> float:
        """Seconds since the epoch, by this machine's clock."""
        return time.time()

    def awake_or_not(self) -> float:
        """Seconds by a clock that also runs while the machine sleeps, which the one of `now` need not do."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()

    def to_now(self, at: float) -> float:
        """A moment of the wall clock, by the clock of `now`."""
        return self.now() + (at - self.wall_clock())
