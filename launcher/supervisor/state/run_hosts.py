"""The hosts of a run: which of them take part, and what is wrong with the others."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from hostmesh.launcher.planning.plan import Process
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.state.host import HostState, Phase

# Seconds that a lost host is waited for where nobody has said, and how many losses a run survives.
REJOIN = 60.0
MAX_LOST = 100

Seats: TypeAlias = tuple[int | None, ...]


@dataclass
class RunHosts:
    """Hosts are in the order of the cluster file."""

    hosts: tuple[HostState, ...]
    _: KW_ONLY
    goes_on: bool = False  # the run, with other attempts
    starts_together: bool = True  # the hosts of the first attempt are made ready together; later ones, by themselves
    is_assembling: bool = False  # the coordinator's port of a later attempt is being agreed on
    coordinator: tuple[str, int] | None = None
    # Which hosts take part: by seat the number of its host, None where a run has shrunk; ids go by seats.
    seats: Seats = ()
    least_seats: int | None = None
    rejoin: float | None = None  # seconds that a lost host is waited for before a spare takes its seat
    rejoin_until: float = -math.inf
    times_lost: int = 0
    last_loss: Verdict | None = None
    avoided: frozenset[int] = frozenset()  # hosts that failed again and again: others are taken, where there are any

    def __post_init__(self) -> None:
        self.seats = self.seats or tuple(host.number for host in self.hosts)
        self._note_members()
        # Hosts that anything was ever wrong with, in the order in which it became known. The list is short, and a run
        # of a thousand hosts asks for it at every event.
        self.troubled = [host for host in self.hosts if host.refusals or host.problem or host.loss is not None]

    # Seats.

    @property
    def are_ready(self) -> bool:
        return all(host.phase is Phase.READY for host in self.members)

    @property
    def is_short(self) -> bool:
        """It goes on with fewer hosts than it has seats."""
        return len(self.members) < len(self.seats)

    @property
    def bench(self) -> list[HostState]:
        """Hosts without a seat that can take one: those that are ready first, and last those that are avoided."""
        usable = (Phase.GREETED, Phase.PREPARING, Phase.READY)
        found = [host for host in self.hosts if host.number not in self.seats and host.phase in usable]
        return sorted(found, key=lambda host: (host.number in self.avoided, host.phase is not Phase.READY))

    def seat(self, seats: Seats, processes: Collection[Process]) -> None:
        """These hosts take part from now on, with these processes; nothing of that has started."""
        ids: dict[int, list[int]] = {}
        for process in processes:
            ids.setdefault(process.host, []).append(process.process_id)
        for host in self.hosts:
            host.process_ids = tuple(ids.get(host.number, ()))
        self.seats, self.starts_together = seats, False
        self.coordinator, self.is_assembling = None, False
        self._note_members()

    def _note_members(self) -> None:
        self.members = [self.hosts[number] for number in self.seats if number is not None]
        self._by_process = {process_id: host for host in self.members for process_id in host.process_ids}
        self.num_processes = len(self._by_process)

    def connect_again(self, host: HostState) -> None:
        """For a host that is gone; what was wrong with it is forgotten."""
        host.begin_again()

    # Hosts.

    @property
    def refused(self) -> list[HostState]:
        found = (host for host in self.troubled if host.refusals and host.has_seat)
        return sorted(found, key=lambda host: host.number)

    @property
    def unreachable(self) -> list[HostState]:
        found = (host for host in self.troubled if host.phase is Phase.UNREACHABLE)
        return sorted(found, key=lambda host: host.number)

    @property
    def losses(self) -> list[Verdict]:
        """Of hosts that had an agent and a seat, the first one first."""
        return [host.loss for host in self.troubled if host.loss is not None and host.has_seat]

    @property
    def all_have_answered(self) -> bool:
        """Every host has an agent, or cannot have one."""
        return all(host.phase is not Phase.CONNECTING for host in self.hosts)

    @property
    def warned(self) -> str | None:
        """The name of a host that takes part and will be taken away soon."""
        return next((host.name for host in self.troubled if host.notice and host.has_seat), None)

    def awaits_word(self, now: float) -> bool:
        """Of an engine, about a host that took part."""
        return any(host.explained_by > now for host in self.troubled if host.has_seat)

    @property
    def a_host_is_quiet(self) -> bool:
        return any(host.is_quiet for host in self.members)

    @property
    def with_agent(self) -> list[HostState]:
        return [host for host in self.hosts if host.has_agent]

    def host_of(self, process_id: int) -> HostState:
        return self._by_process[process_id]

    def refuse(self, host: HostState, problem: str, now: float) -> None:
        """A host may have several reasons, and may be lost after it has refused."""
        if host.phase in (Phase.GREETED, Phase.PREPARING, Phase.READY):
            host.phase = Phase.REFUSED
        host.refusals.append(problem)
        host.refused_at = host.refused_at or now
        host.owed.clear()
        host.waiting_for = ""
        self._note_trouble(host)

    def warn(self, host: HostState, reason: str) -> None:
        """It will be taken away soon."""
        host.notice = reason
        self._note_trouble(host)

    def give_up(self, host: HostState, problem: str) -> None:
        host.phase, host.problem, host.waiting_for = Phase.UNREACHABLE, problem, ""
        self._note_trouble(host)

    def lose(self, host: HostState, verdict: Verdict, now: float) -> None:
        """The agent of a host is gone. In a run that goes on it is waited for, unless hosts have come and gone for too
        often."""
        host.phase, host.loss = Phase.LOST, verdict
        if host.has_seat:
            self.times_lost, self.last_loss = self.times_lost + 1, verdict
            if self.goes_on and self.times_lost <= MAX_LOST:
                self.rejoin_until = now + (REJOIN if self.rejoin is None else self.rejoin)
        if host in self.troubled:
            self.troubled.remove(host)
        self._note_trouble(host)

    def _note_trouble(self, host: HostState) -> None:
        if host not in self.troubled:
            self.troubled.append(host)
