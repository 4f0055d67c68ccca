"""The decisions that the policy of a run comes to."""

from __future__ import annotations

from dataclasses import dataclass

from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.state.run_hosts import Seats


@dataclass(frozen=True)
class Wait:
    """Nothing is to be done."""


@dataclass(frozen=True)
class Spawn:
    """Start all processes."""


@dataclass(frozen=True)
class AskToStop:
    """Send all processes this signal, unless that has been done."""

    signal: int


@dataclass(frozen=True)
class End:
    """Stop everything, and tell this verdict."""

    verdict: Verdict


@dataclass(frozen=True)
class TryNetwork:
    """Let the hosts try whether they can reach each other."""


@dataclass(frozen=True)
class AskRows:
    """Let processes read rows again that they do not hold alike."""


@dataclass(frozen=True)
class Seat:
    """Other hosts take part from now on; nothing runs."""

    seats: Seats
    gone: tuple[str, ...] = ()  # hosts whose seats are given up for now, by name


@dataclass(frozen=True)
class Assemble:
    """All hosts are ready: let them agree on the coordinator's port."""


Decision = Wait | Spawn | AskToStop | TryNetwork | AskRows | Seat | Assemble | End
