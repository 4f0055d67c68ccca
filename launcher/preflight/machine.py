"""Is each machine fit to train: its clock, its disks, its workdir and its shared memory; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hostmesh.launcher.preflight.host_reports import Finding, HostReports, Level
from hostmesh.launcher.words import tell_size

LITTLE_DISK, NO_DISK = 1 << 30, 100 << 20
DOCKER_SHARED_MEMORY = 64 << 20
SMALL_OFFSET, LARGE_OFFSET = 1.0, 30.0
DISKS = {"workdir": "workdir", "temp": "the temporary folder"}


def check_clock(reports: HostReports) -> Iterator[Finding]:
    """Compares each clock with the median of all, this machine's included: it may be the one that is wrong.

    The median is as uncertain as a usual host: busy hosts answer late, each by another time.
    """
    usual = _median([offset for offset, _ in reports.offsets.values()])
    uncertainties = sorted(uncertainty for _, uncertainty in reports.offsets.values())
    usual_uncertainty = uncertainties[len(uncertainties) // 2] if usual else 0.0
    for host, (offset, uncertainty) in sorted(reports.offsets.items()):
        if host not in reports.facts:
            continue
        ahead = offset - usual
        certain = abs(ahead) - uncertainty - usual_uncertainty
        message = f"its clock is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
        if certain <= SMALL_OFFSET:
            yield Finding(host, "clock", "ok", message)
            continue
        is_kept = (reports.facts[host].get("system") or {}).get("clock_is_kept", True)
        fix = "start a time service there, such as chrony" + ("" if is_kept else "; none keeps its clock now")
        yield Finding(
            host, "clock", "failure" if certain > LARGE_OFFSET else "warning", message, fix, f"{ahead:+.0f} s"
        )


def _median(offsets: Sequence[float]) -> float:
    """The median of the offsets and this machine's own, which is 0; of two middle ones, the value between them that is
    nearest to 0."""
    ordered = sorted([0.0, *offsets])
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return min(max(0.0, low), high)


def check_disk(reports: HostReports) -> Iterator[Finding]:
    fixes = {"workdir": "move workdir: to another disk", "temp": "set TMPDIR there"}
    for name, fix in fixes.items():
        for host, fact in reports.having(name):
            free = fact["free"]
            level: Level = "failure" if free < NO_DISK else "warning" if free < LITTLE_DISK else "ok"
            message = f"{DISKS[name]} {fact['path']} has {tell_size(free)} left"
            more = {"fix": f"free some space or {fix}", "cell": tell_size(free)} if level != "ok" else {}
            yield Finding(host, "disk", level, message, **more)


def check_workdir(reports: HostReports) -> Iterator[Finding]:
    """A run that brings its code must be able to write it; without sync the code must be there."""
    for host, fact in reports.having("workdir"):
        path, why = fact["path"], fact.get("unwritable")
        if reports.syncs and why:
            fix = f"let the user of the run write there, or change workdir: in the cluster file ({path})"
            message = f"workdir {path} cannot be written: {why}"
            yield Finding(host, "disk", "failure", message, fix, "unwritable")
        elif not reports.syncs and not fact.get("is_there", True):
            fix = "copy the code there, let sync: bring it, or change workdir:"
            yield Finding(host, "disk", "failure", f"found no folder {path} for workdir", fix, "none")
        elif why:
            fix = "outputs with relative paths would fail; let the user of the run write there, or change workdir:"
            yield Finding(host, "disk", "warning", f"workdir {path} cannot be written: {why}", fix, "unwritable")


def check_memory(reports: HostReports) -> Iterator[Finding]:
    fix = "give it more: shm_size: 1gb in a compose file, --shm-size with docker run, or a larger tmpfs"
    for host, fact in reports.having("shared_memory"):
        free = fact["free"]
        message = f"/dev/shm, which data loaders and collectives use, has {tell_size(free)} left"
        if free <= DOCKER_SHARED_MEMORY:
            yield Finding(host, "memory", "warning", message, fix, tell_size(free))
        else:
            yield Finding(host, "memory", "ok", message)
