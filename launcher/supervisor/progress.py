"""How far each process has come, and when it last moved; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hostmesh.launcher import wire


@dataclass
class Progress:
    """Of one process. Times are those of the inbox's `now`.

    A process that tells its steps moves when its record changes. Any other moves when it prints or says something, or
    when its agent sees that it does something.
    """

    moved_at: float
    step: int = 0
    phase: str = ""
    phase_began: float = 0.0
    changes: int = 0
    is_kept: bool = False
    is_stopped: bool = False
    loading: float = 0.0
    saving: float = 0.0
    compiling: float = 0.0
    looks: int = 0
    waits: int = 0
    moves: int = 0
    examined: wire.Examined | None = None
    examined_at: float = float("-inf")

    def note_observed(self, event: wire.Observed, now: float) -> None:
        self.is_stopped = event.state == "T"
        self.looks, self.waits = event.looks, event.waits
        if event.moves > self.moves and not event.is_kept:
            self.moves, self.moved_at = event.moves, now
        if not event.phase:
            return
        if event.changes != self.changes or event.step != self.step:
            self.moved_at = now
        self.step, self.phase, self.changes, self.is_kept = event.step, event.phase, event.changes, event.is_kept
        self.phase_began = now - event.lasted
        self.loading, self.saving, self.compiling = event.loading, event.saving, event.compiling

    def note_sign_of_life(self, now: float) -> None:
        """It printed something, or said something."""
        if not self.is_kept:
            self.moved_at = now

    def note_examined(self, event: wire.Examined, now: float) -> None:
        self.examined, self.examined_at = event, now
