"""The hosts of a cluster that Slurm owns: how many, and inside an allocation which."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

from hostmesh.launcher.cluster.model import Host
from hostmesh.launcher.cluster.yaml_values import Value
from hostmesh.launcher.engines.slurm.allocation import find_job, find_nodes
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.errors import UsageError

WANTED = "no transport: Slurm's own srun is how its nodes are reached"


def check_engine(top: Value, values: dict[str, Any], named: object) -> None:
    """Sets what follows from the engine, and refuses what does not fit it."""
    transport = values.get("transport")
    if not isinstance(named, Slurm):
        if transport == "slurm" and isinstance(named, list):
            top.under("transport").reject("hosts: {slurm: …} beside it", "'slurm' with a list of hosts")
            values["transport"] = None
        return
    if transport not in (None, "slurm"):
        top.under("transport").reject(WANTED)
    values["transport"] = "slurm"
    # Nodes share the folder that a job is started from, and have the launcher's own Python.
    if "sync" not in values:
        values.setdefault("workdir", os.getcwd())
    values.setdefault("python", sys.executable)


def plan_slurm_hosts(top: Value, engine: Slurm, shared: dict[str, Any]) -> tuple[Host, ...]:
    """As many as the job has nodes; their names are not known yet."""
    count = engine.nodes
    if count is None and (given := os.environ.get("SLURM_JOB_NUM_NODES", "")).isdecimal() and find_job():
        count = int(given)
    if count is None:
        where = top.under("hosts").under("slurm")
        where.fail("missing key 'nodes': outside an allocation it says how many nodes to ask for")
    return tuple(Host(f"node {number + 1}", **shared) for number in range(count or 0))


def find_slurm_hosts(engine: Slurm, value: Value, planned: tuple[Host, ...]) -> tuple[Host, ...]:
    """With the names of the allocation's nodes; from a login node as planned: a batch job will know them."""
    if find_job() is None:
        return planned
    try:
        names = find_nodes(engine)
    except UsageError as error:
        value.fail(str(error))
        raise value.problems.error() from None
    return tuple(replace(planned[0], address=name) for name in names)
