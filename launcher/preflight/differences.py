"""Hosts that are not like most of the others: the difference as a value first, its sentences after; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level


@dataclass(frozen=True)
class Difference:
    """What each host has, and which hosts have something else than most; an empty value or None means nothing."""

    values: Mapping[int, str | None]
    majority: str | None  # what most hosts have; in a tie the newest version, which the others are to get
    odd: tuple[int, ...]  # the hosts that have something else
    is_tie: bool  # no value has more hosts than every other

    @property
    def concerned(self) -> tuple[int, ...]:
        """The hosts whose finding is a problem: the odd ones, and in a tie all of them."""
        return tuple(self.values) if self.is_tie else self.odd


class Site(NamedTuple):
    """Where to fix a difference: in words, and one of these hosts."""

    text: str
    host: int


def find_difference(values: Mapping[int, str | None]) -> Difference:
    counts = Counter(values.values()).most_common()
    is_tie = len(counts) > 1 and counts[0][1] == counts[1][1]
    if is_tie:
        majority: str | None = max((value for value in values.values() if value), key=_version_key)
    else:
        majority = counts[0][0] if counts else None
    odd = tuple(host for host, value in values.items() if value != majority)
    return Difference(values, majority, odd, is_tie)


def _version_key(version: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in version.split(".")]


def find_sites(reports: HostReports, difference: Difference) -> dict[int, Site]:
    """For each host that is concerned, where the fix has to be made: `there`, or in a tie `on gpu-a, gpu-b`."""
    if difference.is_tie:
        return dict.fromkeys(difference.concerned, Site(f"on {reports.name(difference.odd)}", difference.odd[0]))
    return {host: Site("there", host) for host in difference.odd}


def difference_findings(
    reports: HostReports,
    check: str,
    difference: Difference,
    texts: Mapping[int, str],
    fixes: Mapping[int, str],
    level: Level = "failure",
) -> Iterator[Finding]:
    """`texts` say what each host has, `fixes` what to do about each host that is concerned."""
    concerned = set(difference.concerned)
    tie = _tie_text(reports, difference, texts) if difference.is_tie else None
    for host, value in difference.values.items():
        cell = value or "none"
        if host in concerned:
            message = tie or f"{texts[host]}, {_majority_text(difference)}"
            yield Finding(host, check, level, message, fixes[host], cell)
        else:
            yield Finding(host, check, "ok", texts[host], cell=cell)


def _tie_text(reports: HostReports, difference: Difference, texts: Mapping[int, str]) -> str:
    values = difference.values
    groups = [[host for host in values if values[host] == value] for value in dict.fromkeys(values.values())]
    return "the hosts differ: " + ", ".join(f"{texts[group[0]]} on {reports.name(group)}" for group in groups)


def _majority_text(difference: Difference) -> str:
    hosts, number = len(difference.values), len(difference.values) - len(difference.odd)
    having = f"the other {number} hosts have" if number == hosts - 1 else f"{number} of {hosts} hosts have"
    return f"{having} {difference.majority or 'none'}"
