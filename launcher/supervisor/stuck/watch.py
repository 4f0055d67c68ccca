"""When a run that stands still is examined, told about, and ended; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hostmesh.launcher.supervisor.decisions import Decision, End, Examine, Tell, Wait
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.supervisor.state.standstill import Standstill
from hostmesh.launcher.supervisor.stuck.activity import Activity, Doing, find_activity, gather
from hostmesh.launcher.supervisor.stuck.connections import Stalled, find_stalled
from hostmesh.launcher.supervisor.stuck.diagnosis import Diagnosis, diagnose
from hostmesh.launcher.supervisor.stuck.limits import find_limit
from hostmesh.launcher.supervisor.stuck.telling import hang_verdict, tell

# Told after so many seconds without movement, then after twice as many, and so on.
TELL_AFTER = 20.0
# Somebody has left, and all others wait: this cannot end well, whatever the timeout.
LEFT_TIMEOUT = 10.0
# Examining takes agents a moment, so that it begins before its result is needed.
LEAD, LEAD_WITH_NETWORK = 1.5, 5.0
ANSWER_TIMEOUT = 3.0


def decide_standstill(state: RunState, now: float) -> Decision:
    if not state.progress or state.interrupts or state.keep_going:
        return Wait()
    moved_at, before = state.moved_at, state.standstill
    if before.moved_at != moved_at:
        before = Standstill(moved_at)
    quiet = now - moved_at
    if before.asked_at is None:
        moment = next_moment(state, before.done)
        if quiet < moment - (LEAD_WITH_NETWORK if state.tries_network else LEAD):
            return Wait()
        return Examine(replace(before, asked_at=now, asked_for=moment))
    all_answered = all(each.examined_at >= before.asked_at for each in live(state))
    if quiet < before.asked_for or not (all_answered or now - before.asked_at > ANSWER_TIMEOUT):
        return Wait()
    return judge(state, Standstill(moved_at, done=before.asked_for), quiet)


def judge(state: RunState, standstill: Standstill, quiet: float) -> Decision:
    diagnosis = diagnose(
        *(find_activities(state), state.find_network_problem()),
        *(state.programs.find_missing(), find_stalled_connections(state)),
    )
    hang = hang_verdict(diagnosis, quiet, [host.name for host in state.hosts], state.logs, state.stacks)
    if quiet >= limit_of(diagnosis, state):
        return End(hang)
    if standstill.done >= TELL_AFTER and is_doubling(standstill.done) and is_worth_telling(state):
        return Tell(standstill, quiet, tuple(tell(diagnosis, quiet)), hang if diagnosis.is_known else None)
    return Tell(standstill, quiet)


def limit_of(diagnosis: Diagnosis, state: RunState) -> float:
    """That of the phase in which the culprits are; where nobody is one, the longest of all."""
    if diagnosis.cause is Doing.LEFT and all(each.doing is Doing.WAITING for each in diagnosis.others):
        return min(LEFT_TIMEOUT, limit_of_phase("step", state))
    if diagnosis.cause is Doing.STOPPED:
        return limit_of_phase("step", state)  # whatever it was doing, it does not go on
    if not diagnosis.is_known and not state.hang_timeout.is_given and any(map(is_busy, diagnosis.others)):
        return math.inf  # it may be a long evaluation: nobody has said how long is too long
    phases = {each.phase for each in (diagnosis.culprits or diagnosis.others) if each.doing is not Doing.LEFT}
    return max(limit_of_phase(phase, state) for phase in phases or {"step"})


def limit_of_phase(phase: str, state: RunState) -> float:
    return find_limit(phase, state.hang_timeout, all(each.is_kept for each in state.progress.values()))


def next_moment(state: RunState, done: float) -> float:
    """The first of all moments that have not been dealt with yet."""
    moments = {limit_of_phase(each.phase, state) for each in live(state)} | {limit_of_phase("step", state)}
    if any(code == 0 for code in state.exits.values()) or any(each.phase == "leaving" for each in live(state)):
        moments.add(LEFT_TIMEOUT)
    told = TELL_AFTER
    while told <= done:
        told *= 2
    moments.add(told)
    return min(moment for moment in moments if moment > done)


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
