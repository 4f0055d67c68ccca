"""The clock of a host beside this machine's, bounded by messages that went each way."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Clock:
    """A host's clock is ahead of this machine's by `least` to `most` seconds: no message arrives before it was sent."""

    least: float = -math.inf
    most: float = math.inf

    def note_sent(self, ahead: float) -> None:
        """Of a message to the host: its clock when that came, less this machine's when it went."""
        self.most = min(self.most, ahead)

    def note_heard(self, there: float, now: float) -> None:
        """Of a message from the host: its clock when that went, this machine's when it came."""
        self.least = max(self.least, there - now)

    def bring_here(self, there: float, now: float) -> tuple[float, float]:
        """That moment by this machine's clock, and how far that may be wrong; now where nothing is known."""
        if not math.isfinite(self.least + self.most):
            return now, math.inf
        return min(now, there - (self.least + self.most) / 2), abs(self.most - self.least) / 2


def same_clock() -> Clock:
    """Of a host that is this machine."""
    return Clock(0.0, 0.0)
