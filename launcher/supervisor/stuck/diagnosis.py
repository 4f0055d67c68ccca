"""Who holds the others up, and how sure that is; pure. Where nobody can be singled out, nobody is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from hostmesh.launcher.agent.observing.native import IDLE
from hostmesh.launcher.supervisor.blame.kinds import CERTAIN, LIKELY, UNKNOWN
from hostmesh.launcher.supervisor.programs.disagreement import Missing
from hostmesh.launcher.supervisor.stuck.activity import Activity, Doing
from hostmesh.launcher.supervisor.stuck.connections import UNACKNOWLEDGED, Stalled
from hostmesh.launcher.supervisor.stuck.network import NetworkProblem
from hostmesh.launcher.words import name_processes

# They explain why others wait, in this order: what comes first explains what follows.
STRONGEST = (Doing.STOPPED, Doing.DISK, Doing.NOT_JOINED)
# What a process does while others wait for it.
HOLDING = frozenset(
    {
        *(Doing.COMPILING, Doing.LOADING, Doing.SAVING, Doing.PROGRAM, Doing.CALLBACK),
        *(Doing.SLEEPING, Doing.COMPUTING, Doing.DISK),
    }
)


@dataclass(frozen=True)
class Diagnosis:
    """`culprits` hold the others up, and are empty where nobody can be singled out."""

    culprits: tuple[Activity, ...]
    others: tuple[Activity, ...]
    sure: str
    network: NetworkProblem | None = None

    @property
    def is_known(self) -> bool:
        """Somebody, or something, is to blame."""
        return bool(self.culprits) or self.network is not None

    @property
    def cause(self) -> Doing | None:
        return self.culprits[0].doing if self.culprits else None


def diagnose(
    activities: Sequence[Activity],
    network: NetworkProblem | None = None,
    missing: Missing | None = None,
    stalled: Stalled | None = None,
) -> Diagnosis:
    """A program that some processes lack (`missing`) is blamed before processes that have left only if it communicates:
    then it may have met another program of theirs, and let them leave too early.

    A network that is broken is blamed only if no process is: firewalls close much that no run needs.
    """
    for doing in STRONGEST:
        found = [each for each in activities if each.doing is doing]
        if found and len(found) < len(activities):
            return _blame(found, activities, CERTAIN)
    waiting = [each for each in activities if each.doing is Doing.WAITING]
    holding = [each for each in activities if each.doing in HOLDING]
    left = [each for each in activities if each.doing is Doing.LEFT]
    other_program = find_other_program(activities, missing) if missing is not None and not holding else []
    have_left = bool({each.process_id for each in left} & {each.process_id for each in other_program})
    if other_program and not have_left and missing is not None and missing.communicates:
        return _blame(other_program, activities, LIKELY)
    if left and len(left) < len(activities) and not holding:
        return _blame(left, activities, CERTAIN)
    if holding and (waiting or left):  # who has left waits for the others to do so
        return _blame(holding, activities, LIKELY)
    working = [each for each in activities if each.doing is Doing.WORKING]
    if working and waiting and all((each.cores or 0.0) < IDLE for each in waiting):
        return _blame(working, activities, LIKELY)
    if other_program:
        return _blame(other_program, activities, LIKELY)
    if network is not None:
        return Diagnosis((), tuple(activities), LIKELY, network)
    if stalled is not None:
        return _blame_stalled(stalled, activities)
    if not holding and (apart := find_minority(activities, lambda each: (each.step, each.place))):
        return _blame(apart, activities, LIKELY)
    return Diagnosis((), tuple(activities), UNKNOWN)


def find_minority(activities: Sequence[Activity], key: Callable[[Activity], Hashable]) -> list[Activity]:
    """Those who are elsewhere than most: there must be one place where more than half of them are."""
    groups: dict[Hashable, list[Activity]] = defaultdict(list)
    for each in activities:
        groups[key(each)].append(each)
    largest = max(groups.values(), key=len, default=[])
    if len(groups) < 2 or 2 * len(largest) <= len(activities) or len(activities) < 3:
        return []
    return [each for each in activities if each not in largest]


def find_other_program(activities: Sequence[Activity], missing: Missing) -> list[Activity]:
    """Those who run what most others do not have, or who do not have what most others run."""
    side, lacking = missing.side, missing.lacking
    what = f"{side.name}{f' ({side.place})' if side.place else ''}"
    if 2 * len(lacking) > len(activities):
        few, text = side.processes, f"runs another program than the others: {what}"
    elif 2 * len(side.processes) > len(activities):
        few, text = lacking, f"runs another program than the others, who are in {what}"
    else:
        return []
    return [replace(each, doing=Doing.OTHER_PROGRAM, text=text) for each in activities if each.process_id in few]


def _blame_stalled(stalled: Stalled, activities: Sequence[Activity]) -> Diagnosis:
    if stalled.process is None:
        problem = stalled.describe({each.process_id: each.host for each in activities})
        return Diagnosis((), tuple(activities), LIKELY, problem)
    partners = name_processes(stalled.partners_of(stalled.process))
    text = f"is cut off from {partners}: {UNACKNOWLEDGED}"
    apart = [replace(each, doing=Doing.CUT_OFF, text=text) for each in activities if each.process_id == stalled.process]
    return _blame(apart, activities, LIKELY)


def _blame(culprits: Sequence[Activity], activities: Sequence[Activity], sure: str) -> Diagnosis:
    blamed = {each.process_id for each in culprits}
    return Diagnosis(tuple(culprits), tuple(each for each in activities if each.process_id not in blamed), sure)
