"""Which hosts take part in an attempt: before it starts each seat needs a host, and a run may shrink and grow; pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hostmesh.launcher.supervisor.blame import missing as verdicts
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.decisions import Assemble, Decision, End, Seat, Spawn, Wait
from hostmesh.launcher.supervisor.state.host import HostState, Phase
from hostmesh.launcher.supervisor.state.run_hosts import Seats
from hostmesh.launcher.supervisor.state.run_state import RunState

# Seconds that the other hosts get to answer once one has refused.
REFUSED_TIMEOUT = 10.0


def decide_start(state: RunState, now: float) -> Decision:
    if state.unsendable is not None:
        return End(verdicts.unsendable(state.unsendable))
    if state.starts_together and state.refused:
        return decide_refused(state, now)
    if (decision := decide_seats(state, now)) is not None:
        return decision
    if not state.starts_together and not state.is_assembling and state.are_ready:
        return Assemble()
    return Spawn() if state.can_spawn(now) else Wait()


def decide_refused(state: RunState, now: float) -> Decision:
    """Every host's answer is waited for, so that all problems are told at once; but not for ever."""
    if any(host.phase is Phase.UNREACHABLE for host in state.members) and state.all_have_answered:
        return End(blame_missing(state))
    others_may_answer = any(host.waiting_for for host in state.members)
    is_late = now - min(host.refused_at for host in state.refused) > REFUSED_TIMEOUT
    return Wait() if others_may_answer and not is_late else End(blame_missing(state))


def decide_seats(state: RunState, now: float) -> Decision | None:
    """None where every seat has a host that is ready, or gets ready."""
    missing = find_missing(state)
    if not missing and not state.is_short and not state.avoided:
        return None  # so it is nearly always, at every event of a start
    is_awaited = now < state.rejoin_until and any(not host.refusals for host in missing)
    if missing and state.starts_together and others_connect(state):
        return Wait()
    if not (is_awaited and state.rejoin is not None):
        seats = fill_seats(state, {host.number for host in missing} | find_avoided(state))
        if seats != state.seats:
            return Seat(seats)
    if not missing:
        return None
    if is_awaited:
        return Wait()
    return shrink(state, missing)


def others_connect(state: RunState) -> bool:
    """Hosts from which an answer may come: all problems are told at once; but a loss is waited for by spares alone."""
    hosts = state.hosts if not state.losses else [host for host in state.hosts if not host.has_seat]
    return any(host.phase is Phase.CONNECTING for host in hosts)


def shrink(state: RunState, missing: Sequence[HostState]) -> Decision:
    numbers = {host.number for host in missing}
    left: Seats = tuple(None if number in numbers else number for number in state.seats)
    count = len(left) - left.count(None)
    if state.least_seats is None or count < state.least_seats:
        return End(blame_missing(state))
    return Seat(left, tuple(host.name for host in missing))


def find_missing(state: RunState) -> list[HostState]:
    """In the order of their seats."""
    found = [host for host in state.troubled if host.has_seat and is_missing(host, state)]
    return sorted(found, key=lambda host: host.process_ids)


def is_missing(host: HostState, state: RunState) -> bool:
    """It has no agent any more, or, when the others are ready already, cannot take part."""
    return host.is_gone or host.is_to_come_back or (host.phase is Phase.REFUSED and not state.starts_together)


def find_avoided(state: RunState) -> set[int]:
    """Seated hosts that are to make way for others."""
    others = [host for host in state.bench if host.number not in state.avoided and host.phase is Phase.READY]
    return {number for number in state.seats if number in state.avoided} if others else set()


def fill_seats(state: RunState, vacant: Collection[int]) -> Seats:
    """Seats whose hosts are `vacant` go to hosts of the bench, as far as there are any. An empty one, which the run
    can do without, goes only to a host that is ready. A host whose seat it once was comes first."""
    bench = [host.number for host in state.bench]
    ready = {host.number for host in state.bench if host.phase is Phase.READY}
    seats = list(state.seats)
    for index, number in enumerate(seats):
        if number is not None and number not in vacant:
            continue
        usable = [each for each in bench if number is not None or each in ready]
        if number is not None and number in state.avoided:
            usable = [each for each in usable if each not in state.avoided]
        if usable:
            seats[index] = chosen = index if index in usable else usable[0]
            bench.remove(chosen)
    return tuple(seats)


def decide_growth(state: RunState) -> Decision:
    """A run that has shrunk takes in a host that is there again once a save is complete, which loses nothing."""
    if not state.is_short:
        return Wait()
    back = [host for host in state.bench if host.phase is Phase.READY and host.ready_at <= state.saved_at]
    return End(verdicts.grows([host.name for host in back])) if back else Wait()


def blame_missing(state: RunState) -> Verdict:
    """Why the hosts that are there are not enough."""
    refusals = {host.name: host.refusals for host in state.refused}
    unreachable = {host.name: host.problem for host in state.members if host.phase is Phase.UNREACHABLE}
    back = [host for host in find_missing(state) if host.life > 1]
    if state.losses:
        return state.losses[0]
    if back and state.last_loss is not None:
        problems = [*unreachable.values(), *(problem for each in refusals.values() for problem in each)]
        return verdicts.not_back(state.last_loss, back[0].name, problems)
    if unreachable:
        return verdicts.unreachable(len(state.members), unreachable, refusals)
    return verdicts.refused(refusals)
