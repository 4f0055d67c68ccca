"""Findings as a table of host × check, with a paragraph for each problem below it; pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hostmesh.launcher.cluster.host_names import drop_domain, join_names, shorten_names
from hostmesh.launcher.preflight.host_reports import Finding, Level
from hostmesh.launcher.preflight.report import COLUMNS
from hostmesh.launcher.words import count_things

WIDTH = 100
NARROWEST_HOSTS, WIDEST_HOSTS = 12, 24
GAP = "  "
TITLES = {"reachable": "up", "memory": "shm"}
MARKS = {"ok": "ok", "warning": "!", "failure": "✗"}
GRAVITY = list(MARKS)
UNKNOWN = "–"

Row = tuple[str, ...]
# The worst finding of a host in a column; None where nothing is known.
Cell = tuple[Level, str] | None
# The names of the hosts that have the same cells.
Alike = dict[tuple[Cell, ...], list[str]]


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
        position = finding.host, finding.check
        worst[position] = max(worst.get(position, finding), finding, key=lambda each: GRAVITY.index(each.level))
    alike: Alike = {}
    for host, name in enumerate(hosts):
        row = [worst.get((host, column)) for column in columns]
        alike.setdefault(tuple((each.level, each.cell) if each else None for each in row), []).append(name)
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
    """The names of hosts by the row that they share; different cells may be drawn alike."""
    groups: dict[Row, list[str]] = {}
    for cells, names in alike.items():
        row = (_draw_cell(cell, column in valued) for cell, column in zip(cells, columns, strict=True))
        groups.setdefault(tuple(row), []).extend(names)
    return groups


def _draw_cell(cell: Cell, valued: bool) -> str:
    if cell is None:
        return UNKNOWN
    level, value = cell
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
    """One paragraph a problem, also when several hosts have it."""
    sharing: dict[tuple[str, str, str], list[str]] = {}
    for finding in sorted(findings, key=lambda finding: -GRAVITY.index(finding.level)):
        if finding.level != "ok":
            sharing.setdefault((finding.level, finding.message, finding.fix), []).append(hosts[finding.host])
    return [_write_paragraph(level, names, message, fix) for (level, message, fix), names in sharing.items()]


def _write_paragraph(level: str, names: Sequence[str], message: str, fix: str) -> str:
    """The problem, and below it how to fix it; a command to copy stays on one line."""
    first, *rest = f"{MARKS[level]} {join_names(names)}: {message}".splitlines()
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
