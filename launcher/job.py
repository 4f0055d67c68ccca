"""What every process runs, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hostmesh.launcher.cluster.file import BUILT_IN_JOB, Cluster, Job, Sync
from hostmesh.launcher.errors import UsageError

if TYPE_CHECKING:
    from hostmesh.launcher.sync.tree import Tree

OURS = (Path(__file__).parent.parent / "__init__.py").resolve()


def pick_job(given: Job | None, cluster: Cluster, job_options: Sequence[str] = ()) -> Job:
    """What the command line says, else the cluster file, else the built-in job with the options meant for it."""
    job = given or cluster.run
    if job is None:
        return Job(module=BUILT_IN_JOB, args=tuple(job_options))
    if job_options:
        name = job_options[0].partition("=")[0]
        raise UsageError(f"{name} is an option of the built-in job; {_say_where_it_goes(given)}")
    return job


def _say_where_it_goes(given: Job | None) -> str:
    if given is None:
        return "put it among the args of run: in the cluster file"
    if given.script is not None:
        return f"put it after {given.script} to give it to your script"
    return f"put it after {given.module} to give it to your module" if given.module else "put it after your command"


def check_job(job: Job, workdir: Path) -> None:
    """For code that is here: the script exists, and nothing beside it hides the packages shipped with a run."""
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


def place_job(job: Job, cluster: Cluster, here: Path) -> Job:
    """The job as the hosts find it: they run in workdir, which mirrors the synced folder.

    Without sync the code is on the hosts already, and nothing about it is known here.
    """
    if cluster.sync is None or job.command is not None:
        return job
    root = find_sync_root(cluster.sync, here)
    if job.script is None:
        check_job(job, root)
        return job
    check_job(job, here)
    # The folder is resolved and the name is not: a script that is a link travels as a link.
    script = here / job.script
    place = script.parent.resolve() / script.name
    if not place.is_relative_to(root):
        raise UsageError(f"found {place}, wanted a script inside {root}: that is what sync.from sends to the hosts")
    return replace(job, script=place.relative_to(root).as_posix())


def find_sync_root(sync: Sync, here: Path) -> Path:
    root = (here / os.path.expanduser(sync.source)).resolve()
    if not root.is_dir():
        raise UsageError(f"sync.from: found no folder {root}; it begins where launch is started, in {here}")
    return root


def read_code(cluster: Cluster, runs: Path) -> Tree | None:
    """What a run brings to the hosts; the run folders never travel, and what setup depends on must."""
    if cluster.sync is None:
        return None
    from hostmesh.launcher.sync.tree import read_tree

    tree = read_tree(find_sync_root(cluster.sync, Path.cwd()), cluster.sync.exclude, [runs])
    if cluster.setup.inputs:
        from hostmesh.launcher.supervisor.startup.setup_key import find_inputs

        find_inputs(cluster.setup, tree)
    return tree


def check_is_synced(job: Job, paths: Collection[str]) -> None:
    """For a placed job: its script is among the paths that travel."""
    if job.script is not None and job.script not in paths:
        raise UsageError(f"{job.script} would not travel to the hosts: .gitignore or sync.exclude leaves it out")


def check_shadow(folder: Path) -> None:
    """Python looks beside a script before it looks into the package that is shipped with a run."""
    for path in (folder / "hostmesh.py", folder / "hostmesh" / "__init__.py"):
        if path.is_file() and path.resolve() != OURS:
            raise UsageError(f"{path} would hide hostmesh's own package; rename it")
