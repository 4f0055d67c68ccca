"""The checks of a preflight: what hosts said about themselves, compared and judged; pure.

Each check gives findings for every host that has something to say on it: also those that are fine.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.host_names import join_names
from launcher.proxies import find_capturing, name_exceptions

Level = Literal["ok", "warning", "failure"]

LITTLE_DISK, NO_DISK = 1 << 30, 100 << 20
DOCKER_SHARED_MEMORY = 64 << 20
SMALL_OFFSET, LARGE_OFFSET = 1.0, 30.0
GPUS = ("cuda", "rocm")
KINDS = {"tpu": "TPU", "cuda": "GPU", "rocm": "AMD GPU"}
EXTRAS = {"tpu": "jax[tpu]", "cuda": "jax[cuda12]", "rocm": "jax[rocm]"}
# Which files make a process one that computes there, by how their names begin.
COMPUTES = {"tpu": ("/dev/accel", "/dev/vfio/"), "cuda": ("/dev/nvidia-uvm",), "rocm": ("/dev/kfd",)}
SAID = {
    "workdir": "the disk of workdir",
    "temp": "the disk of its temporary folder",
    "shared_memory": "/dev/shm",
    "name": "resolving its own name",
    "names": "resolving the names of the hosts",
}
MOST_SHOWN = 3


@dataclass(frozen=True)
class Finding:
    """`cell` is its short form for a table."""

    host: int
    check: str
    level: Level
    found: str
    mend: str = ""
    cell: str = ""

    @property
    def text(self) -> str:
        return f"{self.found} — {self.mend}" if self.mend else self.found


Facts = Mapping[str, Any]
Say = Callable[[str | None], str]
# From where to mend it, in words, one of these hosts, and the value wanted there.
Mend = Callable[[str, int, str], str]


@dataclass(frozen=True)
class Look:
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
            if (fact := facts.get(name)) is not None and not _problem(fact):
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


def _problem(fact: Any) -> str | None:
    return fact.get("problem") if isinstance(fact, Mapping) else None


def check_reachable(look: Look) -> Iterator[Finding]:
    for host in range(len(look.hosts)):
        if host in look.unreachable:
            yield Finding(host, "reachable", "failure", look.unreachable[host], cell="no")
        elif host in look.facts:
            yield Finding(host, "reachable", "ok", "reachable")


def check_answers(look: Look) -> Iterator[Finding]:
    """What a host could not find out about itself."""
    checks = {"python": "python", "code": "code", "workdir": "disk", "temp": "disk", "shared_memory": "memory"}
    checks |= {"name": "names", "names": "names"}
    mend_python = "python: in the cluster file is what the workers run; install it there or change that line"
    for host, facts in sorted(look.facts.items()):
        for name, check in checks.items():
            if problem := _problem(facts.get(name)):
                found = problem if name in ("python", "code") else f"{SAID[name]}: {problem}"
                level: Level = "failure" if check in ("python", "disk") else "warning"
                yield Finding(host, check, level, found, mend_python if name == "python" else "")


# Versions.


def check_python(look: Look) -> Iterator[Finding]:
    versions = {host: str(fact["version"]) for host, fact in look.having("python")}
    level = _judge_difference("python", versions)

    def mend(where: str, host: int, wanted: str) -> str:
        return f"{where}, set python: to a Python {wanted}"

    yield from _compare(look, "python", versions, "python {}".format, mend, level)


def check_packages(look: Look) -> Iterator[Finding]:
    for package in ("jax", "jaxlib", "numpy"):
        yield from _check_package(look, package, package)
    accelerated = {name for _, fact in look.having("python") for name, found in fact["packages"].items() if found}
    for package in sorted(accelerated - {"jax", "jaxlib", "numpy"}):
        yield from (finding for finding in _check_package(look, package, "jaxlib") if finding.level != "ok")


def _check_package(look: Look, package: str, check: str) -> Iterator[Finding]:
    versions = {host: fact["packages"][package] for host, fact in look.having("python") if fact["packages"]["jax"]}
    if package == "jax":
        yield from _check_jax_is_there(look)
    yield from _compare(
        look,
        check,
        versions,
        lambda version: f"{package} {version}" if version else f"no {package}",
        lambda where, host, wanted: _say_install(look, where, host, f"{package}=={wanted}"),
        _judge_difference(package, versions),
    )


def _check_jax_is_there(look: Look) -> Iterator[Finding]:
    versions = Counter(fact["packages"]["jax"] for _, fact in look.having("python") if fact["packages"]["jax"])
    wanted = f"=={versions.most_common(1)[0][0]}" if versions else ""
    for host, fact in look.having("python"):
        if not fact["packages"]["jax"]:
            extra = EXTRAS[next(iter(devices))] if (devices := look.devices(host)) else "jax"
            mend = _say_install(look, "there", host, extra + wanted)
            yield Finding(host, "jax", "failure", f"no jax in {fact['path']}", mend, "none")


def _say_install(look: Look, where: str, host: int, what: str) -> str:
    return f"run {where}: {look.facts[host]['python']['path']} -m pip install {shlex.quote(what)}"


def _compare(
    look: Look,
    check: str,
    values: Mapping[int, str | None],
    say: Say,
    mend: Mend,
    level: Level = "failure",
) -> Iterator[Finding]:
    """Most hosts are right; where no value has more hosts than any other, all of them are told of all."""
    counts = Counter(values.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        yield from _tell_all(look, check, values, say, mend, level)
        return
    for host, value in values.items():
        most, number = counts[0]
        if value == most:
            yield Finding(host, check, "ok", say(value), cell=value or "none")
        else:
            found = f"{say(value)}, {_say_most(most, number, values)}"
            yield Finding(host, check, level, found, mend("there", host, str(most)), value or "none")


def _tell_all(
    look: Look, check: str, values: Mapping[int, str | None], say: Say, mend: Mend, level: Level
) -> Iterator[Finding]:
    wanted = max((value for value in values.values() if value), key=_version_key)
    others = [host for host, value in values.items() if value != wanted]
    groups = [[host for host in values if values[host] == value] for value in dict.fromkeys(values.values())]
    said = [f"{say(values[group[0]])} on {look.name(group)}" for group in groups]
    found = f"the hosts differ: {', '.join(said)}"
    for host, value in values.items():
        yield Finding(host, check, level, found, mend(f"on {look.name(others)}", others[0], wanted), value or "none")


def _say_most(most: str | None, number: int, values: Mapping[int, Any]) -> str:
    others = f"the other {number} hosts have" if number == len(values) - 1 else f"{number} of {len(values)} hosts have"
    others = "the other host has" if len(values) == 2 else others
    return f"{others} {most or 'none'}"


def _version_key(version: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in version.split(".")]


def _judge_difference(what: str, versions: Mapping[int, str | None]) -> Level:
    """The last number of a Python or NumPy version seldom matters; every number of jax does."""
    majors = {version.rpartition(".")[0] if version else None for version in versions.values()}
    return "warning" if what in ("python", "numpy") and len(majors) == 1 and None not in majors else "failure"


def check_code(look: Look) -> Iterator[Finding]:
    yield from _foresee_sync(look) if look.syncs else _compare_code(look)


def _foresee_sync(look: Look) -> Iterator[Finding]:
    """Whatever is there, the next run brings its own; but what was edited on a host would be lost."""
    for host, fact in look.having("code"):
        if changed := fact["changed"]:
            found = f"{_shorten(changed)} in workdir changed on the host since the last sync"
            mend = "the next run puts the version from here back: copy here what you want to keep"
            yield Finding(host, "code", "warning", found, mend, "changed")
        elif look.code is None or fact["synced"] == look.code:
            yield Finding(host, "code", "ok", "the code is there", cell=(fact["synced"] or "none")[:7])
        else:
            yield Finding(host, "code", "ok", "the next run brings the code", cell="to sync")


def _compare_code(look: Look) -> Iterator[Finding]:
    digests = {host: fact["digest"] and fact["digest"][:7] for host, fact in look.having("code")}
    mend = "copy the same code to all of them, or let sync: do it"
    yield from _compare(
        look,
        "code",
        digests,
        lambda digest: f"code {digest}" if digest else "no Python file in workdir",
        lambda *_: mend,
    )


def _shorten(names: Sequence[str], most: int = MOST_SHOWN) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


# The machine.


def check_clock(look: Look) -> Iterator[Finding]:
    """Against what most clocks say, this machine's among them: it may be the one that is wrong."""
    usual = _middle([offset for offset, _ in look.offsets.values()])
    for host, (offset, uncertainty) in sorted(look.offsets.items()):
        if host not in look.facts:
            continue
        off = offset - usual
        certain = abs(off) - uncertainty
        level: Level = "failure" if certain > LARGE_OFFSET else "warning" if certain > SMALL_OFFSET else "ok"
        found = f"its clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}"
        is_kept = (look.facts[host].get("system") or {}).get("clock_is_kept", True)
        mend = "start a time service there, such as chrony" + ("" if is_kept else "; none keeps its clock now")
        yield Finding(
            host, "clock", level, found, "" if level == "ok" else mend, "" if level == "ok" else f"{off:+.0f} s"
        )


def _middle(offsets: Sequence[float]) -> float:
    """The median with this machine's 0; of two middles, what is between them and nearest to 0."""
    ordered = sorted([0.0, *offsets])
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(max(0.0, low), high)


def check_disk(look: Look) -> Iterator[Finding]:
    for name, mend in (("workdir", "move workdir: to another disk"), ("temp", "set TMPDIR there")):
        for host, fact in look.having(name):
            free = fact["free"]
            level: Level = "failure" if free < NO_DISK else "warning" if free < LITTLE_DISK else "ok"
            found = f"{name} {fact['path']} has {show_bytes(free)} left"
            more = {"mend": f"free some space or {mend}", "cell": show_bytes(free)} if level != "ok" else {}
            yield Finding(host, "disk", level, found, **more)


def check_memory(look: Look) -> Iterator[Finding]:
    mend = "give it more: shm_size: 1gb in a compose file, --shm-size with docker run, or a larger tmpfs"
    for host, fact in look.having("shared_memory"):
        free = fact["free"]
        found = f"/dev/shm, which data loaders and collectives use, has {show_bytes(free)} left"
        if free <= DOCKER_SHARED_MEMORY:
            yield Finding(host, "memory", "warning", found, mend, show_bytes(free))
        else:
            yield Finding(host, "memory", "ok", found)


def show_bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


# Devices.


def check_devices(look: Look) -> Iterator[Finding]:
    labels: dict[int, str | None] = {}
    for host, _ in look.having("devices"):
        lacking = list(_check_platforms(look, host))
        yield from lacking
        yield from _check_split(look, host)
        yield from _check_holders(look, host)
        yield from _check_lock(look, host)
        if not lacking:
            labels[host] = ", ".join(count_things(count, KINDS[kind]) for kind, count in look.devices(host).items())
    mend = "look there with nvidia-smi or ls /dev (one may have failed), or take the host out of hosts:"
    yield from _compare(look, "devices", labels, lambda label: label or "no TPU or GPU", lambda *_: mend)


def count_things(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"


def _check_platforms(look: Look, host: int) -> Iterator[Finding]:
    platforms = look.platforms(host)
    counted = look.facts[host]["devices"]
    for platform in set(platforms) & {*KINDS, "gpu"}:
        kinds = GPUS if platform == "gpu" else (platform,)
        if not any(counted.get(kind) for kind in kinds):
            found = f"JAX_PLATFORMS is {','.join(platforms)}, and there is no {KINDS[kinds[0]]}"
            mend = "load its driver there (in a container: hand the devices in), or change JAX_PLATFORMS in env:"
            yield Finding(host, "devices", "failure", found, mend, "none")


def _check_split(look: Look, host: int) -> Iterator[Finding]:
    processes = look.processes[host] if look.processes else 1
    for kind in GPUS:
        count = look.devices(host).get(kind, 0)
        if count % processes:
            found = f"{count_things(count, KINDS[kind])} cannot be split evenly between {processes} processes"
            fitting = [str(number) for number in range(1, count + 1) if count % number == 0]
            mend = f"set processes_per_host: to {' or '.join(fitting)}, or list each process's GPUs in local_devices:"
            yield Finding(host, "devices", "failure", found, mend, f"{count} GPUs")


def _check_holders(look: Look, host: int) -> Iterator[Finding]:
    for kind in look.devices(host):
        holders = _find_holders(look, host, kind)
        if holders:
            shown = _shorten([f"{one['pid']} ({one['user']}: {one['command']})" for one in holders])
            pids = " ".join(str(one["pid"]) for one in holders)
            found = f"its {KINDS[kind]}s are held by process {shown}"
            mend = f"wait until it ends, or run there: kill {pids}"
            # Whoever says which GPUs are visible shares the others, and a process opens all of them.
            is_shared = kind == "cuda" and look.facts[host].get("visible") is not None
            yield Finding(host, "devices", "warning" if is_shared else "failure", found, mend, "held")


def _find_holders(look: Look, host: int, kind: str) -> list[Any]:
    processes = (look.facts[host].get("holders") or {}).get("processes", ())
    return [one for one in processes if any(file.startswith(COMPUTES[kind]) for file in one["files"])]


def _check_lock(look: Look, host: int) -> Iterator[Finding]:
    """A lock file that libtpu can open it locks anew; one that another user left it cannot."""
    lock = look.facts[host].get("tpu_lock")
    if "tpu" not in look.devices(host) or not lock or lock.get("can_be_opened", True):
        return
    if not _find_holders(look, host, "tpu"):
        unseen = (look.facts[host].get("holders") or {}).get("unseen", 0)
        nobody = f"none of the processes that can be looked at ({unseen} cannot) holds" if unseen else "nobody holds"
        found = f"{lock['owner']} left {lock['path']} behind, and {nobody} the TPU"
        yield Finding(host, "devices", "failure", found, f"run there: sudo rm {lock['path']}", "lock")


# The network.


def check_names(look: Look) -> Iterator[Finding]:
    for host in sorted(look.facts):
        findings = [*_check_other_names(look, host), *_check_own_name(look, host)]
        known = {"name", "names"} & {name for name, fact in look.facts[host].items() if fact and not _problem(fact)}
        yield from findings or ([Finding(host, "names", "ok", "names resolve")] if known else [])


def _check_other_names(look: Look, host: int) -> Iterator[Finding]:
    names = look.facts[host].get("names") or {}
    if _problem(names):
        return
    unknown = [name for name, addresses in names.items() if addresses == []]
    unanswered = [name for name, addresses in names.items() if addresses is None]
    if unknown:
        mend = "add them to its /etc/hosts or name server, or give hosts a number as internal_address"
        found = f"it cannot resolve {_shorten(unknown)}"
        yield Finding(host, "names", "failure", found, mend, f"{len(unknown)} unknown")
    if unanswered:
        found = f"its name server did not answer when asked for {_shorten(unanswered)}"
        yield Finding(host, "names", "warning", found, "look at /etc/resolv.conf there", "no answer")


def _check_own_name(look: Look, host: int) -> Iterator[Finding]:
    """gloo, which joins CPU processes, listens on the address that a host's own name resolves to."""
    own = look.facts[host].get("name")
    is_for_cpu = not look.devices(host) and look.platforms(host) in ([], ["cpu"])
    if (
        not own
        or own.get("addresses") is None
        or len(look.hosts) == 1
        or not is_for_cpu
        or _is_loopback(look.coordinator)
    ):
        return
    if all(_is_loopback(address) for address in own["addresses"]):
        where = f"resolves to {_shorten(own['addresses'])} alone" if own["addresses"] else "does not resolve"
        found = f"its own name {own['host']} {where}, so other hosts cannot reach its CPU collectives (gloo)"
        mend = f"in its /etc/hosts, give {own['host']} the address that the other hosts know"
        yield Finding(host, "names", "warning", found, mend, "loopback")


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def check_port(look: Look) -> Iterator[Finding]:
    mend = "let the hosts reach each other on every port: a firewall or security group may be in the way"
    for host, problem in sorted(look.ports.items()):
        if problem:
            yield Finding(host, "port", "failure", problem, mend, "closed")
        else:
            yield Finding(host, "port", "ok", "reaches the coordinator")
    if look.ports and 0 in look.facts and 0 not in look.ports:
        yield Finding(0, "port", "ok", "holds the coordinator's port")


def check_proxy(look: Look) -> Iterator[Finding]:
    for host, proxies in look.having("proxies"):
        if look.coordinator is None:
            continue
        name = find_capturing(proxies, look.coordinator)
        if name is None:
            yield Finding(host, "proxy", "ok", "no proxy is in the way")
            continue
        exceptions = name_exceptions(proxies)
        wanted = ",".join(filter(None, (proxies.get(exceptions), look.coordinator)))
        found = f"{name}={proxies[name]} would take connections to the coordinator at {look.coordinator}"
        mend = f'add to env: in the cluster file {exceptions}: "{wanted}"'
        yield Finding(host, "proxy", "failure", found, mend, name)


CHECKS: Sequence[Callable[[Look], Iterator[Finding]]] = (
    *(check_reachable, check_answers, check_python, check_packages, check_code, check_clock, check_disk),
    *(check_memory, check_devices, check_names, check_port, check_proxy),
)
