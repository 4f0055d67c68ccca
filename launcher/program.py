"""What every process runs, checked before anything starts."""

from __future__ import annotations

from pathlib import Path

from launcher.cluster import Cluster, Job
from launcher.errors import UsageError

OURS = Path(__file__).resolve().parent.parent


def pick_job(given: Job | None, cluster: Cluster) -> Job:
    job = given or cluster.run
    if job is None:
        raise UsageError("nothing to run: wanted a SCRIPT.py, -m MODULE or -- COMMAND, or run: in the cluster file")
    return job


def check_job(job: Job, workdir: Path) -> None:
    """For code that is here: the script exists, and nothing beside it hides the packages shipped with a run."""
    if job.command is not None:
        return
    folder = workdir
    if job.script is not None:
        script = workdir / job.script
        if not script.is_file():
            raise UsageError(f"found no script {job.script} in {workdir}")
        if script.suffix != ".py":
            raise UsageError(f"found {job.script}, wanted a Python script; for anything else write -- {job.script} …")
        folder = script.resolve().parent
    for name in ("worker", "launcher"):
        _check_shadow(folder, name)


def _check_shadow(folder: Path, name: str) -> None:
    for path in (folder / f"{name}.py", folder / name / "__init__.py"):
        if path.is_file() and path.resolve() != OURS / name / "__init__.py":
            raise UsageError(f"{path} would hide hostmesh's own package '{name}'; rename it")
