"""A cluster on this machine: what `--local N` means, and the environment that its processes get."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hostmesh.launcher.cluster.model import MAX_PROCESSES, Cluster, Host
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.accelerators import ONE_TPU_PROCESS, PLATFORMS, choose_platforms, split_platforms


def local_cluster(processes: int, devices: int | None = None) -> Cluster:
    """What `--local N` means; `devices` are the CPU devices that each process is to have."""
    if not 1 <= processes <= MAX_PROCESSES:
        raise UsageError(f"--local: found {processes}, wanted from 1 to {MAX_PROCESSES} processes")
    hosts = (Host("localhost", processes),)
    return Cluster(hosts, env=local_environment({}, hosts, devices))


def local_environment(env: Mapping[str, str], hosts: tuple[Host, ...], devices: int | None) -> Mapping[str, str]:
    """The cluster's `env` with a JAX_PLATFORMS: what local processes would inherit is known here."""
    platforms, processes = choose_platforms(env, devices, hosts[0].python), sum(host.processes for host in hosts)
    if "tpu" in split_platforms(platforms) and processes > 1:
        raise UsageError(f"{PLATFORMS}: found {platforms} with {processes} processes, wanted {ONE_TPU_PROCESS}")
    return MappingProxyType({PLATFORMS: platforms, **env})
