"""What is known of the hosts before a run, and what is found in it: the values that checks go between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hostmesh.launcher.cluster.host_names import join_names

Level = Literal["ok", "warning", "failure"]
Facts = Mapping[str, Any]

# As JAX_PLATFORMS names them, and as people do.
KINDS = {"tpu": "TPU", "cuda": "GPU", "rocm": "AMD GPU"}
GPUS = ("cuda", "rocm")
MAX_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """`cell` is its short form for a table."""

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
    """All that is known of the hosts. Hosts are numbers; facts are those of agent/inspect.py, or some of them.

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

    def wants(self, kind: str, host: int) -> bool:
        """Whether jax would use such devices there; without JAX_PLATFORMS it takes what it finds."""
        platforms = self.platforms(host)
        return not platforms or kind in platforms or (kind in GPUS and "gpu" in platforms)

    def platforms(self, host: int) -> list[str]:
        return [name for name in str(self.facts[host].get("platforms") or "").split(",") if name]

    def devices(self, host: int) -> dict[str, int]:
        """Those that jax would use there."""
        counted = self.facts[host].get("devices") or {}
        return {kind: counted[kind] for kind in KINDS if counted.get(kind) and self.wants(kind, host)}


def measure_offset(there: float, asked: float, answered: float) -> tuple[float, float]:
    """Of a clock that showed `there` between question and answer: how far it is ahead, and how wrong that may be."""
    return there - (asked + answered) / 2, (answered - asked) / 2


def problem_of(fact: Any) -> str | None:
    return fact.get("problem") if isinstance(fact, Mapping) else None


def shorten(names: Sequence[str], most: int = MAX_SHOWN) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def count_things(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"
