"""From a cluster and a job to the processes of a run: ids, hosts, environment, coordinator; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.cluster import Cluster, Host, Job
from worker.identity import Identity

NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
LOCAL_DEVICE_IDS = "JAX_LOCAL_DEVICE_IDS"


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
    coordinator: str
    cold: bool

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

    def identity(self, process: Process, run_id: str, attempt: int, port: int) -> Identity:
        return Identity(
            run_id=run_id,
            attempt=attempt,
            host=self.host_of(process).address,
            process_id=process.process_id,
            num_processes=len(self.processes),
            local_process_id=process.local_process_id,
            coordinator_address=f"[{self.coordinator}]:{port}"
            if ":" in self.coordinator
            else f"{self.coordinator}:{port}",
        )


def make_plan(cluster: Cluster, job: Job, devices: int | None = None, cold: bool = False) -> Plan:
    env = dict(cluster.env)
    if devices is not None:
        env[NUM_CPU_DEVICES] = str(devices)
    first = cluster.hosts[0]
    return Plan(
        cluster=cluster,
        job=job,
        env=env,
        processes=tuple(_processes(cluster)),
        coordinator="127.0.0.1" if cluster.transport == "local" else first.internal_address or first.address,
        cold=cold,
    )


def _processes(cluster: Cluster) -> list[Process]:
    places = [(host, local) for host, settings in enumerate(cluster.hosts) for local in range(settings.processes)]
    return [
        Process(process_id, host, local, _device_env(cluster, local)) for process_id, (host, local) in enumerate(places)
    ]


def _device_env(cluster: Cluster, local: int) -> dict[str, str]:
    if cluster.local_devices == "auto":
        return {}
    return {LOCAL_DEVICE_IDS: ",".join(map(str, cluster.local_devices[local]))}


def plan_json(plan: Plan) -> dict[str, Any]:
    cluster = plan.cluster
    return {
        "name": cluster.name,
        "transport": cluster.transport,
        "num_processes": len(plan.processes),
        "coordinator": {"process_id": 0, "host": cluster.hosts[0].address, "address": plan.coordinator, "port": None},
        "argv": plan.argv(),
        "env": dict(plan.env),
        "secrets": list(cluster.secrets),
        "workdir": cluster.workdir,
        "lease": cluster.lease,
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
        "coordinator": f"process 0 at {plan.coordinator}, on a port its agent reserves",
        "environment": " ".join(f"{name}={value}" for name, value in plan.env.items())
        or "nothing beside the host's own",
        "secrets": " ".join(f"{name}=[redacted]" for name in cluster.secrets) or "none",
    }
    head = [f"{name + ':':<13}{value}" for name, value in facts.items()]
    return "\n".join([*head, "", *_rows(plan)])


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
