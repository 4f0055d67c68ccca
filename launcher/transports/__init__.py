"""Interchangeable ways to get a two-way byte stream to an agent on a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hostmesh.launcher.agent.children.process_tree import MARK, make_mark
from hostmesh.launcher.bundle import agent_command
from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.errors import UsageError
from hostmesh.worker.identity import RUN_ID

if TYPE_CHECKING:
    from hostmesh.launcher.transports.base import Stream


def open_streams(cluster: Cluster, run_id: str, stdin: int | None = None) -> Sequence[Stream]:
    """One for each host; returns before they are connected. `stdin` is for a process on this machine."""
    return _open(cluster, run_id, range(len(cluster.hosts)), 1, stdin)


def reopen_stream(cluster: Cluster, run_id: str, number: int, life: int, stdin: int | None = None) -> Stream:
    """To a host that is gone, for another agent: the one of this life."""
    return _open(cluster, run_id, [number], life, stdin)[0]


def _open(cluster: Cluster, run_id: str, numbers: Sequence[int], life: int, stdin: int | None) -> Sequence[Stream]:
    marks = [{RUN_ID: run_id, MARK: make_mark(run_id, number, life)} for number in numbers]
    hosts = [cluster.hosts[number] for number in numbers]
    if cluster.transport == "local":
        from hostmesh.launcher.transports.local import LocalStream

        return [LocalStream(cluster.agent_python, mark, stdin) for mark in marks]
    commands = [agent_command(cluster.agent_python or "python3", mark) for mark in marks]
    if cluster.transport == "ssh":
        from hostmesh.launcher.transports.ssh.stream import open_ssh_streams

        return open_ssh_streams(hosts, cluster.ssh, commands)
    if cluster.transport == "docker":
        from hostmesh.launcher.transports.docker import DockerStream

        return [DockerStream(host, command) for host, command in zip(hosts, commands, strict=True)]
    if cluster.transport == "slurm":
        from hostmesh.launcher.transports.slurm import SlurmStream

        return [SlurmStream(host, command) for host, command in zip(hosts, commands, strict=True)]
    if cluster.transport == "kubernetes":
        from hostmesh.launcher.transports.kubernetes import open_pod_streams

        return open_pod_streams(cluster, run_id, hosts, commands)
    raise UsageError(f"transport {cluster.transport} is not there yet; --dry-run shows the plan")
