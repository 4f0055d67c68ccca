"""Does a host answer, and what could it not find out about itself; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level, problem_of
from hostmesh.launcher.words import last_lines

MAX_SAID = 200
# The column of each fact that a host may fail to find out.
CHECK_OF = {
    "python": "python",
    "code": "code",
    "workdir": "disk",
    "temp": "disk",
    "shared_memory": "memory",
    "name": "names",
    "names": "names",
}
# What a problem is about, where its text does not say so itself.
SUBJECTS = {
    "workdir": "the disk of workdir",
    "temp": "the disk of its temporary folder",
    "shared_memory": "/dev/shm",
    "name": "resolving its own name",
    "names": "resolving the names of the hosts",
}


def check_reachable(reports: HostReports) -> Iterator[Finding]:
    for host in range(len(reports.hosts)):
        if host in reports.unreachable:
            yield Finding(host, "reachable", "failure", reports.unreachable[host], cell="no")
        elif host in reports.facts:
            yield Finding(host, "reachable", "ok", "reachable")


def check_answers(reports: HostReports) -> Iterator[Finding]:
    """A finding for each fact that a host could not find out."""
    for host, facts in sorted(reports.facts.items()):
        for name, check in CHECK_OF.items():
            if problem := problem_of(facts.get(name)):
                message = f"{SUBJECTS[name]}: {problem}" if name in SUBJECTS else problem
                if "said" in facts[name]:
                    message += f": {''.join(last_lines(facts[name]['said'], 1))[:MAX_SAID] or 'and said nothing'}"
                level: Level = "failure" if check in ("python", "disk") else "warning"
                yield Finding(host, check, level, message, _python_fix(facts[name]) if name == "python" else "")


def _python_fix(fact: Mapping[str, Any]) -> str:
    if fact.get("cause") == "slow":
        return (
            "it is slow, not missing: is its disk a slow network disk, or the host overloaded? python: in the cluster "
            "file can name a Python on a local disk"
        )
    if fact.get("cause") == "environment":
        return "make env: in the cluster file smaller: put large values into files, and their paths into variables"
    return "python: in the cluster file is what the workers run; install it there or change that line"
