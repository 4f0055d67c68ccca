"""The decisions that the policy of a run comes to."""

from __future__ import annotations

from dataclasses import dataclass

from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.state.run_hosts import Seats
from hostmesh.launcher.supervisor.state.standstill import Standstill


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
class Examine:
    """Ask all agents where their processes are, which do not move."""

    standstill: Standstill


@dataclass(frozen=True)
class Tell:
    """The processes have been examined: say what is waited for, where there are `lines`; nothing ends."""

    standstill: Standstill
    seconds: float
    lines: tuple[str, ...] = ()
    hang: Verdict | None = None  # what would be said if the run ended now


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


Decision = Wait | Spawn | AskToStop | Examine | Tell | TryNetwork | AskRows | Seat | Assemble | End
