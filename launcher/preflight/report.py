"""From what is known of the hosts to findings: every check, in the order of its column; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.preflight.answers import check_answers, check_reachable
from hostmesh.launcher.preflight.devices import check_devices
from hostmesh.launcher.preflight.host_reports import Finding, HostReports
from hostmesh.launcher.preflight.machine import check_clock, check_disk, check_memory, check_workdir
from hostmesh.launcher.preflight.network import check_names, check_port, check_proxy
from hostmesh.launcher.preflight.versions import check_code, check_packages, check_python

__all__ = ["COLUMNS", "Finding", "HostReports", "judge", "judge_run"]

# A check gives a finding for every host that it knows something about, also for those that are fine.
CHECKS: Sequence[Callable[[HostReports], Iterator[Finding]]] = (
    *(check_reachable, check_answers, check_python, check_packages, check_code, check_clock, check_disk),
    *(check_workdir, check_memory, check_devices, check_names, check_port, check_proxy),
)
COLUMNS = (
    *("reachable", "python", "jax", "jaxlib", "numpy", "code", "clock", "disk", "memory"),
    *("devices", "names", "port", "proxy"),
)


def judge(reports: HostReports) -> list[Finding]:
    """Findings by column and host, also of what is fine. Where nothing is known of a host there is no finding."""
    findings = [finding for check in CHECKS for finding in check(reports)]
    return sorted(findings, key=lambda finding: (COLUMNS.index(finding.check), finding.host))


def judge_run(
    cluster: Cluster,
    facts: Mapping[int, Mapping[str, Any]],
    offsets: Mapping[int, tuple[float, float]],
    coordinator: str | None,
) -> list[Finding]:
    """The failures and warnings that a run has to tell before it starts its processes."""
    reports = HostReports([host.address for host in cluster.hosts], facts, offsets=offsets, coordinator=coordinator)
    return [finding for finding in judge(reports) if finding.level != "ok"]
