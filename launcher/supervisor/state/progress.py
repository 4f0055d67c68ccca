"""How far each process has come, and when it last moved; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hostmesh.launcher.protocol import wire

NOTHING_SEEN = wire.Observed(-1)


@dataclass
class Progress:
    """Of one process: what its agent has seen of it last. Times are those of the inbox's `now`.

    A process that tells its steps moves when its record changes. Any other moves when it prints or says something, or
    when its agent sees that it does something.
    """

    moved_at: float
    seen: wire.Observed = NOTHING_SEEN
    examined: wire.Examined | None = None
    examined_at: float = float("-inf")

    @property
    def step(self) -> int:
        return self.seen.step

    @property
    def phase(self) -> str:
        return self.seen.phase

    @property
    def is_kept(self) -> bool:
        return self.seen.is_kept

    @property
    def is_stopped(self) -> bool:
        return self.seen.state == "T"

    def note_observed(self, event: wire.Observed, now: float) -> None:
        seen, self.seen = self.seen, event
        has_worked = event.moves > seen.moves and not event.is_kept
        if has_worked or (event.changes, event.step) != (seen.changes, seen.step):
            self.moved_at = now

    def note_sign_of_life(self, now: float) -> None:
        """It printed something, or said something."""
        if not self.is_kept:
            self.moved_at = now

    def note_examined(self, event: wire.Examined, now: float) -> None:
        self.examined, self.examined_at = event, now
