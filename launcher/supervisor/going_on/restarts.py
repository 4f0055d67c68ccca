"""Whether a run that has failed goes on with another attempt, and after which pause; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.state.run_hosts import MAX_LOST
from hostmesh.launcher.words import agree, count_things

# Outcomes of an attempt that another one may follow.
RESTARTED = frozenset({"failed", "hang", "preempted", "host lost", "grown"})
# Preemptions are no failures, and have a budget of their own: this many times that of failures.
PREEMPTIONS_PER_RESTART = 10
# The run ends after this many attempts in a row that saved nothing new.
MAX_FRUITLESS = 3
# An attempt that failed sooner was quick.
QUICK = 60.0
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
# Kinds of ends that the next attempt is likely to have as well.
REPEATED = frozenset({kinds.BUG, kinds.OUT_OF_MEMORY, kinds.HANG})


@dataclass(frozen=True)
class Budgets:
    """How many attempts of a run may end in each of these ways, and be followed by another."""

    failures: int
    preemptions: int
    losses: int = MAX_LOST

    @classmethod
    def of(cls, cluster: Cluster) -> Budgets:
        restarts, preemptions = cluster.restarts, cluster.preemptions
        return cls(restarts, PREEMPTIONS_PER_RESTART * restarts if preemptions is None else preemptions)


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
    def is_failure(self) -> bool:
        """And neither a preemption, nor the loss of a host, nor the end of a run that takes in another host."""
        return self.verdict.outcome in ("failed", "hang")

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


def decide_restart(attempts: Sequence[Attempt], budgets: Budgets) -> GoOn | GiveUp:
    last = attempts[-1]
    outcome = last.verdict.outcome
    if outcome not in RESTARTED:
        return GiveUp()
    if outcome == "grown":
        return GoOn(0.0)
    alike = [each for each in attempts if each.verdict.outcome == outcome]
    if outcome == "preempted":
        return GoOn(0.0) if len(alike) <= budgets.preemptions else GiveUp(say_preempted(len(alike), budgets))
    if outcome == "host lost":
        return GoOn(0.0) if len(alike) <= budgets.losses else GiveUp(f"hosts were lost {len(alike)} times")
    return decide_after_failure(attempts, budgets.failures)


def say_preempted(times: int, budgets: Budgets) -> str:
    return f"it was preempted {times} times" if budgets.preemptions else ""


def decide_after_failure(attempts: Sequence[Attempt], restarts: int) -> GoOn | GiveUp:
    last, failures = attempts[-1], [each for each in attempts if each.is_failure]
    if not restarts:
        return GiveUp()
    if last.verdict.kind == kinds.DISAGREEMENT or last.is_final:
        return GiveUp("another attempt would end in the same way")
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
    return f"{count_things(repeated, 'step')} {agree('is', repeated)} done again"


def find_pause(failures: Sequence[Attempt]) -> float:
    """The more attempts in a row were quick to fail and saved nothing new, the longer."""
    quick = 0
    for before, each in zip((None, *failures), failures, strict=False):
        has_kept = each.progress > (-1 if before is None else before.progress)
        quick = 0 if has_kept or each.seconds > QUICK else quick + 1
    return 0.0 if quick < 2 else min(FIRST_PAUSE * 2 ** (quick - 2), MAX_PAUSE)


def find_avoided(attempts: Sequence[Attempt]) -> frozenset[str]:
    """A host that was to blame twice in a row: another one may do better."""
    blamed = [each.verdict.host for each in attempts[-2:] if each.is_failure or each.verdict.outcome == "host lost"]
    return frozenset({blamed[0]} if len(blamed) == 2 and blamed[0] == blamed[1] and blamed[0] is not None else ())
