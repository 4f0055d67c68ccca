"""From a cluster and a job to the processes of a run: ids, hosts, environment, coordinator; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.cluster.model import Cluster, Host, Job
from hostmesh.launcher.output.redact import hide_in_urls
from hostmesh.launcher.planning.accelerators import (
    NUM_CPU_DEVICES,
    PLATFORMS,
    LocalGpus,
    show_gpus,
    split_devices,
    split_platforms,
)
from hostmesh.launcher.planning.environment import show_environment
from hostmesh.launcher.words import count_things
from hostmesh.worker.identity import CHAOS, COMPILED, GUARD, METRICS, PROGRAMS, Identity

if TYPE_CHECKING:
    from hostmesh.launcher.chaos.model import Fault


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
    cold: bool
    gpus: LocalGpus | None = None  # of this machine, for processes here; the GPUs of other hosts are counted later
    faults: tuple[Fault, ...] = ()  # of a rehearsal; each process finds its own in its environment

    def host_of(self, process: Process) -> Host:
        return self.cluster.hosts[process.host]

    def place(self, hosts: Sequence[int]) -> Plan:
        """The plan with its processes on these hosts, in this order; by their numbers in the cluster."""
        placed = replace(self, processes=tuple(_plan_processes(self.cluster, self.gpus, hosts)))
        if not self.faults:
            return placed
        from hostmesh.launcher.chaos.model import add_faults  # only a rehearsal needs it

        return add_faults(placed, self.faults)

    def is_warm(self, host: Host) -> bool:
        """Whether processes are forked with jax imported; a single process starts sooner without that."""
        return self.can_be_warm and host.processes > 1

    @property
    def can_be_warm(self) -> bool:
        return not self.cold and self.job.command is None

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
        processes=tuple(_plan_processes(cluster, gpus, range(len(cluster.hosts) - cluster.spares))),
        cold=cold,
        gpus=gpus,
    )


def hint_coordinator(cluster: Cluster, first: Host) -> str:
    """The address of the first process to try first; the answers of the hosts decide which one is used."""
    return _fixed_coordinator(cluster, first) or first.address


def _fixed_coordinator(cluster: Cluster, first: Host) -> str | None:
    """The coordinator's address where it is known before the hosts answer.

    The address that SSH uses does not count: other hosts may not reach it.
    """
    return "127.0.0.1" if cluster.transport == "local" else first.internal_address


def _plan_processes(cluster: Cluster, gpus: LocalGpus | None, hosts: Sequence[int]) -> list[Process]:
    reporting = {METRICS: cluster.metrics} if cluster.metrics == "all" else {}
    reporting |= {PROGRAMS: cluster.programs} if cluster.programs == "off" else {}
    reporting |= {GUARD: cluster.guard} if cluster.guard != "sample" else {}
    reporting |= {COMPILED: cluster.compile_cache} if cluster.compile_cache == "off" else {}
    slots = [(host, local) for host in hosts for local in range(cluster.hosts[host].processes)]
    split = _split_here(cluster, len(slots), gpus) if gpus is not None else [{} for _ in slots]
    return [
        Process(process_id, host, local, {**(_listed_devices(cluster, local) or split[process_id]), **reporting})
        for process_id, (host, local) in enumerate(slots)
    ]


def _split_here(cluster: Cluster, processes: int, gpus: LocalGpus) -> list[dict[str, str]]:
    """All hosts of a local cluster are this machine, so their processes share its GPUs."""
    here = replace(cluster, hosts=(Host(cluster.hosts[0].address, processes),))
    return split_devices(here, 0, gpus.count, gpus.env, gpus.kind)


def _listed_devices(cluster: Cluster, local: int) -> dict[str, str]:
    if cluster.local_devices == "auto":
        return {}
    return show_gpus(map(str, cluster.local_devices[local]), split_platforms(cluster.env.get(PLATFORMS)))


def describe_start(plan: Plan, hosts: Sequence[str]) -> str:
    """`4 processes on 2 hosts and 1 spare, simulated on CPU`, where `hosts` are those that processes start on."""
    on = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    on += f" and {count_things(plan.cluster.spares, 'spare')}" if plan.cluster.spares else ""
    return f"{count_things(len(plan.processes), 'process')} on {on}{describe_devices(plan)}"


def describe_devices(plan: Plan) -> str:
    """What processes on this machine compute on, for the first line of a run; nothing is known of other hosts yet."""
    count = len(plan.processes)
    if plan.cluster.transport != "local":
        return ""
    if plan.gpus is not None and plan.gpus.count:
        if plan.cluster.local_devices != "auto":
            return ", GPUs as listed in local_devices"
        each, gpus = plan.gpus.count // count, plan.gpus.count
        return f", {each} of {gpus} GPUs each" if count > 1 else f", {count_things(gpus, 'GPU')}"
    if (platforms := plan.env.get(PLATFORMS)) != "cpu":
        return f", {PLATFORMS}={platforms}" if platforms else ", on what jax finds"
    devices = plan.env.get(NUM_CPU_DEVICES)
    simulated = "on CPU" if count == 1 and devices is None else "simulated on CPU"
    return f", {simulated}" + (f", {devices} devices each" if devices is not None and devices != "1" else "")


def list_spares(cluster: Cluster) -> Sequence[Host]:
    return cluster.hosts[len(cluster.hosts) - cluster.spares :]


def plan_json(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    return {
        "name": cluster.name,
        "transport": cluster.transport,
        "num_processes": len(plan.processes),
        "coordinator": {
            "process_id": 0,
            "host": cluster.hosts[0].address,
            "address": hint_coordinator(cluster, cluster.hosts[0]),
            "port": None,
        },
        "argv": [hide_in_urls(word) for word in plan.argv()],
        "env": show_environment(plan.env),
        "secrets": list(cluster.secrets),
        "workdir": cluster.workdir,
        "lease": cluster.lease,
        "programs": cluster.programs,
        "guard": cluster.guard,
        "compile_cache": cluster.compile_cache,
        "metrics": cluster.metrics,
        "grace": cluster.grace,
        "keep_going": cluster.keep_going,
        "restarts": cluster.restarts,
        **({"spares": [host.address for host in list_spares(cluster)]} if cluster.spares else {}),
        **({"chaos": [fault.to_json() for fault in plan.faults]} if plan.faults else {}),
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
    hosts, count = len(cluster.hosts) - cluster.spares, len(plan.processes)
    facts = {
        "cluster": f"{cluster.name} (transport {cluster.transport})",
        "processes": f"{count} on {count_things(hosts, 'host')}",
        "runs": hide_in_urls(" ".join(plan.argv())),
        "coordinator": f"process 0 at {_coordinator_text(cluster)}, on a port its agent reserves",
        "environment": " ".join(f"{name}={value}" for name, value in show_environment(plan.env).items())
        or "nothing beside the host's own",
        "secrets": " ".join(f"{name}=[redacted]" for name in cluster.secrets) or "none",
        "stopping": f"{cluster.grace:g} s when asked to; {_after_failure_text(cluster)}",
        **({"spares": " ".join(host.address for host in list_spares(cluster))} if cluster.spares else {}),
    }
    head = [f"{name + ':':<13}{value}" for name, value in facts.items()]
    return "\n".join([*head, "", *_process_rows(plan)])


def _after_failure_text(cluster: Cluster) -> str:
    if cluster.restarts:
        return f"all when one fails, and they start again up to {count_things(cluster.restarts, 'time')}"
    return "the others go on when one fails" if cluster.keep_going else "all when one fails"


def _coordinator_text(cluster: Cluster) -> str:
    undecided = f"an address of {cluster.hosts[0].address} that is chosen when the hosts have answered"
    return _fixed_coordinator(cluster, cluster.hosts[0]) or undecided


def _process_rows(plan: Plan) -> list[str]:
    titles = ("process", "host", "local", "python", "start", "own environment")
    rows = [titles]
    for process in plan.processes:
        host = plan.host_of(process)
        # Faults are told in words of their own.
        own = " ".join(f"{name}={value}" for name, value in process.env.items() if name != CHAOS)
        start = "warm" if plan.is_warm(host) else "cold"
        rows.append(
            (str(process.process_id), host.address, str(process.local_process_id), host.python or "default", start, own)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
