"""From a cluster and a job to the processes of a run: ids, hosts, environment, coordinator; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hostmesh.launcher.accelerators import GPU_PLATFORMS, NUM_CPU_DEVICES, PLATFORMS, VISIBLE_GPUS, LocalGpus
from hostmesh.launcher.cluster.file import Cluster, Host, Job
from hostmesh.launcher.errors import UsageError
from hostmesh.worker.identity import METRICS, Identity


@dataclass(frozen=True)
class Process:
    process_id: int
    host: int
    local_process_id: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    cluster: Cluster
    job: Job
    env: Mapping[str, str]
    processes: tuple[Process, ...]
    coordinators: tuple[str, ...]  # addresses to try first; which one it is to be, the hosts' answers decide
    cold: bool
    gpus: LocalGpus | None = None  # that the processes on this machine share; those of other hosts are not known yet

    def host_of(self, process: Process) -> Host:
        return self.cluster.hosts[process.host]

    def is_warm(self, host: Host) -> bool:
        """One process alone starts sooner cold: nobody shares what the nursery imports."""
        return not self.cold and self.job.command is None and host.processes > 1

    def argv(self) -> list[str]:
        if self.job.command is not None:
            return [*self.job.command, *self.job.args]
        head = ["-m", self.job.module] if self.job.module is not None else [self.job.script]
        return [*filter(None, head), *self.job.args]

    def identity(self, process: Process, run_id: str, attempt: int, coordinator: str, port: int) -> Identity:
        return Identity(
            run_id=run_id,
            attempt=attempt,
            host=self.host_of(process).address,
            process_id=process.process_id,
            num_processes=len(self.processes),
            local_process_id=process.local_process_id,
            coordinator_address=f"[{coordinator}]:{port}" if ":" in coordinator else f"{coordinator}:{port}",
        )


def make_plan(
    cluster: Cluster, job: Job, devices: int | None = None, cold: bool = False, gpus: LocalGpus | None = None
) -> Plan:
    env = dict(cluster.env)
    if devices is not None:
        env[NUM_CPU_DEVICES] = str(devices)
    return Plan(
        cluster=cluster,
        job=job,
        env=env,
        processes=tuple(_processes(cluster, gpus)),
        coordinators=(_fixed_coordinator(cluster) or cluster.hosts[0].address,),
        cold=cold,
        gpus=gpus,
    )


def _fixed_coordinator(cluster: Cluster) -> str | None:
    """None when only the hosts can tell: the address SSH uses may be one that the others cannot reach."""
    return "127.0.0.1" if cluster.transport == "local" else cluster.hosts[0].internal_address


def _processes(cluster: Cluster, gpus: LocalGpus | None) -> list[Process]:
    reporting = {METRICS: cluster.metrics} if cluster.metrics == "all" else {}
    places = [(host, local) for host, settings in enumerate(cluster.hosts) for local in range(settings.processes)]
    split = _split_here(cluster, len(places), gpus) if gpus is not None else [{} for _ in places]
    return [
        Process(process_id, host, local, {**(_listed_devices(cluster, local) or split[process_id]), **reporting})
        for process_id, (host, local) in enumerate(places)
    ]


def _split_here(cluster: Cluster, processes: int, gpus: LocalGpus) -> list[dict[str, str]]:
    """Hosts of a local cluster are all this machine, and its GPUs are there once."""
    here = replace(cluster, hosts=(Host(cluster.hosts[0].address, processes),))
    return split_devices(here, 0, gpus.count, gpus.seen, gpus.kind)


def _listed_devices(cluster: Cluster, local: int) -> dict[str, str]:
    if cluster.local_devices == "auto":
        return {}
    return _show_gpus(map(str, cluster.local_devices[local]), _platforms(cluster.env))


def split_devices(
    cluster: Cluster, host: int, gpus: int, env: Mapping[str, str], kind: str | None = None
) -> list[dict[str, str]]:
    """What each process of a host is told about its GPUs, once they are counted; one process takes all of them.

    `env` is what the processes would see otherwise: where it says which GPUs are visible, those are split. `kind` is
    that of the GPUs, as JAX_PLATFORMS names it.
    """
    processes, platforms = cluster.hosts[host].processes, _platforms(env)
    visible = _visible_gpus(gpus, env, kind or next((kind for kind in VISIBLE_GPUS if kind in platforms), None))
    for_cpu = not platforms & GPU_PLATFORMS if platforms else not visible
    if processes == 1 or cluster.local_devices != "auto" or for_cpu:
        return [{} for _ in range(processes)]
    each, left = divmod(len(visible), processes)
    if left or not each:
        is_here = cluster.transport == "local"
        raise UsageError(_explain_uneven(cluster.hosts[host], len(visible), env, is_here))
    return [_show_gpus(visible[each * local :][:each], platforms) for local in range(processes)]


def _platforms(env: Mapping[str, str]) -> set[str]:
    return set(env.get(PLATFORMS, "").split(",")) - {""}


def _visible_gpus(gpus: int, env: Mapping[str, str], kind: str | None) -> list[str]:
    """Names the driver knows: its own numbers, or what a variable lists already, up to the -1 that ends such a list."""
    listed = _listed_gpus(env, kind)
    names = map(str, range(gpus)) if listed is None else map(str.strip, listed.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))[:gpus]


def _listed_gpus(env: Mapping[str, str], kind: str | None) -> str | None:
    """HIP takes CUDA's variable where its own says nothing, and an empty one says nothing to it."""
    cuda, hip = (env.get(VISIBLE_GPUS[each]) for each in ("cuda", "rocm"))
    if kind == "cuda":
        return cuda
    if kind == "rocm":
        return hip or cuda or None
    return cuda if cuda is not None else hip


def _show_gpus(names: Iterable[str], platforms: set[str]) -> dict[str, str]:
    # Not JAX_LOCAL_DEVICE_IDS: jax looks at it in initialize() alone, so a script that does without would take every
    # GPU, and so would TensorFlow or PyTorch beside jax. And not both: jax would count among the visible ones.
    # Where the maker is not named both get told; each reads its own variable.
    shown = ",".join(names)
    meant = [name for platform, name in VISIBLE_GPUS.items() if platform in platforms]
    return {name: shown for name in meant or VISIBLE_GPUS.values()}


def _explain_uneven(host: Host, gpus: int, env: Mapping[str, str], is_here: bool) -> str:
    if not gpus:
        return f"{host.address}: found no GPUs, but {PLATFORMS} is {env[PLATFORMS]}; is the driver loaded there?"
    fit = [str(count) for count in range(1, gpus + 1) if gpus % count == 0]
    wanted = f"processes_per_host to be one of {', '.join(fit)}" if len(fit) > 1 else "processes_per_host to be 1"
    found = f"{gpus} {'GPU' if gpus == 1 else 'GPUs'} for {host.processes} processes"
    if is_here:
        count = f"one of {', '.join(fit)}" if len(fit) > 1 else "1"
        return f"{host.address}: found {found}, wanted {count}, or {PLATFORMS}=cpu (or --devices D) to simulate on CPU"
    return f"{host.address}: found {found}, wanted {wanted}, or local_devices to list the GPUs of each process"


def describe_devices(plan: Plan) -> str:
    """What processes on this machine compute on, for the first line of a run; nothing is known of other hosts yet."""
    count = len(plan.processes)
    if plan.cluster.transport != "local":
        return ""
    if plan.gpus is not None and plan.gpus.count:
        if plan.cluster.local_devices != "auto":
            return ", GPUs as listed in local_devices"
        each, gpus = plan.gpus.count // count, plan.gpus.count
        return f", {each} of {gpus} GPUs each" if count > 1 else f", {gpus} {'GPU' if gpus == 1 else 'GPUs'}"
    if (platforms := plan.env.get(PLATFORMS)) != "cpu":
        return f", {PLATFORMS}={platforms}" if platforms else ", on what jax finds"
    devices = plan.env.get(NUM_CPU_DEVICES)
    simulated = "on CPU" if count == 1 and devices is None else "simulated on CPU"
    return f", {simulated}" + (f", {devices} devices each" if devices is not None and devices != "1" else "")


def plan_json(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    return {
        "name": cluster.name,
        "transport": cluster.transport,
        "num_processes": len(plan.processes),
        "coordinator": {
            "process_id": 0,
            "host": cluster.hosts[0].address,
            "address": plan.coordinators[0],
            "port": None,
        },
        "argv": plan.argv(),
        "env": dict(plan.env),
        "secrets": list(cluster.secrets),
        "workdir": cluster.workdir,
        "lease": cluster.lease,
        "metrics": cluster.metrics,
        "grace": cluster.grace,
        "keep_going": cluster.keep_going,
        "processes": [
            {
                "process_id": process.process_id,
                "host": plan.host_of(process).address,
                "local_process_id": process.local_process_id,
                "python": plan.host_of(process).python,
                "start": "warm" if plan.is_warm(plan.host_of(process)) else "cold",
                "env": dict(process.env),
            }
            for process in plan.processes
        ],
    }


def plan_table(plan: Plan) -> str:
    cluster = plan.cluster
    hosts, count = len(cluster.hosts), len(plan.processes)
    facts = {
        "cluster": f"{cluster.name} (transport {cluster.transport})",
        "processes": f"{count} on {hosts} {'host' if hosts == 1 else 'hosts'}",
        "runs": " ".join(plan.argv()),
        "coordinator": f"process 0 at {_say_where(cluster)}, on a port its agent reserves",
        "environment": " ".join(f"{name}={value}" for name, value in plan.env.items())
        or "nothing beside the host's own",
        "secrets": " ".join(f"{name}=[redacted]" for name in cluster.secrets) or "none",
        "stopping": f"{cluster.grace:g} s when asked to; {_say_who_goes_on(cluster)}",
    }
    head = [f"{name + ':':<13}{value}" for name, value in facts.items()]
    return "\n".join([*head, "", *_rows(plan)])


def _say_who_goes_on(cluster: Cluster) -> str:
    return "the others go on when one fails" if cluster.keep_going else "all when one fails"


def _say_where(cluster: Cluster) -> str:
    undecided = f"an address of {cluster.hosts[0].address} that is chosen when the hosts have answered"
    return _fixed_coordinator(cluster) or undecided


def _rows(plan: Plan) -> list[str]:
    titles = ("process", "host", "local", "python", "start", "own environment")
    rows = [titles]
    for process in plan.processes:
        host = plan.host_of(process)
        own = " ".join(f"{name}={value}" for name, value in process.env.items())
        start = "warm" if plan.is_warm(host) else "cold"
        rows.append(
            (str(process.process_id), host.address, str(process.local_process_id), host.python or "default", start, own)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
