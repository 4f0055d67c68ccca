"""From a cluster YAML file to a Cluster: read all of it, check it against itself, freeze it."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hostmesh.launcher.cluster.gcloud import TpuPod, find_endpoints
from hostmesh.launcher.cluster.grammar import CLUSTER, HostEntry
from hostmesh.launcher.cluster.local import local_environment
from hostmesh.launcher.cluster.model import Cluster, Host, Kubernetes, Ssh
from hostmesh.launcher.cluster.slurm import check_engine, find_slurm_hosts, plan_slurm_hosts
from hostmesh.launcher.cluster.yaml_values import Problems, Value, compose, read_text
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.errors import UsageError
from hostmesh.launcher.planning.accelerators import ONE_TPU_PROCESS, PLATFORMS, VISIBLE_GPUS, split_platforms

GOOGLE_KEY = "~/.ssh/google_compute_engine"  # made by the first `gcloud compute … ssh`


def read_cluster(path: str | os.PathLike[str], devices: int | None = None) -> Cluster:
    """Raises one ClusterError that holds every problem of the file; only then is gcloud asked for a pod's hosts."""
    problems = Problems(os.fspath(path))
    top = Value(compose(read_text(problems.path), problems), "", problems)
    values = {"name": Path(path).stem, "env": {}, **top.read(CLUSTER, required=("hosts",))}
    named = values.pop("hosts", [])
    pod = named if isinstance(named, TpuPod) else None
    engine = values["engine"] = named if isinstance(named, Slurm | Kubernetes) else None
    check_engine(top, values, named)
    values.setdefault("transport", "ssh")
    shared = {"processes": values.pop("processes_per_host", 1), "python": values.pop("python", None)}
    entries: list[HostEntry] = [(top.under("hosts"), {"address": pod.name})] if pod else [] if engine else named
    if isinstance(named, Kubernetes):
        entries = _take_pods(top, values, named)
    hosts = plan_slurm_hosts(top, named, shared) if isinstance(named, Slurm) else ()
    hosts += tuple(Host(**{**shared, **settings}) for _, settings in entries)
    _check_entries(entries, values["transport"])
    _check_together(top, values, hosts, pod)
    if problems.entries:
        raise problems.error()
    if pod:
        hosts = _find_hosts(pod, top.under("hosts").under("gcloud"), shared)
        values["ssh"] = _add_google_key(values.get("ssh", Ssh()))
    if isinstance(named, Slurm):
        hosts = find_slurm_hosts(named, top.under("hosts").under("slurm"), hosts)
    if isinstance(named, Kubernetes) and named.selector is not None:
        hosts = _find_pods(named, top.under("hosts").under("kubernetes"), shared)
    is_local = values["transport"] == "local"
    env = local_environment(values["env"], hosts, devices) if is_local else MappingProxyType(dict(values["env"]))
    return Cluster(hosts, **{**values, "env": env})


def _take_pods(top: Value, values: dict[str, Any], engine: Kubernetes) -> list[HostEntry]:
    """Its hosts have names before there are any: those that are found by a selector are asked for later."""
    if values["transport"] != "kubernetes" and any(key.node.value == "transport" for key, _ in top.pairs()):
        top.under("transport").reject("kubernetes, or no transport: that is how pods are reached")
    values["transport"] = "kubernetes"
    return [(top.under("hosts"), {"address": f"pod-{number}"}) for number in range(engine.pods or 1)]


def _find_pods(engine: Kubernetes, value: Value, shared: dict[str, Any]) -> tuple[Host, ...]:
    from hostmesh.launcher.engines.kubernetes.engine import find_selected

    try:
        return tuple(Host(name, **shared) for name in find_selected(engine))
    except UsageError as error:
        value.fail(str(error))
        raise value.problems.error() from None


def _find_hosts(pod: TpuPod, value: Value, shared: dict[str, Any]) -> tuple[Host, ...]:
    try:
        endpoints = find_endpoints(pod)
    except UsageError as error:
        value.fail(str(error))
        raise value.problems.error() from None
    return tuple(Host(**shared, **endpoint._asdict(), user=pod.user) for endpoint in endpoints)


def _add_google_key(ssh: Ssh) -> Ssh:
    key = os.path.expanduser(GOOGLE_KEY)
    return ssh if ssh.identity_files or not os.path.isfile(key) else replace(ssh, identity_files=(key,))


def _check_pod(top: Value, transport: str | None, pod: TpuPod, processes: int | None) -> None:
    if transport not in ("ssh", None):
        top.under("transport").reject("ssh: that is how the hosts of a TPU are reached")
    if (processes or 1) > 1:
        top.under("processes_per_host").reject(ONE_TPU_PROCESS, f"{processes} with {pod}")


def _check_entries(entries: list[HostEntry], transport: str | None) -> None:
    lines: dict[tuple[str, int | None], int] = {}
    for entry, settings in entries:
        host = settings["address"], settings.get("port")
        if host in lines:
            entry.fail(f"host {host[0]} is already on line {lines[host]}")
        lines.setdefault(host, entry.line)
    with_port = {id(entry): entry for entry, settings in entries if settings.get("port")}
    for entry in with_port.values() if transport == "docker" else ():
        entry.under("port").fail("docker reaches a container by its name; remove port")


def _check_together(top: Value, values: dict[str, Any], hosts: tuple[Host, ...], pod: TpuPod | None) -> None:
    transport, env = values["transport"], values["env"]
    if "sync" in values and transport == "local":
        top.under("sync").fail("local processes run in place; remove sync")
    elif "sync" in values and "workdir" not in values:
        top.under("sync").reject("a workdir beside it: where on the hosts the code lands", "no workdir")
    if "setup" in values and values["setup"].inputs and "sync" not in values:
        inputs = top.under("setup").under("inputs")
        inputs.reject("a sync beside it: inputs are among the files that it sends", "no sync")
    _check_going_on(top, values, hosts, pod)
    if "ssh" in values and transport not in ("ssh", None):
        top.under("ssh").fail(f"transport {transport} does not use SSH; remove ssh")
    for index, name in enumerate(values.get("secrets") or ()):
        if name in env:
            top.under("secrets").item(index).reject("a name that env does not set as well")
    if pod:
        _check_pod(top, transport, pod, hosts[0].processes)
    elif "tpu" in split_platforms(env.get(PLATFORMS)):
        _check_tpu(top.under("env").under(PLATFORMS), hosts)
    if isinstance(values.get("local_devices"), tuple):
        _check_devices(top.under("local_devices"), values["local_devices"], hosts)
        for name in env.keys() & set(VISIBLE_GPUS.values()):
            top.under("env").under(name).reject("either this or local_devices, which sets it for each process")


def _check_going_on(top: Value, values: dict[str, Any], hosts: tuple[Host, ...], pod: TpuPod | None) -> None:
    """How many hosts a TPU has is known only when gcloud has been asked, and all of them make up one device mesh."""
    spares, least = values.get("spares") or 0, values.get("min_hosts")
    if pod is not None:
        for name in {"spares", "min_hosts"} & values.keys():
            top.under(name).fail("a TPU needs all of its hosts; remove it")
        return
    if spares >= len(hosts) > 0:
        top.under("spares").reject(f"fewer than the {len(hosts)} hosts: some have to run the processes")
    elif least is not None and least > (seats := len(hosts) - spares) > 0:
        beside = f" beside {spares} spares" if spares > 1 else " beside 1 spare" if spares else ""
        top.under("min_hosts").reject(f"at most {seats}: the number of hosts{beside}")


def _check_tpu(platforms: Value, hosts: tuple[Host, ...]) -> None:
    crowded = next((host for host in hosts if (host.processes or 1) > 1), None)
    if crowded:
        platforms.reject(ONE_TPU_PROCESS, f"{platforms.shown} with {crowded.processes} processes on {crowded.address}")


def _check_devices(value: Value, devices: tuple[tuple[int, ...], ...], hosts: tuple[Host, ...]) -> None:
    unequal = next((host for host in hosts if host.processes not in (None, len(devices))), None)
    if unequal:
        wanted = f"{unequal.processes}: one for each process on {unequal.address}"
        value.reject(wanted, f"{len(devices)} lists of devices")
    for device, times in Counter(itertools.chain(*devices)).items():
        if times > 1:
            value.reject("each device once on a host", f"device {device} {times} times")
