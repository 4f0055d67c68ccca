"""From what hosts said about themselves to findings, and from findings to a table of host × check; pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hostmesh.launcher.cluster.file import Cluster
from hostmesh.launcher.cluster.host_names import drop_domain, join_names, shorten_names
from hostmesh.launcher.preflight.checks import CHECKS
from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level, count_things

__all__ = ["Finding", "HostReports", "draw_table", "judge", "judge_run"]

WIDTH = 100
NARROWEST_HOSTS, WIDEST_HOSTS = 12, 24
GAP = "  "
COLUMNS = (
    *("reachable", "python", "jax", "jaxlib", "numpy", "code", "clock", "disk", "memory"),
    *("devices", "names", "port", "proxy"),
)
TITLES = {"reachable": "up", "memory": "shm"}
MARKS = {"ok": "ok", "warning": "!", "failure": "✗"}
GRAVITY = list(MARKS)
UNKNOWN = "–"

Row = tuple[str, ...]
# Hosts of which the same is found, column by column.
Alike = dict[tuple[tuple[Level, str] | None, ...], list[str]]


def judge(look: HostReports) -> list[Finding]:
    """Findings by column and host, also of what is fine. What is not known of a host gives none."""
    findings = [finding for check in CHECKS for finding in check(look)]
    return sorted(findings, key=lambda finding: (COLUMNS.index(finding.check), finding.host))


def judge_run(
    cluster: Cluster,
    facts: Mapping[int, Mapping[str, Any]],
    offsets: Mapping[int, tuple[float, float]],
    coordinator: str | None,
) -> list[Finding]:
    """What must be said before a run: failures and warnings."""
    look = HostReports([host.address for host in cluster.hosts], facts, offsets=offsets, coordinator=coordinator)
    return [finding for finding in judge(look) if finding.level != "ok"]


def draw_table(hosts: Sequence[str], findings: Sequence[Finding]) -> str:
    """Hosts that are alike share a row; below, one paragraph for each problem, failures first."""
    columns = [column for column in COLUMNS if any(finding.check == column for finding in findings)]
    alike = _group(drop_domain(hosts), findings, columns)
    groups = _draw_groups(alike, columns, _choose_valued(alike, columns, len(hosts)))
    room = max(NARROWEST_HOSTS, WIDTH - _measure(groups, columns))
    titles = ("host", *(TITLES.get(column, column) for column in columns))
    rows = [titles, *((_label(names, len(hosts), room), *cells) for cells, names in groups.items())]
    table = "\n".join(_align(rows))
    return "\n\n".join([table, *_write_paragraphs(hosts, findings), _sum_up(hosts, findings)])


def _group(hosts: Sequence[str], findings: Sequence[Finding], columns: Sequence[str]) -> Alike:
    worst: dict[tuple[int, str], Finding] = {}
    for finding in findings:
        place = finding.host, finding.check
        worst[place] = max(worst.get(place, finding), finding, key=lambda each: GRAVITY.index(each.level))
    alike: Alike = {}
    for host, name in enumerate(hosts):
        found = [worst.get((host, column)) for column in columns]
        alike.setdefault(tuple((each.level, each.cell) if each else None for each in found), []).append(name)
    return alike


def _choose_valued(alike: Alike, columns: Sequence[str], all_hosts: int) -> set[str]:
    """Columns that show values and not only marks: as many as there is room for, those with problems first."""
    is_fine = [all(each is None or each[0] == "ok" for each in column) for column in zip(*alike, strict=True)]
    valued: set[str] = set()
    for _, column in sorted(zip(is_fine, columns, strict=True), key=lambda pair: pair[0]):
        groups = _draw_groups(alike, columns, valued | {column})
        label = max(len(_label(names, all_hosts, WIDEST_HOSTS)) for names in groups.values())
        if _measure(groups, columns) + label <= WIDTH:
            valued.add(column)
    return valued


def _draw_groups(alike: Alike, columns: Sequence[str], valued: set[str]) -> dict[Row, list[str]]:
    """Those that look the same become one."""
    groups: dict[Row, list[str]] = {}
    for found, names in alike.items():
        cells = (_draw_cell(each, column in valued) for each, column in zip(found, columns, strict=True))
        groups.setdefault(tuple(cells), []).extend(names)
    return groups


def _draw_cell(found: tuple[Level, str] | None, valued: bool) -> str:
    if found is None:
        return UNKNOWN
    level, value = found
    if not valued or not value:
        return MARKS[level]
    return value if level == "ok" else f"{MARKS[level]} {value}"


def _label(names: Sequence[str], all_hosts: int, width: int) -> str:
    return f"all {all_hosts} hosts" if len(names) == all_hosts > 1 else shorten_names(names, width)


def _measure(groups: Mapping[Row, Any], columns: Sequence[str]) -> int:
    """How wide the table is without its host names."""
    titles = (TITLES.get(column, column) for column in columns)
    return sum(len(GAP) + max(len(text) for text in texts) for texts in zip(titles, *groups, strict=True))


def _align(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _write_paragraphs(hosts: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """The same problem of several hosts is told once."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for finding in sorted(findings, key=lambda finding: -GRAVITY.index(finding.level)):
        if finding.level != "ok":
            told.setdefault((finding.level, finding.message, finding.fix), []).append(hosts[finding.host])
    return [_write_paragraph(level, names, found, fix) for (level, found, fix), names in told.items()]


def _write_paragraph(level: str, names: Sequence[str], found: str, fix: str) -> str:
    """What was found, and below it how to fix it; a command to copy stays on one line."""
    first, *rest = f"{MARKS[level]} {join_names(names)}: {found}".splitlines()
    below = [*rest, fix] if fix.startswith("run ") else [*rest, *_wrap(fix)]
    return "\n  ".join(_wrap(first) + [line for line in below if line])


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False)


def _sum_up(hosts: Sequence[str], findings: Sequence[Finding]) -> str:
    failed, warned = ({finding.host for finding in findings if finding.level == level} for level in GRAVITY[:0:-1])
    warned -= failed
    fine = len(hosts) - len(failed) - len(warned)
    if fine == len(hosts):
        return f"all {fine} hosts are fine" if fine > 1 else "the host is fine"
    counts = {"cannot train": len(failed), "with warnings": len(warned), "fine": fine}
    return ", ".join(f"{count_things(count, 'host')} {what}" for what, count in counts.items() if count)
