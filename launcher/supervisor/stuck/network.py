"""Whether the hosts of a run can reach one another: agents try it, and this makes sense of what they say; pure."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hostmesh.launcher.words import list_some

TRIAL_TIMEOUT = 5.0
REFUSED = os.strerror(errno.ECONNREFUSED)


@dataclass(frozen=True)
class NetworkProblem:
    """`host` is the number of one that can be singled out."""

    text: str
    host: int | None = None


@dataclass
class NetworkTrial:
    """Hosts are numbers. `addresses` are where each of them may be reached, `coordinator` where process 0 listens."""

    addresses: Mapping[int, Sequence[str]]
    coordinator: tuple[str, int] | None = None
    began: float = 0.0
    ports: dict[int, int] = field(default_factory=dict)
    problems: dict[int, dict[str, str | None]] = field(default_factory=dict)
    is_asked: bool = False

    @property
    def is_ready(self) -> bool:
        """All listen, and nobody was asked to connect yet."""
        return not self.is_asked and len(self.ports) == len(self.addresses)

    def is_over(self, now: float) -> bool:
        return len(self.problems) == len(self.addresses) or now - self.began > TRIAL_TIMEOUT

    def targets_for(self, host: int) -> list[tuple[str, int]]:
        return [
            (address, self.ports[other]) for other in self.ports if other != host for address in self.addresses[other]
        ]

    @property
    def unreached(self) -> dict[tuple[int, int], str]:
        """For a host, and another one that it reached at none of its addresses: what happened."""
        found = {}
        for host, problems in sorted(self.problems.items()):
            for other, port in sorted(self.ports.items()):
                tried = {
                    f"{address}:{port}": problems.get(f"{address}:{port}", "") for address in self.addresses[other]
                }
                if other != host and tried and all(tried.values()):
                    address, problem = next(iter(tried.items()))
                    found[host, other] = f"{address}: {problem}"
        return found

    def find_problem(self, names: Sequence[str]) -> NetworkProblem | None:
        unreached = self.unreached
        if unreached:
            return tell_unreached(unreached, names)
        return self._find_cut_off(names)

    def _find_cut_off(self, names: Sequence[str]) -> NetworkProblem | None:
        """Hosts that reach the first host, but not the coordinator's port there."""
        if self.coordinator is None:
            return None
        key = "{}:{}".format(*self.coordinator)
        # Who is refused has reached the host: process 0 has not begun to listen, or is gone.
        problems = {host: each.get(key) for host, each in sorted(self.problems.items()) if host != 0}
        cut_off = [host for host, problem in problems.items() if problem and problem != REFUSED]
        if not cut_off:
            return None
        who, why = list_some([names[host] for host in cut_off]), problems[cut_off[0]]
        text = f"{who} cannot reach the coordinator on {names[0]} at {key} ({why}): is a firewall between them?"
        return NetworkProblem(text, cut_off[0] if len(cut_off) == 1 and len(self.problems) > 2 else None)


def tell_unreached(unreached: Mapping[tuple[int, int], str], names: Sequence[str]) -> NetworkProblem:
    pairs = {frozenset(pair) for pair in unreached}
    (host, other), why = next(iter(unreached.items()))
    if len(pairs) == 1:
        both = (other, host) in unreached
        what = "cannot reach each other" if both else f"cannot reach {names[other]}"
        who = f"{names[host]} and {names[other]}" if both else names[host]
        return NetworkProblem(f"{who} {what} ({why})")
    counts = Counter(each for pair in pairs for each in pair)
    most, count = counts.most_common(1)[0]
    if count == len(pairs):
        rest = list_some([names[each] for each in sorted(counts) if each != most])
        return NetworkProblem(f"{names[most]} and {rest} cannot reach each other ({why})", most)
    some = list_some([f"{names[min(pair)]} and {names[max(pair)]}" for pair in sorted(pairs, key=sorted)])
    return NetworkProblem(f"hosts cannot reach each other: {some} ({why})")


def find_addresses(own: Mapping[int, Sequence[str]], given: Mapping[int, str]) -> dict[int, list[str]]:
    """Where hosts may be reached: at the address that the cluster file names, else at all of their interfaces but those
    that several of them have, such as a bridge of Docker's."""
    counts = Counter(address for addresses in own.values() for address in set(addresses))
    return {
        host: [given[host]] if host in given else [each for each in addresses if counts[each] == 1]
        for host, addresses in own.items()
    }
