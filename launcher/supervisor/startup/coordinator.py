"""Where process 0 can be reached: addresses its host can bind, tried from every other host."""

from __future__ import annotations

from collections.abc import Sequence

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.planning.plan import hint_coordinator
from hostmesh.launcher.protocol import wire


class Coordinator:
    """Asks the first host to hold ports, the others to try them, and chooses an address that all of them reach.

    `hosts` are those that take part, by their numbers in the cluster.
    """

    def __init__(self, cluster: Cluster, hosts: Sequence[int]) -> None:
        self._cluster = cluster
        self._first, *self._others = hosts
        self._ports: dict[str, int] | None = None
        self._tried: dict[int, dict[str, str | None]] = {}

    @property
    def needs_trial(self) -> bool:
        """One host needs no trial; local processes share theirs."""
        return bool(self._others) and self._cluster.transport != "local"

    def reserve(self, interfaces: Sequence[str]) -> wire.Reserve:
        """The first host's own addresses count where the cluster file does not say which one to use."""
        first = self._cluster.hosts[self._first]
        candidates = [hint_coordinator(self._cluster, first)]
        if self._cluster.transport != "local" and first.internal_address is None:
            candidates += interfaces
        return wire.Reserve(candidates, listen=self.needs_trial)

    def renew(self) -> wire.Reserve:
        """For another attempt on the same hosts: the same address, which all of them have reached, and another port."""
        assert self.place is not None
        address, _ = self.place
        self._ports = None
        return wire.Reserve([address], listen=False)

    def note_reserved(self, ports: dict[str, int]) -> None:
        self._ports = ports

    @property
    def is_reserved(self) -> bool:
        return self._ports is not None

    def reach(self) -> wire.Reach | None:
        """What the other hosts are to try; None before it is known, or when nothing is to be tried."""
        return wire.Reach(list(self._ports.items())) if self._ports and self.needs_trial else None

    def note_reached(self, host: int, problems: dict[str, str | None]) -> None:
        self._tried[host] = problems

    @property
    def is_chosen(self) -> bool:
        return self._ports is not None and (not self.needs_trial or self._tried.keys() >= set(self._others))

    @property
    def place(self) -> tuple[str, int] | None:
        """The first address that everybody reached."""
        if not self.is_chosen:
            return None
        assert self._ports is not None
        good = (at for at in self._ports.items() if not any(self._tell(at[0], host) for host in self._tried))
        return next(good, None)

    def problems(self) -> dict[int, str]:
        """For each host that could not reach the first one: what happened at the address that most of them reached."""
        if not self.is_chosen or self.place is not None:
            return {}
        assert self._ports is not None
        best = min(self._ports, key=lambda address: sum(bool(self._tell(address, host)) for host in self._tried))
        first = self._cluster.hosts[self._first].address
        return {
            host: f"cannot reach the coordinator on {first} at {best}:{self._ports[best]}: {problem}"
            for host in sorted(self._tried)
            if (problem := self._tell(best, host))
        }

    def _tell(self, address: str, host: int) -> str | None:
        """What went wrong between this host and this address."""
        return self._tried[host].get(address, "it was not tried")
