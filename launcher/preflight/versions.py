"""Are the hosts alike: Python, packages and code, the odd host out named; pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level, shorten

PACKAGES = ("jax", "jaxlib", "numpy")
EXTRAS = {"tpu": "jax[tpu]", "cuda": "jax[cuda12]", "rocm": "jax[rocm]"}

Say = Callable[[str | None], str]
# From where to fix it, in words, one of these hosts, and the value wanted there.
Fix = Callable[[str, int, str | None], str]


def check_python(look: HostReports) -> Iterator[Finding]:
    versions = {host: str(fact["version"]) for host, fact in look.having("python")}
    level = _judge_difference("python", versions)

    def fix(where: str, host: int, wanted: str | None) -> str:
        return f"{where}, set python: to a Python {wanted}"

    yield from compare(look, "python", versions, "python {}".format, fix, level)


def check_packages(look: HostReports) -> Iterator[Finding]:
    """What serves accelerators counts only on hosts that have them, and in the column of jaxlib."""
    yield from _check_jax_is_there(look)
    with_jax = {host: fact["packages"] for host, fact in look.having("python") if fact["packages"]["jax"]}
    for package in PACKAGES:
        yield from _check_package(look, package, package, with_jax)
    others = {package for packages in with_jax.values() for package in packages} - set(PACKAGES)
    for package in sorted(others):
        kind = "tpu" if package == "libtpu" else "cuda"
        served = {host: packages for host, packages in with_jax.items() if kind in look.devices(host)}
        findings = _check_package(look, package, "jaxlib", served)
        yield from (finding for finding in findings if finding.level != "ok")


def _check_package(
    look: HostReports, package: str, check: str, packages: Mapping[int, Mapping[str, str | None]]
) -> Iterator[Finding]:
    versions = {host: found.get(package) for host, found in packages.items()}
    yield from compare(
        look,
        check,
        versions,
        lambda version: f"{package} {version}" if version else f"no {package}",
        lambda where, host, wanted: _say_pip(
            look, where, host, *(("install", f"{package}=={wanted}") if wanted else ("uninstall", package))
        ),
        _judge_difference(package, versions),
    )


def _check_jax_is_there(look: HostReports) -> Iterator[Finding]:
    versions = Counter(fact["packages"]["jax"] for _, fact in look.having("python") if fact["packages"]["jax"])
    wanted = f"=={versions.most_common(1)[0][0]}" if versions else ""
    for host, fact in look.having("python"):
        if not fact["packages"]["jax"]:
            extra = EXTRAS[next(iter(devices))] if (devices := look.devices(host)) else "jax"
            fix = _say_pip(look, "there", host, "install", extra + wanted)
            yield Finding(host, "jax", "failure", f"no jax in {fact['path']}", fix, "none")


def _say_pip(look: HostReports, where: str, host: int, act: str, what: str) -> str:
    return f"run {where}: {look.facts[host]['python']['path']} -m pip {act} {shlex.quote(what)}"


def compare(
    look: HostReports,
    check: str,
    values: Mapping[int, str | None],
    say: Say,
    fix: Fix,
    level: Level = "failure",
) -> Iterator[Finding]:
    """Most hosts are right; where no value has more hosts than any other, all of them are told of all."""
    counts = Counter(values.values()).most_common()
    if len(counts) > 1 and counts[0][1] == counts[1][1]:
        yield from _tell_all(look, check, values, say, fix, level)
        return
    for host, value in values.items():
        most, number = counts[0]
        if value == most:
            yield Finding(host, check, "ok", say(value), cell=value or "none")
        else:
            found = f"{say(value)}, {_say_most(most, number, values)}"
            yield Finding(host, check, level, found, fix("there", host, most), value or "none")


def _tell_all(
    look: HostReports, check: str, values: Mapping[int, str | None], say: Say, fix: Fix, level: Level
) -> Iterator[Finding]:
    wanted = max((value for value in values.values() if value), key=_version_key)
    others = [host for host, value in values.items() if value != wanted]
    groups = [[host for host in values if values[host] == value] for value in dict.fromkeys(values.values())]
    said = [f"{say(values[group[0]])} on {look.name(group)}" for group in groups]
    found = f"the hosts differ: {', '.join(said)}"
    how = fix(f"on {look.name(others)}", others[0], wanted)
    for host, value in values.items():
        yield Finding(host, check, level, found, how, value or "none")


def _say_most(most: str | None, number: int, values: Mapping[int, Any]) -> str:
    others = f"the other {number} hosts have" if number == len(values) - 1 else f"{number} of {len(values)} hosts have"
    return f"{others} {most or 'none'}"


def _version_key(version: str) -> list[int]:
    return [int(part) if part.isdigit() else -1 for part in version.split(".")]


def _judge_difference(what: str, versions: Mapping[int, str | None]) -> Level:
    """The last number of a Python or NumPy version seldom matters; every number of jax does."""
    majors = {version.rpartition(".")[0] if version else None for version in versions.values()}
    return "warning" if what in ("python", "numpy") and len(majors) == 1 and None not in majors else "failure"


def check_code(look: HostReports) -> Iterator[Finding]:
    yield from _foresee_sync(look) if look.syncs else _compare_code(look)


def _foresee_sync(look: HostReports) -> Iterator[Finding]:
    """Whatever is there, the next run brings its own; but what was edited on a host would be lost."""
    for host, fact in look.having("code"):
        if changed := fact["changed"]:
            found = f"{shorten(changed)} in workdir changed on the host since the last sync"
            fix = "the next run puts the version from here back: copy here what you want to keep"
            yield Finding(host, "code", "warning", found, fix, "changed")
        elif look.code is None or fact["synced"] == look.code:
            yield Finding(host, "code", "ok", "the code is there", cell=(fact["synced"] or "none")[:7])
        else:
            yield Finding(host, "code", "ok", "the next run brings the code", cell="to sync")


def _compare_code(look: HostReports) -> Iterator[Finding]:
    digests = {host: fact["digest"] and fact["digest"][:7] for host, fact in look.having("code")}
    fix = "copy the same code to all of them, or let sync: do it"
    yield from compare(
        look,
        "code",
        digests,
        lambda digest: f"code {digest}" if digest else "no Python file in workdir",
        lambda *_: fix,
    )
