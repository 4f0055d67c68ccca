"""What every process runs, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hostmesh.launcher.cluster.model import BUILT_IN_JOB, Cluster, Job, Sync
from hostmesh.launcher.errors import UsageError

if TYPE_CHECKING:
    from hostmesh.launcher.sync.tree import Tree

OUR_PACKAGE = (Path(__file__).parents[2] / "__init__.py").resolve()


def resolve_job(cluster: Cluster, given: Job | None, cwd: Path, job_options: Sequence[str] = ()) -> Job:
    """What every process runs, as the hosts find it, checked as far as the code is on this machine.

    `given` is the job of the command line, `job_options` are options for the built-in job.
    """
    job = _pick_job(given, cluster, job_options)
    if cluster.transport == "local":
        check_job(job, cwd / Path(cluster.workdir or "").expanduser())
    if cluster.sync is None or job.command is not None:
        return job
    return _name_from_root(job, find_sync_root(cluster.sync, cwd), cwd)


def _pick_job(given: Job | None, cluster: Cluster, job_options: Sequence[str] = ()) -> Job:
    """What the command line says, else the cluster file, else the built-in job with the options meant for it."""
    job = given or cluster.run
    if job is None:
        return Job(module=BUILT_IN_JOB, args=tuple(job_options))
    if job_options:
        name = job_options[0].partition("=")[0]
        raise UsageError(f"{name} is an option of the built-in job; {_where_it_goes_text(given)}")
    return job


def _where_it_goes_text(given: Job | None) -> str:
    if given is None:
        return "put it among the args of run: in the cluster file"
    if given.script is not None:
        return f"put it after {given.script} to give it to your script"
    return f"put it after {given.module} to give it to your module" if given.module else "put it after your command"


def check_job(job: Job, workdir: Path) -> None:
    """Checks code that is on this machine: its script exists, and no module beside it hides our package."""
    if job.command is not None:
        return
    folder = workdir
    if job.script is not None:
        script = workdir / job.script
        if not os.path.isfile(script):  # pathlib's own would raise for a folder that cannot be entered
            raise UsageError(f"found no script {job.script} in {workdir}")
        if script.suffix != ".py":
            raise UsageError(f"found {job.script}, wanted a Python script; for anything else write -- {job.script} …")
        folder = script.resolve().parent
    check_shadow(folder)


def _name_from_root(job: Job, root: Path, cwd: Path) -> Job:
    """The job with its script named from the root of the synced folder, which the hosts have as their workdir."""
    if job.script is None:
        check_job(job, root)
        return job
    check_job(job, cwd)
    # The folder is resolved and the name is not: a script that is a link travels as a link.
    script = cwd / job.script
    path = script.parent.resolve() / script.name
    if not path.is_relative_to(root):
        raise UsageError(f"found {path}, wanted a script inside {root}: that is what sync.from sends to the hosts")
    return replace(job, script=path.relative_to(root).as_posix())


def find_sync_root(sync: Sync, cwd: Path) -> Path:
    root = (cwd / os.path.expanduser(sync.source)).resolve()
    if not root.is_dir():
        raise UsageError(f"sync.from: found no folder {root}; it begins where launch is started, in {cwd}")
    return root


def read_code(cluster: Cluster, runs: Path) -> Tree | None:
    """The files that a run sends to the hosts; None without sync.

    Run folders are never sent. The files that setup depends on must be among those that are.
    """
    if cluster.sync is None:
        return None
    from hostmesh.launcher.sync.tree import read_tree

    tree = read_tree(find_sync_root(cluster.sync, Path.cwd()), cluster.sync.exclude, [runs])
    if cluster.setup.inputs:
        from hostmesh.launcher.supervisor.startup.setup_key import find_inputs

        find_inputs(cluster.setup, tree)
    return tree


def check_is_synced(job: Job, paths: Collection[str]) -> None:
    """Checks that the script of a resolved job is among the files that are sent."""
    if job.script is not None and job.script not in paths:
        raise UsageError(f"{job.script} would not travel to the hosts: .gitignore or sync.exclude leaves it out")


def check_shadow(folder: Path) -> None:
    """Refuses a module that Python would find beside the script before the package that is sent with a run."""
    for path in (folder / "hostmesh.py", folder / "hostmesh" / "__init__.py"):
        if path.is_file() and path.resolve() != OUR_PACKAGE:
            raise UsageError(f"{path} would hide hostmesh's own package; rename it")
