"""Can the run have the hosts' TPUs and GPUs: counted, split between processes, held by nobody else; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostmesh.launcher.planning.accelerators import DEVICE_NAMES, GPU_KINDS, PLATFORMS, find_uneven
from hostmesh.launcher.preflight.differences import difference_findings, find_difference
from hostmesh.launcher.preflight.host_reports import Finding, HostReports
from hostmesh.launcher.words import count_things, list_some

# A process that has a file open whose name begins like this computes on such devices.
COMPUTE_FILES = {"tpu": ("/dev/accel", "/dev/vfio/"), "cuda": ("/dev/nvidia-uvm",), "rocm": ("/dev/kfd",)}
# Variables of a host that give its processes only some of its GPUs.
RESTRICTING = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
MAX_COMMAND = 60


def check_devices(reports: HostReports) -> Iterator[Finding]:
    counted: dict[int, str | None] = {}
    for host, _ in reports.having("devices"):
        lacking = list(_check_platforms(reports, host))
        yield from lacking
        yield from _check_split(reports, host)
        yield from _check_holders(reports, host)
        yield from _check_lock(reports, host)
        if not lacking:
            devices = reports.devices(host)
            counted[host] = ", ".join(count_things(count, DEVICE_NAMES[kind]) for kind, count in devices.items())
    difference = find_difference(counted)
    texts = {host: text or "no TPU or GPU" for host, text in counted.items()}
    fix = "look there with nvidia-smi or ls /dev (one may have failed), or take the host out of hosts:"
    yield from difference_findings(reports, "devices", difference, texts, dict.fromkeys(difference.concerned, fix))


def _check_platforms(reports: HostReports, host: int) -> Iterator[Finding]:
    platforms = reports.platforms(host)
    counted = reports.facts[host]["devices"]
    for platform in sorted(set(platforms) & {*DEVICE_NAMES, "gpu"}):
        kinds = GPU_KINDS if platform == "gpu" else (platform,)
        if not any(counted.get(kind) for kind in kinds):
            message = f"{PLATFORMS} is {','.join(platforms)}, and there is no {DEVICE_NAMES[kinds[0]]}"
            fix = f"load its driver there (in a container: hand the devices in), or change {PLATFORMS} in env:"
            yield Finding(host, "devices", "failure", message, fix, "none")


def _check_split(reports: HostReports, host: int) -> Iterator[Finding]:
    processes = reports.processes[host] if reports.processes else 1
    for kind in GPU_KINDS:
        count = reports.devices(host).get(kind, 0)
        if uneven := find_uneven(count, processes, DEVICE_NAMES[kind]):
            yield Finding(host, "devices", "failure", uneven.found, uneven.wanted, f"{count} GPUs")


def _check_holders(reports: HostReports, host: int) -> Iterator[Finding]:
    for kind in reports.devices(host):
        holders = _find_holders(reports, host, kind)
        if holders:
            shown = list_some([f"{one['pid']} ({one['user']}: {one['command'][:MAX_COMMAND]})" for one in holders])
            pids = " ".join(str(one["pid"]) for one in holders)
            message = f"its {DEVICE_NAMES[kind]}s are held by process {shown}"
            fix = f"wait until it ends, or run there: kill {pids}"
            # Where a run gets only some of the GPUs, others may use the rest, and every process opens the files of all.
            is_shared = any(name in (reports.facts[host].get("visible") or {}) for name in RESTRICTING.get(kind, ()))
            yield Finding(host, "devices", "warning" if is_shared else "failure", message, fix, "held")


def _find_holders(reports: HostReports, host: int, kind: str) -> list[Any]:
    processes = (reports.facts[host].get("holders") or {}).get("processes", ())
    return [one for one in processes if any(file.startswith(COMPUTE_FILES[kind]) for file in one["files"])]


def _check_lock(reports: HostReports, host: int) -> Iterator[Finding]:
    """libtpu takes over a lock file that it can open; it cannot open one that another user left behind."""
    lock = reports.facts[host].get("tpu_lock")
    if "tpu" not in reports.devices(host) or not lock or lock.get("can_be_opened", True):
        return
    if not _find_holders(reports, host, "tpu"):
        unseen = (reports.facts[host].get("holders") or {}).get("unseen", 0)
        nobody = f"none of the processes that can be looked at ({unseen} cannot) holds" if unseen else "nobody holds"
        message = f"{lock['owner']} left {lock['path']} behind, and {nobody} the TPU"
        yield Finding(host, "devices", "failure", message, f"run there: sudo rm {lock['path']}", "lock")
