"""Can the hosts reach each other: names, the coordinator's port, and proxies on the way; pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from hostmesh.launcher.preflight.host_reports import Finding, HostReports, problem_of
from hostmesh.launcher.preflight.proxies import except_address, find_capturing
from hostmesh.launcher.words import list_some


def check_names(reports: HostReports) -> Iterator[Finding]:
    for host in sorted(reports.facts):
        findings = [*_check_other_names(reports, host), *_check_own_name(reports, host)]
        known = {"name", "names"} & {
            name for name, fact in reports.facts[host].items() if fact and not problem_of(fact)
        }
        yield from findings or ([Finding(host, "names", "ok", "names resolve")] if known else [])


def _check_other_names(reports: HostReports, host: int) -> Iterator[Finding]:
    names = reports.facts[host].get("names") or {}
    if problem_of(names):
        return
    unknown = [name for name, addresses in names.items() if addresses == []]
    unanswered = [name for name, addresses in names.items() if addresses is None]
    if unknown:
        fix = "add them to its /etc/hosts or name server, or give hosts a number as internal_address"
        message = f"it cannot resolve {list_some(unknown)}"
        yield Finding(host, "names", "failure", message, fix, f"{len(unknown)} unknown")
    if unanswered:
        message = f"its name server did not answer when asked for {list_some(unanswered)}"
        yield Finding(host, "names", "warning", message, "look at /etc/resolv.conf there", "no answer")


def _check_own_name(reports: HostReports, host: int) -> Iterator[Finding]:
    """gloo, which joins CPU processes, listens on the address that a host's own name resolves to."""
    own = reports.facts[host].get("name")
    if not own or own.get("addresses") is None or not _joins_by_gloo(reports, host) or _is_one_machine(reports):
        return
    if all(_is_loopback(address) for address in own["addresses"]):
        where = f"resolves to {list_some(own['addresses'])} alone" if own["addresses"] else "does not resolve"
        message = f"its own name {own['host']} {where}, so other hosts cannot reach its CPU collectives (gloo)"
        fix = f"in its /etc/hosts, give {own['host']} the address that the other hosts know"
        yield Finding(host, "names", "failure", message, fix, "loopback")


def _joins_by_gloo(reports: HostReports, host: int) -> bool:
    """Whether CPU processes of several machines join; a coordinator on loopback means that there is only one."""
    is_for_cpu = not reports.devices(host) and reports.platforms(host) in ([], ["cpu"])
    is_gloo = reports.facts[host].get("collectives") in (None, "", "gloo")
    return is_for_cpu and is_gloo and len(reports.hosts) > 1 and not _is_loopback(reports.coordinator)


def _is_one_machine(reports: HostReports) -> bool:
    """Whether all hosts share one network stack, and so reach each other on loopback."""
    networks = {(facts.get("name") or {}).get("network") for facts in reports.facts.values()}
    return len(networks) == 1 and None not in networks


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def check_port(reports: HostReports) -> Iterator[Finding]:
    fix = "let the hosts reach each other on every port: a firewall or security group may be in the way"
    for host, problem in sorted(reports.ports.items()):
        if problem:
            yield Finding(host, "port", "failure", problem, fix, "closed")
        else:
            yield Finding(host, "port", "ok", "reaches the coordinator")
    if reports.ports and 0 in reports.facts and 0 not in reports.ports:
        yield Finding(0, "port", "ok", "holds the coordinator's port")


def check_proxy(reports: HostReports) -> Iterator[Finding]:
    for host, proxies in reports.having("proxies"):
        if reports.coordinator is None:
            continue
        name = find_capturing(proxies, reports.coordinator)
        if name is None:
            yield Finding(host, "proxy", "ok", "no proxy is in the way")
            continue
        message = f"{name}={proxies[name]} would take connections to the coordinator at {reports.coordinator}"
        exceptions = except_address(proxies, reports.coordinator)
        yield Finding(host, "proxy", "ok", f"{message}; a run adds that to {' '.join(exceptions)} of its processes")
