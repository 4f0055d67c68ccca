"""Between which processes nothing gets through any more, from the connections that their agents see; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.supervisor.stuck.network import NetworkProblem
from hostmesh.launcher.words import list_some

UNACKNOWLEDGED = "what is sent is not acknowledged"
LOOPBACK = ("127.", "::1:")


@dataclass(frozen=True)
class Stalled:
    """Pairs of processes. `process` or `host` is the one that all pairs have in common, where there are several."""

    pairs: tuple[tuple[int, int], ...]
    process: int | None
    host: int | None

    def partners_of(self, process: int) -> list[int]:
        return sorted({each for pair in self.pairs if process in pair for each in pair if each != process})

    def describe(self, names: Mapping[int, str]) -> NetworkProblem:
        """`names` are those of the processes' hosts."""
        some = list_some([f"{self._name(one, names)} and {self._name(two, names)}" for one, two in self.pairs])
        return NetworkProblem(f"nothing gets through between {some}: {UNACKNOWLEDGED}", self.host)

    @staticmethod
    def _name(process: int, names: Mapping[int, str]) -> str:
        return f"process {process} on {names[process]}"


def find_stalled(connections: Mapping[int, Any], hosts: Mapping[int, int]) -> Stalled | None:
    """`connections` are lists of `[local, remote, is_stalled]` by process, as agents send them, and `hosts` are the
    numbers of the processes' hosts. A connection counts where both of its ends are known."""
    ends: dict[tuple[str, str, int | None], int] = {}
    stalled = []
    for process, found in connections.items():
        for local, remote, is_stalled in _only_whole(found):
            here = hosts[process] if local.startswith(LOOPBACK) else None
            ends[local, remote, here] = process
            if is_stalled:
                stalled.append((process, (remote, local, here)))
    pairs = {(min(one, ends[end]), max(one, ends[end])) for one, end in stalled if ends.get(end, one) != one}
    if not pairs:
        return None
    across = {(hosts[one], hosts[two]) for one, two in pairs}
    host = None if any(one == two for one, two in across) else find_common({tuple(sorted(each)) for each in across})
    return Stalled(tuple(sorted(pairs)), find_common(pairs), host)


def find_common(pairs: Collection[Sequence[int]]) -> int | None:
    """Who is in all of several pairs."""
    common = set.intersection(*map(set, pairs))
    return common.pop() if len(pairs) > 1 and common else None


def _only_whole(found: Any) -> list[tuple[str, str, bool]]:
    """What comes from a host may be anything."""
    rows = [row for row in found if isinstance(row, list) and len(row) == 3] if isinstance(found, list) else []
    return [(str(local), str(remote), still is True) for local, remote, still in rows]
