"""What is done about a run, by what is known of it; pure."""

from __future__ import annotations

import signal

from hostmesh.launcher.supervisor.blame import failures, verdict
from hostmesh.launcher.supervisor.blame.failures import Failure, crashed_alike
from hostmesh.launcher.supervisor.blame.others import Others, count_others
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.blame.waited_in_vain import given_up, network_broken
from hostmesh.launcher.supervisor.decisions import AskRows, AskToStop, Decision, End, TryNetwork, Wait
from hostmesh.launcher.supervisor.going_on.seats import decide_growth, decide_start
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.words import agree

# Looking at all processes takes its time, as there may be a thousand, and a decision is asked for at every event.
LOOK_EVERY = 0.2
# Seconds without movement after which it is worth while to load what a run that moves never needs.
WATCHED_AFTER = 2.0


def decide(state: RunState, now: float) -> Decision:
    decision = decide_by_events(state, now)
    return decide_hang(state, now) if isinstance(decision, Wait) else decision


def decide_hang(state: RunState, now: float) -> Decision:
    """Nothing has happened that asks for more: does anything move?"""
    if not state.progress or now - state.looked_at < LOOK_EVERY or now - state.moved_at < WATCHED_AFTER:
        return Wait()
    from hostmesh.launcher.supervisor.stuck.watch import decide_standstill

    return decide_standstill(state, now)


def decide_by_events(state: RunState, now: float) -> Decision:
    if state.interrupts:
        return decide_stop(state, now)
    if state.keep_going and state.spawned and not state.everyone_ended:
        return Wait()
    if state.was_preempted:
        return End(verdict.preempted(state.saved_step, state.warned))
    if state.nursery_death is not None:
        return End(state.nursery_death)
    if (told := decide_disagreement(state, now)) is not None:
        return told
    if (told := decide_rows(state, now)) is not None:
        return told
    if (told := decide_failure(state, now)) is not None:
        return told
    if state.awaits_word(now):
        return Wait()
    if not state.spawned:
        return decide_start(state, now)
    if state.losses:
        return End(blame_lost_host(state))
    if state.everyone_ended:
        return End(verdict.succeeded(state.num_processes, len(state.separate)))
    if state.save_seconds is not None and state.warned is not None:
        return AskToStop(signal.SIGTERM)
    return decide_growth(state)


def decide_disagreement(state: RunState, now: float) -> Decision | None:
    """Processes that compute different things may fail in the runtime, so this comes before failures. It does not come
    before an exception of the user's code, which is a cause by itself."""
    crashed = state.failures or state.crashes
    if not state.ends_at_disagreement or state.losses or crashed and state.has_own_cause:
        return None
    ended = range(state.num_processes) if crashed else state.exits.keys()
    found = state.find_disagreement(now, ended)
    if found is None:
        return None
    culprit = found.minority[0] if found.minority else None
    host = None if culprit is None else state.host_of(culprit).name
    return End(verdict.disagreement(found, culprit, host, state.failures, state.logs))


def decide_rows(state: RunState, now: float) -> Decision | None:
    """Rows that differ may make processes fail, so they are asked about first."""
    if state.guard is None or state.losses:
        return None
    from hostmesh.launcher.supervisor.guard.comparison import Pending

    gone = {*state.crashes, *(number for number, code in state.exits.items() if code != 0)}
    match state.guard.look(now, gone, state.everyone_ended):
        case None:
            return None
        case Pending.WAIT:
            return Wait()
        case Pending.ASK:
            return AskRows()
        case finding:
            culprit = finding.culprits[0] if finding.culprits else None
            host = None if culprit is None else state.host_of(culprit).name
            return End(
                verdict.wrong_rows(finding, lambda number: state.host_of(number).name, culprit, host, state.logs)
            )


def decide_failure(state: RunState, now: float) -> Decision | None:
    """A cause ends the run at once. Victims wait for one that may still become known; a lost host is such a cause."""
    if not (state.failures or state.crashes):
        return None
    culprit = failures.find_culprit(state.failures, now, state.everyone_ended)
    if culprit is not None and culprit.is_a_cause:
        return End(blame(culprit, state))
    more_may_come = not state.everyone_ended and (state.cause_is_leaving or state.a_host_is_quiet)
    if state.losses or more_may_come:
        return None
    if (told := decide_absent(state, now)) is not None:
        return told
    return End(blame(culprit, state)) if culprit is not None else None


def decide_absent(state: RunState, now: float) -> Decision | None:
    """Victims without a cause: has somebody left as if all were done, or does jax name one that still runs?"""
    victims = state.victims
    if not victims:
        return None
    if (hang := state.stood_still) is not None and all(victim.lost_a_peer for victim in victims):
        return End(given_up(hang, [victim.process_id for victim in victims]))
    if leaver := failures.find_leaver(state.early_leavers, victims, now, state.everyone_ended):
        return End(verdict.process_left(leaver, victims, state.logs))
    if (told := decide_network(state, min(victim.at for victim in victims), now)) is not None:
        return told
    named = failures.find_named(victims, set(range(state.num_processes)) - state.exits.keys())
    if named is None:
        return None
    if now - min(victim.at for victim in victims) < failures.NAMED_TIMEOUT:
        return Wait()
    return End(verdict.process_unheard(named, state.host_of(named).name, victims, state.logs))


def decide_network(state: RunState, began: float, now: float) -> Decision | None:
    """Processes have lost peers that still run: can their hosts reach each other?"""
    if not state.tries_network or state.everyone_ended or state.early_leavers or len(state.with_agent) < 2:
        return None
    trial = state.network
    if trial is None or trial.began < began:
        return TryNetwork()
    if not trial.is_over(now):
        return Wait()
    problem = state.find_network_problem()
    return (
        None
        if problem is None
        else End(network_broken(problem.text, [each.process_id for each in state.victims], state.logs))
    )


def decide_stop(state: RunState, now: float) -> Decision:
    """Somebody asked the launcher to stop: the processes get some time, a second request ends it."""
    may_wait = len(state.interrupts) == 1 and state.spawned
    if may_wait and state.save_seconds is not None and (trouble := find_trouble_with_saving(state)):
        return End(trouble)
    in_time = now - state.interrupted_at < state.stop_grace
    is_lost = bool(state.losses) and not state.keep_going
    if may_wait and in_time and not state.nobody_is_waited_for and not is_lost:
        return AskToStop(state.request)
    number, step = state.interrupts[0], state.saved_step
    if state.was_preempted and number == signal.SIGTERM:
        return End(verdict.preempted(step))
    own = [] if len(state.interrupts) > 1 else find_own_failures(state)
    return End(verdict.stopped_by(number, step, state.was_preempted, own, state.logs))


def find_own_failures(state: RunState) -> list[Failure]:
    """The first one first; a process that the request itself ended is none."""
    own = [f for f in state.failures if f.is_a_cause and not f.ended_as_asked]
    return sorted(own, key=lambda failure: failure.at)


def find_trouble_with_saving(state: RunState) -> Verdict | None:
    """In a run that goes on, what went wrong before the request is none."""
    causes = [f for f in find_own_failures(state) if f.process_id not in state.ended_before]
    if causes:
        return blame(causes[0], state)
    return state.losses[0] if state.losses and not state.keep_going else None


def blame(culprit: Failure, state: RunState) -> Verdict:
    others = state.num_processes - 1
    same = find_alike(culprit, state)
    if len(same) == others:
        # They are all the cause; the first of them that said something speaks for them.
        alike = [f for f in state.failures if f.resembles(culprit)]
        culprit = min(alike, key=lambda failure: (not failure.said, failure.process_id))
    lost = state.lost_processes if state.keep_going else set()
    became = Others(others, len(same), state.succeeded, len(lost), state.keep_going)
    well = {number for number, code in state.exits.items() if code == 0}
    victims = set(range(state.num_processes)) - {culprit.process_id} - same - lost - well
    told = verdict.process_failed(culprit, became, state.logs, state.steps.get(culprit.process_id), victims)
    return add_evidence(told, culprit, same, state)


def add_evidence(told: Verdict, culprit: Failure, same: set[int], state: RunState) -> Verdict:
    """What others say: that they lost a peer, or that they failed by themselves when nobody can say who was first."""
    others = [each for each in state.victims if each.process_id not in same | {culprit.process_id}]
    if lost := sum(each.lost_a_peer for each in others):
        told = verdict.with_evidence(told, f"{count_others(lost)} {agree('reports', lost)} a lost peer")
    rivals = [each for each in others if each.is_a_cause and each.may_precede(culprit)]
    if rivals and culprit.is_a_cause and not state.keep_going:
        told = verdict.less_sure(told, f"process {rivals[0].process_id} failed at the same time, in another way")
    return told


def blame_lost_host(state: RunState) -> Verdict:
    losses = state.losses
    if not (state.keep_going and state.spawned):
        return losses[0]
    lost = state.lost_processes
    elsewhere = Others(state.num_processes - len(lost), succeeded=state.succeeded, went_on=True)
    return verdict.with_others(losses[0], len(losses), lost, elsewhere)


def find_alike(culprit: Failure, state: RunState) -> set[int]:
    """Others that failed in the same way, also if they were killed on their way out."""
    alike = {failure.process_id for failure in state.failures if failure.resembles(culprit)}
    if culprit.crash is not None:
        alike |= {number for number, (_, crash) in state.crashes.items() if crashed_alike(culprit.crash, crash)}
    return {number for number in alike if number != culprit.process_id and state.exits.get(number) != 0}
