"""Interchangeable ways to get a two-way byte stream to an agent on a host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hostmesh.launcher.agent.process_tree import MARK
from hostmesh.launcher.bundle import agent_command
from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.errors import UsageError
from hostmesh.worker.identity import RUN_ID

if TYPE_CHECKING:
    from hostmesh.launcher.transports.base import Stream


def open_streams(cluster: Cluster, run_id: str, stdin: int | None = None) -> Sequence[Stream]:
    """One for each host; returns before they are connected. `stdin` is for a process on this machine."""
    marks = [{RUN_ID: run_id, MARK: f"{run_id}.{number}"} for number in range(len(cluster.hosts))]
    if cluster.transport == "local":
        from hostmesh.launcher.transports.local import LocalStream

        return [LocalStream(cluster.agent_python, mark, stdin) for mark in marks]
    commands = [agent_command(cluster.agent_python or "python3", mark) for mark in marks]
    if cluster.transport == "ssh":
        from hostmesh.launcher.transports.ssh.stream import open_ssh_streams

        return open_ssh_streams(cluster.hosts, cluster.ssh, commands)
    if cluster.transport == "docker":
        from hostmesh.launcher.transports.docker import DockerStream

        return [DockerStream(host, command) for host, command in zip(cluster.hosts, commands, strict=True)]
    raise UsageError(f"transport {cluster.transport} is not there yet; --dry-run shows the plan")
