"""The checks of a preflight, each from what hosts said about themselves to findings; pure.

A check gives a finding for every host that has something to say on it: also for those that are fine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hostmesh.launcher.preflight.devices import check_devices
from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level, problem_of, shorten
from hostmesh.launcher.preflight.proxies import except_address, find_capturing
from hostmesh.launcher.preflight.versions import check_code, check_packages, check_python

LITTLE_DISK, NO_DISK = 1 << 30, 100 << 20
DOCKER_SHARED_MEMORY = 64 << 20
DISKS = {"workdir": "workdir", "temp": "the temporary folder"}
MAX_SAID = 200
SMALL_OFFSET, LARGE_OFFSET = 1.0, 30.0
SUBJECTS = {
    "workdir": "the disk of workdir",
    "temp": "the disk of its temporary folder",
    "shared_memory": "/dev/shm",
    "name": "resolving its own name",
    "names": "resolving the names of the hosts",
}


def check_reachable(look: HostReports) -> Iterator[Finding]:
    for host in range(len(look.hosts)):
        if host in look.unreachable:
            yield Finding(host, "reachable", "failure", look.unreachable[host], cell="no")
        elif host in look.facts:
            yield Finding(host, "reachable", "ok", "reachable")


def check_answers(look: HostReports) -> Iterator[Finding]:
    """What a host could not find out about itself."""
    checks = {"python": "python", "code": "code", "workdir": "disk", "temp": "disk", "shared_memory": "memory"}
    checks |= {"name": "names", "names": "names"}
    for host, facts in sorted(look.facts.items()):
        for name, check in checks.items():
            if problem := problem_of(facts.get(name)):
                found = problem if name in ("python", "code") else f"{SUBJECTS[name]}: {problem}"
                if "said" in facts[name]:
                    found += f": {last_line(facts[name]['said'])[:MAX_SAID]}"
                level: Level = "failure" if check in ("python", "disk") else "warning"
                yield Finding(host, check, level, found, _mend_python(facts[name]) if name == "python" else "")


def _mend_python(fact: Mapping[str, Any]) -> str:
    if fact.get("cause") == "slow":
        return (
            "it is slow, not missing: is its disk a slow network disk, or the host overloaded? python: in the cluster "
            "file can name a Python on a local disk"
        )
    if fact.get("cause") == "environment":
        return "make env: in the cluster file smaller: put large values into files, and their paths into variables"
    return "python: in the cluster file is what the workers run; install it there or change that line"


def last_line(said: str) -> str:
    return (said.strip().splitlines() or ["and said nothing"])[-1]


# The machine.


def check_clock(look: HostReports) -> Iterator[Finding]:
    """Against what most clocks say, this machine's among them: it may be the one that is wrong.

    What most clocks say is not more certain than they are: busy hosts answer late, each by another time.
    """
    usual = _middle([offset for offset, _ in look.offsets.values()])
    doubts = sorted(uncertainty for _, uncertainty in look.offsets.values())
    doubt = doubts[len(doubts) // 2] if usual else 0.0
    for host, (offset, uncertainty) in sorted(look.offsets.items()):
        if host not in look.facts:
            continue
        off = offset - usual
        certain = abs(off) - uncertainty - doubt
        found = f"its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}"
        if certain <= SMALL_OFFSET:
            yield Finding(host, "clock", "ok", found)
            continue
        is_kept = (look.facts[host].get("system") or {}).get("clock_is_kept", True)
        fix = "start a time service there, such as chrony" + ("" if is_kept else "; none keeps its clock now")
        yield Finding(host, "clock", "failure" if certain > LARGE_OFFSET else "warning", found, fix, f"{off:+.0f} s")


def _middle(offsets: Sequence[float]) -> float:
    """The median with this machine's 0; of two middles, what is between them and nearest to 0."""
    ordered = sorted([0.0, *offsets])
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(max(0.0, low), high)


def check_disk(look: HostReports) -> Iterator[Finding]:
    fixes = {"workdir": "move workdir: to another disk", "temp": "set TMPDIR there"}
    for name, fix in fixes.items():
        for host, fact in look.having(name):
            free = fact["free"]
            level: Level = "failure" if free < NO_DISK else "warning" if free < LITTLE_DISK else "ok"
            found = f"{DISKS[name]} {fact['path']} has {show_bytes(free)} left"
            more = {"fix": f"free some space or {fix}", "cell": show_bytes(free)} if level != "ok" else {}
            yield Finding(host, "disk", level, found, **more)


def check_workdir(look: HostReports) -> Iterator[Finding]:
    """Where a run brings its code it must write; else the code must be there."""
    for host, fact in look.having("workdir"):
        path, why = fact["path"], fact.get("unwritable")
        if look.syncs and why:
            fix = f"let the user of the run write there, or change workdir: in the cluster file ({path})"
            found = f"workdir {path} cannot be written: {why}"
            yield Finding(host, "disk", "failure", found, fix, "unwritable")
        elif not look.syncs and not fact.get("is_there", True):
            fix = "copy the code there, let sync: bring it, or change workdir:"
            yield Finding(host, "disk", "failure", f"found no folder {path} for workdir", fix, "none")
        elif why:
            fix = "outputs with relative paths would fail; let the user of the run write there, or change workdir:"
            yield Finding(host, "disk", "warning", f"workdir {path} cannot be written: {why}", fix, "unwritable")


def check_memory(look: HostReports) -> Iterator[Finding]:
    fix = "give it more: shm_size: 1gb in a compose file, --shm-size with docker run, or a larger tmpfs"
    for host, fact in look.having("shared_memory"):
        free = fact["free"]
        found = f"/dev/shm, which data loaders and collectives use, has {show_bytes(free)} left"
        if free <= DOCKER_SHARED_MEMORY:
            yield Finding(host, "memory", "warning", found, fix, show_bytes(free))
        else:
            yield Finding(host, "memory", "ok", found)


def show_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


# The network.


def check_names(look: HostReports) -> Iterator[Finding]:
    for host in sorted(look.facts):
        findings = [*_check_other_names(look, host), *_check_own_name(look, host)]
        known = {"name", "names"} & {name for name, fact in look.facts[host].items() if fact and not problem_of(fact)}
        yield from findings or ([Finding(host, "names", "ok", "names resolve")] if known else [])


def _check_other_names(look: HostReports, host: int) -> Iterator[Finding]:
    names = look.facts[host].get("names") or {}
    if problem_of(names):
        return
    unknown = [name for name, addresses in names.items() if addresses == []]
    unanswered = [name for name, addresses in names.items() if addresses is None]
    if unknown:
        fix = "add them to its /etc/hosts or name server, or give hosts a number as internal_address"
        found = f"it cannot resolve {shorten(unknown)}"
        yield Finding(host, "names", "failure", found, fix, f"{len(unknown)} unknown")
    if unanswered:
        found = f"its name server did not answer when asked for {shorten(unanswered)}"
        yield Finding(host, "names", "warning", found, "look at /etc/resolv.conf there", "no answer")


def _check_own_name(look: HostReports, host: int) -> Iterator[Finding]:
    """gloo, which joins CPU processes, listens on the address that a host's own name resolves to."""
    own = look.facts[host].get("name")
    if not own or own.get("addresses") is None or not _joins_by_gloo(look, host) or _is_one_machine(look):
        return
    if all(_is_loopback(address) for address in own["addresses"]):
        where = f"resolves to {shorten(own['addresses'])} alone" if own["addresses"] else "does not resolve"
        found = f"its own name {own['host']} {where}, so other hosts cannot reach its CPU collectives (gloo)"
        fix = f"in its /etc/hosts, give {own['host']} the address that the other hosts know"
        yield Finding(host, "names", "failure", found, fix, "loopback")


def _joins_by_gloo(look: HostReports, host: int) -> bool:
    """Where even the coordinator is on loopback, all of them are one machine."""
    is_for_cpu = not look.devices(host) and look.platforms(host) in ([], ["cpu"])
    is_gloo = look.facts[host].get("collectives") in (None, "", "gloo")
    return is_for_cpu and is_gloo and len(look.hosts) > 1 and not _is_loopback(look.coordinator)


def _is_one_machine(look: HostReports) -> bool:
    """Then they reach each other on loopback too."""
    networks = {(facts.get("name") or {}).get("network") for facts in look.facts.values()}
    return len(networks) == 1 and None not in networks


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def check_port(look: HostReports) -> Iterator[Finding]:
    fix = "let the hosts reach each other on every port: a firewall or security group may be in the way"
    for host, problem in sorted(look.ports.items()):
        if problem:
            yield Finding(host, "port", "failure", problem, fix, "closed")
        else:
            yield Finding(host, "port", "ok", "reaches the coordinator")
    if look.ports and 0 in look.facts and 0 not in look.ports:
        yield Finding(0, "port", "ok", "holds the coordinator's port")


def check_proxy(look: HostReports) -> Iterator[Finding]:
    for host, proxies in look.having("proxies"):
        if look.coordinator is None:
            continue
        name = find_capturing(proxies, look.coordinator)
        if name is None:
            yield Finding(host, "proxy", "ok", "no proxy is in the way")
            continue
        found = f"{name}={proxies[name]} would take connections to the coordinator at {look.coordinator}"
        exceptions = except_address(proxies, look.coordinator)
        yield Finding(host, "proxy", "ok", f"{found}; a run adds that to {' '.join(exceptions)} of its processes")


CHECKS: Sequence[Callable[[HostReports], Iterator[Finding]]] = (
    *(check_reachable, check_answers, check_python, check_packages, check_code, check_clock, check_disk),
    *(check_workdir, check_memory, check_devices, check_names, check_port, check_proxy),
)
