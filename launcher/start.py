"""From a command line and a cluster to a run: the job is resolved and planned, then started or only shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.command_line.options import CommandLine
from hostmesh.launcher.engines import show_request
from hostmesh.launcher.output.redact import redact_variables
from hostmesh.launcher.output.view import choose_view
from hostmesh.launcher.planning.accelerators import find_local_gpus
from hostmesh.launcher.planning.job import resolve_job
from hostmesh.launcher.planning.plan import Plan, make_plan, plan_json, plan_table


def start(line: CommandLine, cluster: Cluster, command: list[str]) -> int:
    """Returns the exit code; `command` is how the run was started, for its records."""
    options = line.options
    job = resolve_job(cluster, line.job, Path.cwd(), line.job_options)
    gpus = find_local_gpus(cluster.transport, cluster.env)
    plan = make_plan(cluster, job, options.devices, options.cold, gpus)
    if options.chaos is not None:
        plan = with_chaos(plan, options.chaos)
    view = choose_view(options.show, options.quiet, len(plan.processes))
    if cluster.transport == "slurm":
        from hostmesh.launcher.engines.slurm.login import is_login, launch_from_login

        if is_login(cluster):
            return launch_from_login(cluster, command[1:], options.runs, options.dry_run, options.detach)
    if options.dry_run:
        print(plan_text(plan, options.json))
        return 0
    from hostmesh.launcher.launch import launch_plan  # here, because a dry run does without

    notify = options.notify or ""
    # The address of a hook is often a secret, and how the run was started is written down.
    shown = [word.replace(notify, "…") if notify else word for word in command]
    return launch_plan(plan, options.runs, options.json, view, shown, options.detach, notify)


def with_chaos(plan: Plan, path: str) -> Plan:
    """The plan with the faults of a file, each of them said loudly before anything starts."""
    from hostmesh.launcher.chaos.file import read_faults
    from hostmesh.launcher.chaos.model import add_faults
    from hostmesh.launcher.chaos.telling import tell_planned

    faults = read_faults(path, plan)
    for line in tell_planned(faults):
        print(line, file=sys.stderr)
    return add_faults(plan, faults)


def plan_text(plan: Plan, as_json: bool) -> str:
    request = show_request(plan.cluster)
    if as_json:
        text = json.dumps({**plan_json(plan), **({"manifest": request} if request else {})}, indent=2)
    else:
        text = "\n".join([plan_table(plan), *(f"---\n{json.dumps(each, indent=2)}" for each in request)])
    return redact_variables(text, plan.cluster.secrets)
