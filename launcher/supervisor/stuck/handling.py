"""What is done about a run that stands still: agents are asked, the user is told, the run is ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hostmesh.launcher import wire
from hostmesh.launcher.cluster.model import HangTimeout
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.run_state import RunState
from hostmesh.launcher.supervisor.stuck.stragglers import Stragglers

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.stuck.watch import Watch
    from hostmesh.launcher.supervisor.verdict import Verdict

# Seconds without movement after which it is worth while to load what a run that moves never needs.
WATCHED_AFTER = 2.0


class HangWatch:
    def __init__(self, timeout: HangTimeout, records: Records, channels: Mapping[int, Channel]) -> None:
        self._timeout, self._records, self._channels = timeout, records, channels
        self._watch: Watch | None = None
        self._stragglers = Stragglers()

    def look(self, state: RunState, now: float) -> Verdict | None:
        """A verdict ends the run."""
        self._name_straggler(state, now)
        if not state.progress or now - state.moved_at < WATCHED_AFTER:
            return None
        from hostmesh.launcher.supervisor.stuck.telling import hang_verdict, tell
        from hostmesh.launcher.supervisor.stuck.watch import EndHang, Examine, Tell, Watch

        self._watch = self._watch or Watch(self._timeout)
        match self._watch.look(state, now):
            case Examine():
                for host in state.with_agent:
                    self._channels[host.number].send(wire.Examine())
            case Tell(diagnosis, seconds):
                told = tell(diagnosis, seconds)
                self._records.tell("standing still", seconds=round(seconds, 1), told=told[1:])
                for line in told:
                    self._records.note(f"launch: {line}")
            case EndHang(diagnosis, seconds):
                return hang_verdict(diagnosis, seconds, state.logs, f"{self._records.run.stacks}/")
        return None

    def _name_straggler(self, state: RunState, now: float) -> None:
        if (found := self._stragglers.look(state.progress, now)) is None:
            return
        host, share = state.host_of(found.process_id).name, round(100 * found.held_up)
        self._records.note(
            f"launch: process {found.process_id} on {host} holds the others up: they wait {share} % of the time for "
            f"it, which it spends on {found.cause}; a step takes {found.step_seconds:.3g} s"
        )
        self._records.tell(
            "straggler",
            process_id=found.process_id,
            host=host,
            held_up=round(found.held_up, 3),
            loading=round(found.loading, 3),
            cause=found.cause,
            step=state.progress[found.process_id].step,
            step_seconds=round(found.step_seconds, 4),
        )
