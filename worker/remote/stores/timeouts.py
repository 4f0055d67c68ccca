"""How long one request may take: for a connection, for the next bytes, and in all, however they trickle in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """In seconds, and bytes a second. Many requests share a line, so the slowest that is waited for is slow."""

    connect: float = 10.0
    silence: float = 30.0
    rate: float = 16 << 10
    unknown: int = 1 << 20  # what an answer is taken for that does not say its size

    def seconds(self, size: int | None) -> float:
        """For an answer of so many bytes."""
        return self.silence + (self.unknown if size is None else size) / self.rate


TIMEOUTS = Timeouts()
