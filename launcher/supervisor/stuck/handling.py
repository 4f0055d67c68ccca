"""What is done about a run that stands still, and goes on: agents are asked, the user is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.decisions import Examine, Tell, TryNetwork
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.policy import LOOK_EVERY
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.run_state import RunState

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.stuck.stragglers import Stragglers


class HangWatch:
    """What it needs it imports when processes run: until then a start must not wait for that."""

    def __init__(self, cluster: Cluster, records: Records, channels: Mapping[int, Channel]) -> None:
        self._cluster, self._records, self._channels = cluster, records, channels
        self._stragglers: Stragglers | None = None

    def look(self, state: RunState, now: float) -> None:
        """While the run goes on: who holds the others up, and how far is the trial of the network?"""
        if not state.progress or now - state.looked_at < LOOK_EVERY:
            return
        state.looked_at = now
        self._name_straggler(state, now)
        self._go_on_trying(state)

    def act(self, decision: Examine | Tell | TryNetwork, state: RunState, now: float) -> None:
        match decision:
            case Examine(standstill):
                state.standstill = standstill
                for host in state.with_agent:
                    self._channels[host.number].send(wire.Examine())
                if state.tries_network:
                    self._try_network(state, now)
            case Tell(standstill):
                state.standstill = standstill
                self._tell(decision, state)
            case TryNetwork():
                self._try_network(state, now)

    def _tell(self, told: Tell, state: RunState) -> None:
        if told.lines:
            self._records.tell("standing still", seconds=round(told.seconds, 1), told=list(told.lines[1:]))
        for line in told.lines:
            self._records.note(f"launch: {line}")
        if told.hang is not None:
            state.hang, state.hang_since = told.hang, state.moved_at

    def _try_network(self, state: RunState, now: float) -> None:
        """Let all agents listen, so that each can try the others."""
        from hostmesh.launcher.supervisor.stuck.network import NetworkTrial, find_addresses

        own = {host.number: host.addresses for host in state.members if host.has_agent}
        inner = {number: host.internal_address for number, host in enumerate(self._cluster.hosts)}
        given = {number: address for number, address in inner.items() if address is not None}
        coordinator = None if 0 in state.exits else state.coordinator  # which is gone with process 0
        state.network = NetworkTrial(find_addresses(own, given), coordinator, now)
        for number in own:
            self._channels[number].send(wire.Listen())

    def _go_on_trying(self, state: RunState) -> None:
        """Once all agents listen."""
        trial = state.network
        if trial is None or not trial.is_ready:
            return
        trial.is_asked = True
        services = [trial.coordinator] if trial.coordinator is not None else []
        for host in (each for each in state.members if each.has_agent):
            self._channels[host.number].send(wire.Connect(trial.targets_for(host.number), services))

    def _name_straggler(self, state: RunState, now: float) -> None:
        if self._stragglers is None:
            from hostmesh.launcher.supervisor.stuck.stragglers import Stragglers

            self._stragglers = Stragglers()
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
