"""The values that checks read and give: what is known of the hosts before a run, and findings about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hostmesh.launcher.cluster.host_names import join_names
from hostmesh.launcher.planning.accelerators import DEVICE_NAMES, split_platforms, uses_kind

Level = Literal["ok", "warning", "failure"]
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """What a check says about one host, also when all is well; `cell` is its short form for a table."""

    host: int
    check: str
    level: Level
    message: str
    fix: str = ""
    cell: str = ""

    @property
    def text(self) -> str:
        return f"{self.message} — {self.fix}" if self.fix else self.message


@dataclass(frozen=True)
class HostReports:
    """All that is known of the hosts. Hosts are numbers; `facts` are what agent/inspect finds out, or some of that.

    `offsets` are seconds that a host's clock is ahead of this machine's, and how far that may be wrong; `ports` is what
    went wrong with connecting to the coordinator, None where nothing did; `processes` is how many share a host's GPUs
    evenly; `syncs` says that a run brings the code, and `code` is the hash of what it would bring.
    """

    hosts: Sequence[str]
    facts: Mapping[int, Facts]
    unreachable: Mapping[int, str] = field(default_factory=dict)
    offsets: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    ports: Mapping[int, str | None] = field(default_factory=dict)
    processes: Sequence[int] = ()
    coordinator: str | None = None
    syncs: bool = False
    code: str | None = None

    def having(self, name: str) -> Iterator[tuple[int, Any]]:
        """Hosts that know this fact about themselves."""
        for host, facts in sorted(self.facts.items()):
            if (fact := facts.get(name)) is not None and not problem_of(fact):
                yield host, fact

    def name(self, hosts: Sequence[int]) -> str:
        return join_names([self.hosts[host] for host in hosts])

    def platforms(self, host: int) -> list[str]:
        return split_platforms(str(self.facts[host].get("platforms") or ""))

    def devices(self, host: int) -> dict[str, int]:
        """How many devices of each kind jax would use there."""
        counted, platforms = self.facts[host].get("devices") or {}, self.platforms(host)
        return {kind: counted[kind] for kind in DEVICE_NAMES if counted.get(kind) and uses_kind(kind, platforms)}


def measure_offset(there: float, asked: float, answered: float) -> tuple[float, float]:
    """How far a clock is ahead that showed `there` between question and answer, and how wrong that may be."""
    return there - (asked + answered) / 2, (answered - asked) / 2


def problem_of(fact: Any) -> str | None:
    return fact.get("problem") if isinstance(fact, Mapping) else None
