"""Do the hosts have the same Python, packages and code; pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping

from hostmesh.launcher.preflight.differences import Site, difference_findings, find_difference, find_sites
from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level
from hostmesh.launcher.words import list_some

PACKAGES = ("jax", "jaxlib", "numpy")
EXTRAS = {"tpu": "jax[tpu]", "cuda": "jax[cuda12]", "rocm": "jax[rocm]"}


def check_python(reports: HostReports) -> Iterator[Finding]:
    versions = {host: str(fact["version"]) for host, fact in reports.having("python")}
    difference = find_difference(versions)
    texts = {host: f"python {version}" for host, version in versions.items()}
    fixes = {
        host: f"{site.text}, set python: to a Python {difference.majority}"
        for host, site in find_sites(reports, difference).items()
    }
    level = _difference_level("python", versions)
    yield from difference_findings(reports, "python", difference, texts, fixes, level)


def check_packages(reports: HostReports) -> Iterator[Finding]:
    """Packages for accelerators are compared only between hosts that have them, and shown in the column of jaxlib."""
    yield from _check_jax_is_there(reports)
    with_jax = {host: fact["packages"] for host, fact in reports.having("python") if fact["packages"]["jax"]}
    for package in PACKAGES:
        yield from _check_package(reports, package, package, with_jax)
    others = {package for packages in with_jax.values() for package in packages} - set(PACKAGES)
    for package in sorted(others):
        kind = "tpu" if package == "libtpu" else "cuda"
        with_devices = {host: packages for host, packages in with_jax.items() if kind in reports.devices(host)}
        findings = _check_package(reports, package, "jaxlib", with_devices)
        yield from (finding for finding in findings if finding.level != "ok")


def _check_package(
    reports: HostReports, package: str, check: str, packages: Mapping[int, Mapping[str, str | None]]
) -> Iterator[Finding]:
    versions = {host: installed.get(package) for host, installed in packages.items()}
    difference = find_difference(versions)
    texts = {host: f"{package} {version}" if version else f"no {package}" for host, version in versions.items()}
    fixes = {
        host: _package_fix(reports, site, package, difference.majority)
        for host, site in find_sites(reports, difference).items()
    }
    level = _difference_level(package, versions)
    yield from difference_findings(reports, check, difference, texts, fixes, level)


def _check_jax_is_there(reports: HostReports) -> Iterator[Finding]:
    versions = Counter(fact["packages"]["jax"] for _, fact in reports.having("python") if fact["packages"]["jax"])
    wanted = f"=={versions.most_common(1)[0][0]}" if versions else ""
    for host, fact in reports.having("python"):
        if not fact["packages"]["jax"]:
            extra = EXTRAS[next(iter(devices))] if (devices := reports.devices(host)) else "jax"
            fix = _pip_command(reports, Site("there", host), "install", extra + wanted)
            yield Finding(host, "jax", "failure", f"no jax in {fact['path']}", fix, "none")


def _package_fix(reports: HostReports, site: Site, package: str, version: str | None) -> str:
    if version:
        return _pip_command(reports, site, "install", f"{package}=={version}")
    return _pip_command(reports, site, "uninstall", package)


def _pip_command(reports: HostReports, site: Site, act: str, package: str) -> str:
    return f"run {site.text}: {reports.facts[site.host]['python']['path']} -m pip {act} {shlex.quote(package)}"


def _difference_level(what: str, versions: Mapping[int, str | None]) -> Level:
    """The last number of a Python or NumPy version seldom matters; every number of jax does."""
    majors = {version.rpartition(".")[0] if version else None for version in versions.values()}
    return "warning" if what in ("python", "numpy") and len(majors) == 1 and None not in majors else "failure"


def check_code(reports: HostReports) -> Iterator[Finding]:
    yield from _foresee_sync(reports) if reports.syncs else _compare_code(reports)


def _foresee_sync(reports: HostReports) -> Iterator[Finding]:
    """The next run brings the code whatever is there, but it would undo what was edited on a host."""
    for host, fact in reports.having("code"):
        if changed := fact["changed"]:
            message = f"{list_some(changed)} in workdir changed on the host since the last sync"
            fix = "the next run puts the version from here back: copy here what you want to keep"
            yield Finding(host, "code", "warning", message, fix, "changed")
        elif reports.code is None or fact["synced"] == reports.code:
            yield Finding(host, "code", "ok", "the code is there", cell=(fact["synced"] or "none")[:7])
        else:
            yield Finding(host, "code", "ok", "the next run brings the code", cell="to sync")


def _compare_code(reports: HostReports) -> Iterator[Finding]:
    digests = {host: fact["digest"] and fact["digest"][:7] for host, fact in reports.having("code")}
    difference = find_difference(digests)
    texts = {host: f"code {digest}" if digest else "no Python file in workdir" for host, digest in digests.items()}
    fix = "copy the same code to all of them, or let sync: do it"
    yield from difference_findings(reports, "code", difference, texts, dict.fromkeys(difference.concerned, fix))
