"""Can the run have the hosts' TPUs and GPUs: counted, split between processes, held by nobody else; pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostmesh.launcher.preflight.host_reports import GPUS, KINDS, Finding, HostReports, count_things, shorten
from hostmesh.launcher.preflight.versions import compare

# Which files make a process one that computes there, by how their names begin.
COMPUTES = {"tpu": ("/dev/accel", "/dev/vfio/"), "cuda": ("/dev/nvidia-uvm",), "rocm": ("/dev/kfd",)}
# Which variables say what of them is visible.
VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
COMMAND_SHOWN = 60


def check_devices(look: HostReports) -> Iterator[Finding]:
    labels: dict[int, str | None] = {}
    for host, _ in look.having("devices"):
        lacking = list(_check_platforms(look, host))
        yield from lacking
        yield from _check_split(look, host)
        yield from _check_holders(look, host)
        yield from _check_lock(look, host)
        if not lacking:
            labels[host] = ", ".join(count_things(count, KINDS[kind]) for kind, count in look.devices(host).items())
    fix = "look there with nvidia-smi or ls /dev (one may have failed), or take the host out of hosts:"
    yield from compare(look, "devices", labels, lambda label: label or "no TPU or GPU", lambda *_: fix)


def _check_platforms(look: HostReports, host: int) -> Iterator[Finding]:
    platforms = look.platforms(host)
    counted = look.facts[host]["devices"]
    for platform in sorted(set(platforms) & {*KINDS, "gpu"}):
        kinds = GPUS if platform == "gpu" else (platform,)
        if not any(counted.get(kind) for kind in kinds):
            found = f"JAX_PLATFORMS is {','.join(platforms)}, and there is no {KINDS[kinds[0]]}"
            fix = "load its driver there (in a container: hand the devices in), or change JAX_PLATFORMS in env:"
            yield Finding(host, "devices", "failure", found, fix, "none")


def _check_split(look: HostReports, host: int) -> Iterator[Finding]:
    processes = look.processes[host] if look.processes else 1
    for kind in GPUS:
        count = look.devices(host).get(kind, 0)
        if count % processes:
            found = f"{count_things(count, KINDS[kind])} cannot be split evenly between {processes} processes"
            fitting = [str(number) for number in range(1, count + 1) if count % number == 0]
            fix = f"set processes_per_host: to {' or '.join(fitting)}, or list each process's GPUs in local_devices:"
            yield Finding(host, "devices", "failure", found, fix, f"{count} GPUs")


def _check_holders(look: HostReports, host: int) -> Iterator[Finding]:
    for kind in look.devices(host):
        holders = _find_holders(look, host, kind)
        if holders:
            shown = shorten([f"{one['pid']} ({one['user']}: {one['command'][:COMMAND_SHOWN]})" for one in holders])
            pids = " ".join(str(one["pid"]) for one in holders)
            found = f"its {KINDS[kind]}s are held by process {shown}"
            fix = f"wait until it ends, or run there: kill {pids}"
            # Whoever says which GPUs are visible shares the others, and a process opens all of them.
            is_shared = any(name in (look.facts[host].get("visible") or {}) for name in VISIBLE.get(kind, ()))
            yield Finding(host, "devices", "warning" if is_shared else "failure", found, fix, "held")


def _find_holders(look: HostReports, host: int, kind: str) -> list[Any]:
    processes = (look.facts[host].get("holders") or {}).get("processes", ())
    return [one for one in processes if any(file.startswith(COMPUTES[kind]) for file in one["files"])]


def _check_lock(look: HostReports, host: int) -> Iterator[Finding]:
    """A lock file that libtpu can open it locks anew; one that another user left it cannot."""
    lock = look.facts[host].get("tpu_lock")
    if "tpu" not in look.devices(host) or not lock or lock.get("can_be_opened", True):
        return
    if not _find_holders(look, host, "tpu"):
        unseen = (look.facts[host].get("holders") or {}).get("unseen", 0)
        nobody = f"none of the processes that can be looked at ({unseen} cannot) holds" if unseen else "nobody holds"
        found = f"{lock['owner']} left {lock['path']} behind, and {nobody} the TPU"
        yield Finding(host, "devices", "failure", found, f"run there: sudo rm {lock['path']}", "lock")
