"""The attempts of a run: one that has failed is followed by another, as long as that makes sense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.ending import Ending
from hostmesh.launcher.supervisor.going_on.restarts import (
    Attempt,
    Budgets,
    GiveUp,
    GoOn,
    decide_restart,
    find_avoided,
    tell_again,
)
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.words import count_things

# Exceptions that the next attempt would raise as well.
FINAL = frozenset({"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError"})


class Attempts:
    """`begin_next` makes everything ready for the next one, whose processes start after so many seconds."""

    def __init__(
        self,
        budgets: Budgets,
        state: RunState,
        records: Records,
        ending: Ending,
        inbox: Inbox,
        begin_next: Callable[[float], None],
    ) -> None:
        self._budgets, self._state, self._records = budgets, state, records
        self._ending, self._inbox, self._begin_next = ending, inbox, begin_next
        self.history: list[Attempt] = []

    def goes_on(self, verdict: Verdict) -> bool:
        """Whether the run is at the beginning of another attempt now."""
        if self._state.interrupts or not self._state.spawned:
            return False
        attempt = self._describe(verdict)
        match decide_restart([*self.history, attempt], self._budgets):
            case GiveUp():
                return False
            case GoOn(pause):
                cleared = self._ending.clear(verdict)
                if cleared is None:
                    return False  # somebody asked for the end
                self._go_on(self._describe(cleared), pause)  # a save may have come to its end meanwhile
        return True

    def finish(self, verdict: Verdict) -> Verdict:
        """The verdict of the run, with why there is no other attempt."""
        if not self._state.spawned:
            return verdict
        self.history.append(self._describe(verdict))
        decision = decide_restart(self.history, self._budgets)
        why = decision.why if isinstance(decision, GiveUp) else ""
        if len(self.history) > 1 and verdict.exit_code == 0:
            count = count_things(len(self.history) - 1, "restart")
            return replace(verdict, remarks=(*verdict.remarks, f"after {count}"))
        return replace(verdict, detail=[f"There is no other attempt: {why}.", *verdict.detail]) if why else verdict

    def _go_on(self, attempt: Attempt, pause: float) -> None:
        self.history.append(attempt)
        number, most = attempt.number + 1, self._budgets.failures + 1
        failures = sum(each.is_failure for each in self.history)
        what = f"attempt {failures + 1} of {most}" if attempt.is_failure else f"attempt {number}"
        after = f"; waiting {pause:.0f} s before it starts" if pause else ""
        self._records.note(f"launch: {what}: {tell_cause(attempt.verdict)}; {tell_repeated(attempt)}{after}")
        self._records.tell("attempt ended", **attempt.to_json())
        self._records.begin_attempt(number)
        avoided = find_avoided(self.history)
        self._state.avoided = frozenset(host.number for host in self._state.hosts if host.name in avoided)
        self._begin_next(pause)
        self._records.tell("attempt began", attempt=number, pause=pause)

    def _describe(self, verdict: Verdict) -> Attempt:
        state = self._state
        seconds = self._inbox.now() - state.spawned_at
        return Attempt(
            *(state.attempt, verdict, seconds, state.saved_step, min(state.steps.values(), default=None)),
            is_final=self._is_final(verdict),
            resumed_step=state.resumed_step,
            resumed_source=state.resumed_source,
        )

    def _is_final(self, verdict: Verdict) -> bool:
        crash = self._state.crashes.get(verdict.process_id, (0.0, {}))[1] if verdict.process_id is not None else {}
        kind = str(crash.get("type", "")).rpartition(".")[2]
        return verdict.kind == kinds.BUG and bool(kind in FINAL or crash.get("explained"))


def tell_cause(verdict: Verdict) -> str:
    return verdict.message.removeprefix("the run failed: ").removeprefix("the run hangs: ")


def tell_repeated(attempt: Attempt) -> str:
    """`going on from step 400, 12 steps are done again`."""
    saved, step = attempt.saved_step, attempt.step
    if saved is None:
        return "starting again"
    return f"going on from step {saved}, {tell_again(saved, step)}"
