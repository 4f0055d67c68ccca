"""The allocation that the launcher runs in: its job, its nodes, and Slurm's word on what became of them."""

from __future__ import annotations

import os
from typing import Any

from hostmesh.launcher.engines.slurm.commands import ask, ask_job, explain_node
from hostmesh.launcher.engines.slurm.queued import describe_job
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.errors import HostmeshError, UsageError

JOB_ID, NODE_LIST = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"


def find_job() -> str | None:
    """The job whose allocation we are in; None on a login node."""
    return os.environ.get(JOB_ID) or None


def find_nodes(settings: Slurm) -> list[str]:
    """The names of the allocation's nodes, as many as are wanted."""
    listed = os.environ.get(NODE_LIST)
    if not listed:
        raise UsageError(f"found {JOB_ID} without {NODE_LIST} in the environment, wanted both: is this an allocation?")
    answer = ask(["scontrol", "show", "hostnames", listed])
    names = answer.out.split()
    if answer.code != 0 or not names:
        raise UsageError(f"scontrol show hostnames {listed}: {answer.error_text}")
    if settings.nodes is not None and settings.nodes > len(names):
        found = f"an allocation of {len(names)} (job {find_job()}: {listed})"
        raise UsageError(f"found {found}, wanted {settings.nodes} nodes")
    return names[: settings.nodes]


class SlurmEngine:
    """Inside an allocation the hosts are there, and nothing of it outlives the job."""

    name = "Slurm"

    def __init__(self, job: str) -> None:
        self._job = job

    def acquire(self) -> None: ...

    def release(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return describe_job(self._job)

    def explain(self, host_name: str) -> str | None:
        try:
            word, job = explain_node(host_name), ask_job(self._job)
        except HostmeshError as error:
            return f"nothing, {error}"
        if job is None or job.state in ("RUNNING", "COMPLETING"):
            return word
        told = f"job {self._job} is {job.state}" + (f", Reason={job.reason}" if job.reason != "None" else "")
        return f"{word}; {told}" if word else told
