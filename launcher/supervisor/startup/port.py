"""The coordinator's port: the first host holds it, the others try whether they reach it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.startup.coordinator import Coordinator
from hostmesh.launcher.supervisor.state.host import Answer, HostState, Phase
from hostmesh.launcher.supervisor.state.run_state import RunState


class CoordinatorPort:
    """Among the hosts that take part, in a check among all; `answer` takes a host's answer about it."""

    def __init__(
        self,
        cluster: Cluster,
        state: RunState,
        channels: Mapping[int, Channel],
        answer: Callable[[HostState, Answer], None],
        is_check: bool,
    ) -> None:
        self._cluster, self._state, self._channels = cluster, state, channels
        self._answer, self._is_check = answer, is_check
        self._tried: list[tuple[int, int]] = []  # the hosts, and their lives, that have tried it
        self.coordinator = self._begin()

    @property
    def _hosts(self) -> Sequence[HostState]:
        return self._state.hosts if self._is_check else self._state.members

    @property
    def first(self) -> HostState:
        return self._hosts[0]

    @property
    def is_lost(self) -> bool:
        """There is no host to hold it."""
        return self.first.is_gone or self.first.phase is Phase.REFUSED

    def _begin(self) -> Coordinator:
        return Coordinator(self._cluster, [host.number for host in self._hosts])

    def reserve(self) -> None:
        self._order(self.first, self.coordinator.reserve(self.first.addresses))

    def assemble(self) -> None:
        """On a host that may be another than before. Where all hosts are the same, they have reached it already."""
        before = self._tried
        self.note_tried()
        if before == self._tried and self.coordinator.place is not None:
            self._order(self.first, self.coordinator.renew())
        else:
            self.coordinator = self._begin()
            self.reserve()

    def note_tried(self) -> None:
        self._tried = [(host.number, host.life) for host in self._hosts]

    def note_reserved(self, host: HostState, ports: dict[str, int]) -> None:
        if host is not self.first:
            return  # another one has its seat by now
        self.coordinator.note_reserved(ports)
        is_later = self._state.is_assembling and not self.coordinator.is_chosen
        for other in self._hosts[1:]:
            if is_later or other.phase is Phase.PREPARING:
                self.try_from(other)
        self.note_held()

    def note_held(self) -> None:
        if self.coordinator.is_reserved and self.first.phase is Phase.PREPARING:
            self._answer(self.first, Answer.PORT)

    def try_from(self, host: HostState) -> None:
        if (order := self.coordinator.reach()) is not None:
            self._order(host, order)

    def note_reached(self, host: HostState, problems: dict[str, str | None]) -> None:
        self.coordinator.note_reached(host.number, problems)
        host.has_tried_port = True
        self._answer(host, Answer.PORT)

    def _order(self, host: HostState, order: wire.Reserve | wire.Reach) -> None:
        host.asked.add(type(order))
        self._channels[host.number].send(order)
