"""Whether a run that has failed goes on with another attempt, and after which pause; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.words import count_things

# What ended an attempt may be over in the next one.
RESTARTED = frozenset({"failed", "hang", "preempted"})
# Preemptions are no failures, and have a budget of their own: so many for each restart that failures have.
PREEMPTIONS_PER_RESTART = 10
# So many attempts in a row that save nothing new, and the run ends.
MAX_FRUITLESS = 3
# An attempt that failed sooner was quick; the more of them in a row, the longer the pause.
QUICK = 60.0
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
# Of these the next attempt dies as well: a process that is killed, or a host that is lost, says nothing of that.
REPEATED = frozenset({kinds.BUG, kinds.OUT_OF_MEMORY, kinds.HANG})


@dataclass(frozen=True)
class Attempt:
    """How one ended. `saved_step` is the last complete save of the run by then, `step` the last one that all had begun.

    `resumed_step` is where it went on from itself, which may have been kept in memory only.
    `is_final` says that no other attempt can do better: it is a mistake in the command, in an import, in the data.
    """

    number: int
    verdict: Verdict
    seconds: float
    saved_step: int | None = None
    step: int | None = None
    is_final: bool = False
    resumed_step: int | None = None
    resumed_source: str = ""

    @property
    def progress(self) -> int:
        """The newest step that is known to have been kept, on disk or in memory, by then."""
        return max(-1 if step is None else step for step in (self.saved_step, self.resumed_step))

    @property
    def is_preemption(self) -> bool:
        return self.verdict.outcome == "preempted"

    @property
    def cause(self) -> tuple[str, str, int, int] | None:
        """What must be the same for two attempts to have failed alike; None where that would say nothing."""
        verdict = self.verdict
        if verdict.kind not in REPEATED or not verdict.last_step:
            return None
        return verdict.kind, verdict.place or "", verdict.exit_code, verdict.last_step

    def to_json(self) -> dict[str, object]:
        return {
            "attempt": self.number,
            "outcome": self.verdict.outcome,
            "message": self.verdict.message,
            "verdict": self.verdict.to_json(),
            "seconds": round(self.seconds, 3),
            "saved_step": self.saved_step,
            "last_step": self.step,
            "resumed_from": self.resumed_step,
            "resumed_source": self.resumed_source or None,
        }


@dataclass(frozen=True)
class GoOn:
    """With another attempt, so many seconds from now."""

    pause: float


@dataclass(frozen=True)
class GiveUp:
    """`why` is empty where nothing need be said."""

    why: str = ""


def decide_restart(attempts: Sequence[Attempt], restarts: int) -> GoOn | GiveUp:
    last = attempts[-1]
    if last.verdict.outcome not in RESTARTED or not restarts:
        return GiveUp()
    if last.verdict.kind == kinds.DISAGREEMENT or last.is_final:
        return GiveUp("another attempt would end in the same way")
    failures = [each for each in attempts if not each.is_preemption]
    if last.is_preemption:
        if len(attempts) - len(failures) > restarts * PREEMPTIONS_PER_RESTART:
            return GiveUp(f"it was preempted {len(attempts) - len(failures)} times")
        return GoOn(0.0)
    if len(failures) > restarts:
        return GiveUp(f"all {restarts + 1} attempts are used up" if restarts > 1 else "both attempts are used up")
    if last.cause is not None and last.cause in [each.cause for each in attempts[:-1]]:
        return GiveUp(f"it failed twice in the same way at step {last.verdict.last_step}")
    if is_fruitless(failures):
        return GiveUp(f"{MAX_FRUITLESS} attempts in a row saved no new step")
    return GoOn(find_pause(failures))


def is_fruitless(failures: Sequence[Attempt]) -> bool:
    """In a run that saves: nothing newer was kept than what the one before them had kept."""
    kept = [each.progress for each in failures[-MAX_FRUITLESS - 1 :]]
    return len(kept) > MAX_FRUITLESS and kept[0] >= 0 and max(kept) == kept[0]


def tell_again(kept: int, step: int | None) -> str:
    """`12 steps are done again`, by an attempt that goes on after the step `kept` when `step` had been begun."""
    repeated = max(0, step - kept) if step is not None else 0
    if not repeated:
        return "no step is done again"
    return f"{count_things(repeated, 'step')} {'is' if repeated == 1 else 'are'} done again"


def find_pause(failures: Sequence[Attempt]) -> float:
    quick = 0
    for each in reversed(failures):
        if each.seconds > QUICK:
            break
        quick += 1
    return 0.0 if quick < 2 else min(FIRST_PAUSE * 2 ** (quick - 2), MAX_PAUSE)
