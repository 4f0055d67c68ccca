"""What a run is waiting for, in words for its user."""

from __future__ import annotations

from collections.abc import Sequence

from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.words import list_some

MAX_NAMED = 4
HINT_EVERY = 10.0


class Hinting:
    """Nobody should wonder what a run is waiting for."""

    def __init__(self, records: Records, inbox: Inbox) -> None:
        self._records, self._inbox = records, inbox
        self._began = self._told_at = inbox.now()

    def look(self, state: RunState) -> None:
        now = self._inbox.now()
        if now - self._told_at < HINT_EVERY:
            return
        self._told_at = now
        for hint in find_hints(state):
            self._records.note(f"launch: after {now - self._began:.0f} s {hint}")


def find_hints(state: RunState) -> list[str]:
    """Nothing for a run that simply works."""
    if not state.spawned:
        return _find_unready(state)
    if left := sorted(failure.process_id for failure in state.failures if failure.was_preempted):
        return [f"waiting for the others to leave as well as {' '.join(map(str, left))} (preempted)"]
    begun = state.started | state.exits.keys()
    if late := [host.name for host in state.members if begun.isdisjoint(host.process_ids)]:
        return [f"waiting for {name_some(late)} to start processes"]
    if state.joining - state.joined:
        missing = (process_id for process_id in range(state.num_processes) if process_id not in state.joining)
        return [_tell_missing(process_id, state) for process_id in missing]
    return []


def _find_unready(state: RunState) -> list[str]:
    """`waiting for host-2, host-3 to be set up`."""
    waits = dict.fromkeys(host.waiting_for for host in state.members if host.waiting_for)
    return [
        f"waiting for {name_some([host.name for host in state.members if host.waiting_for == wait])} {wait}"
        for wait in waits
    ]


def _tell_missing(process_id: int, state: RunState) -> str:
    what = "ended without calling" if process_id in state.exits else "has not called"
    return f"process {process_id} {what} jax.distributed.initialize; others wait"


def name_some(hosts: Sequence[str]) -> str:
    return list_some(hosts, MAX_NAMED, MAX_NAMED - 1, "other hosts")
