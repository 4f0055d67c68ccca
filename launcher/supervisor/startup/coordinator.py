"""Where process 0 can be reached: addresses its host can bind, tried from every other host."""

from __future__ import annotations

from collections.abc import Sequence

from hostmesh.launcher import wire
from hostmesh.launcher.plan import Plan


class Coordinator:
    """Asks the first host to hold ports, the others to try them, and settles on an address all of them reach."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._hosts = [host.address for host in plan.cluster.hosts]
        self._ports: dict[str, int] | None = None
        self._tried: dict[int, dict[str, str | None]] = {}

    @property
    def needs_trial(self) -> bool:
        """One host needs no trial; local processes share theirs."""
        return len(self._hosts) > 1 and self._plan.cluster.transport != "local"

    def reserve(self, interfaces: Sequence[str]) -> wire.Reserve:
        """The first host's own addresses count where the cluster file does not say which one to use."""
        candidates = [self._plan.coordinator_hint]
        if self._plan.cluster.transport != "local" and self._plan.cluster.hosts[0].internal_address is None:
            candidates += interfaces
        return wire.Reserve(candidates, listen=self.needs_trial)

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
    def is_settled(self) -> bool:
        return self._ports is not None and (not self.needs_trial or len(self._tried) == len(self._hosts) - 1)

    @property
    def place(self) -> tuple[str, int] | None:
        """The first address that everybody reached."""
        if not self.is_settled:
            return None
        assert self._ports is not None
        good = (at for at in self._ports.items() if not any(self._tell(at[0], host) for host in self._tried))
        return next(good, None)

    def problems(self) -> dict[int, str]:
        """For each host that could not reach the first one: what happened at the address that most of them reached."""
        if not self.is_settled or self.place is not None:
            return {}
        assert self._ports is not None
        best = min(self._ports, key=lambda address: sum(bool(self._tell(address, host)) for host in self._tried))
        return {
            host: f"cannot reach the coordinator on {self._hosts[0]} at {best}:{self._ports[best]}: {problem}"
            for host in sorted(self._tried)
            if (problem := self._tell(best, host))
        }

    def _tell(self, address: str, host: int) -> str | None:
        """What went wrong between this host and this address."""
        return self._tried[host].get(address, "it was not tried")
