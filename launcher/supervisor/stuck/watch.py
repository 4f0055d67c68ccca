"""When a run that stands still is examined, told about, and ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hostmesh.launcher.cluster.model import HangTimeout
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.supervisor.stuck.activity import Activity, Doing, find_activity, gather
from hostmesh.launcher.supervisor.stuck.connections import Stalled, find_stalled
from hostmesh.launcher.supervisor.stuck.diagnosis import Diagnosis, diagnose
from hostmesh.launcher.supervisor.stuck.limits import find_limit

# Told after so many seconds without movement, then after twice as many, and so on.
TELL_AFTER = 20.0
# Somebody has left, and all others wait: this cannot end well, whatever the timeout.
LEFT_TIMEOUT = 10.0
# Examining takes agents a moment, so that it begins before its result is needed.
LEAD, LEAD_WITH_NETWORK = 1.5, 5.0
ANSWER_TIMEOUT = 3.0


@dataclass(frozen=True)
class Examine:
    """Ask all agents where their processes are."""


@dataclass(frozen=True)
class Tell:
    """Say what is waited for; nothing ends."""

    diagnosis: Diagnosis
    seconds: float


@dataclass(frozen=True)
class EndHang:
    diagnosis: Diagnosis
    seconds: float


Step = Examine | Tell | EndHang | None


class Watch:
    """Remembers what has been asked and told since the run last moved."""

    def __init__(self, timeout: HangTimeout) -> None:
        self.timeout = timeout
        self._moved_at = -math.inf
        self._asked_at: float | None = None
        self._asked_for = 0.0  # the moment whose examination is under way
        self._done = 0.0  # moments up to this one have been dealt with

    def look(self, state: RunState, now: float) -> Step:
        if not state.progress or state.interrupts or state.keep_going:
            return None
        moved_at = state.moved_at
        if moved_at != self._moved_at:
            self._moved_at, self._asked_at, self._done = moved_at, None, 0.0
        quiet = now - moved_at
        if self._asked_at is None:
            moment = self._next_moment(state)
            if quiet < moment - (LEAD_WITH_NETWORK if state.tries_network else LEAD):
                return None
            self._asked_at, self._asked_for = now, moment
            return Examine()
        all_answered = all(each.examined_at >= self._asked_at for each in live(state))
        if quiet < self._asked_for or not (all_answered or now - self._asked_at > ANSWER_TIMEOUT):
            return None
        self._done, self._asked_at = self._asked_for, None
        return self._judge(state, quiet)

    def _judge(self, state: RunState, quiet: float) -> Step:
        diagnosis = diagnose(
            *(find_activities(state), state.find_network_problem()),
            *(state.programs.find_missing(), find_stalled_connections(state)),
        )
        if quiet >= self._limit_of(diagnosis, state):
            return EndHang(diagnosis, quiet)
        if self._done >= TELL_AFTER and is_doubling(self._done) and is_worth_telling(state):
            return Tell(diagnosis, quiet)
        return None

    def _limit_of(self, diagnosis: Diagnosis, state: RunState) -> float:
        """That of the phase in which the culprits are; where nobody is one, the longest of all."""
        if diagnosis.cause is Doing.LEFT and all(each.doing is Doing.WAITING for each in diagnosis.others):
            return min(LEFT_TIMEOUT, self._limit("step", state))
        if diagnosis.cause is Doing.STOPPED:
            return self._limit("step", state)  # whatever it was doing, it does not go on
        if not diagnosis.is_known and not self.timeout.is_given and any(map(is_busy, diagnosis.others)):
            return math.inf  # it may be a long evaluation: nobody has said how long is too long
        phases = {each.phase for each in (diagnosis.culprits or diagnosis.others) if each.doing is not Doing.LEFT}
        return max(self._limit(phase, state) for phase in phases or {"step"})

    def _limit(self, phase: str, state: RunState) -> float:
        return find_limit(phase, self.timeout, all(each.is_kept for each in state.progress.values()))

    def _next_moment(self, state: RunState) -> float:
        """The first of all moments that have not been dealt with yet."""
        moments = {self._limit(each.phase, state) for each in live(state)} | {self._limit("step", state)}
        if any(code == 0 for code in state.exits.values()) or any(each.phase == "leaving" for each in live(state)):
            moments.add(LEFT_TIMEOUT)
        told = TELL_AFTER
        while told <= self._done:
            told *= 2
        moments.add(told)
        return min(moment for moment in moments if moment > self._done)


def is_busy(activity: Activity) -> bool:
    return activity.doing in (Doing.COMPUTING, Doing.WORKING)


def is_doubling(moment: float) -> bool:
    return math.log2(moment / TELL_AFTER).is_integer()


def is_worth_telling(state: RunState) -> bool:
    """Of programs that do not use jax together nothing is known, and nothing is expected."""
    return bool(state.joined) or any(each.is_kept for each in state.progress.values())


def live(state: RunState) -> Sequence[Progress]:
    gone = state.exits.keys() | state.lost_processes
    return [each for process_id, each in state.progress.items() if process_id not in gone]


def find_activities(state: RunState) -> list[Activity]:
    """Of all processes but those that failed, or were lost with a host."""
    found = []
    for process_id, progress in state.progress.items():
        code = state.exits.get(process_id)
        if code not in (None, 0) or process_id in state.lost_processes:
            continue
        known = gather(
            process_id,
            state.host_of(process_id).name,
            progress,
            exit_code=code,
            has_joined=process_id in state.joined,
            others_join=bool(state.joining),
        )
        found.append(find_activity(known))
    return found


def find_stalled_connections(state: RunState) -> Stalled | None:
    """Between processes that are still there."""
    examined = [each.examined for each in live(state) if each.examined is not None]
    connections = {each.process_id: each.found.get("connections") for each in examined}
    return find_stalled(connections, {each: state.host_of(each).number for each in connections})
