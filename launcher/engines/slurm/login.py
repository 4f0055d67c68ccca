"""`launch` on a login node: a batch job that runs it in an allocation, submitted and followed, or only shown."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.detach import tell_how_to_come_back
from hostmesh.launcher.engines.slurm.allocation import find_job
from hostmesh.launcher.engines.slurm.following import HANDLED, follow
from hostmesh.launcher.engines.slurm.queued import close_queued, describe_job
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.engines.slurm.submitting import SlurmJob, plan_batch, submit
from hostmesh.launcher.output.run_folder import Run


def is_login(cluster: Cluster) -> bool:
    return cluster.engine is not None and find_job() is None


def launch_from_login(
    cluster: Cluster, argv: Sequence[str], runs: Path, dry_run: bool, is_detached: bool = False
) -> int:
    """`argv` are the words after `launch`. A job outlives this terminal anyhow: to detach is not to follow it."""
    assert isinstance(cluster.engine, Slurm)
    words = list(argv)
    if dry_run:
        words.remove("--dry-run")  # the first is ours: what a script gets comes after it
    if is_detached:
        words.remove("--detach")
    if dry_run:
        print(plan_batch(cluster, words, runs, "RUN").text(), end="")
        return 0
    # A Ctrl-C must not come between a job and who knows of it; `follow` takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    run, job = submit_run(cluster, words, runs)
    print(f"launch: job {job.id} is submitted to {cluster.engine}; its output: {job.out}", file=sys.stderr)
    if is_detached:
        tell_how_to_come_back(run, "Slurm")
        return 0
    code = follow(job, cluster.engine)
    close_queued(run, job.id)
    return code


def submit_run(cluster: Cluster, words: Sequence[str], runs: Path) -> tuple[Run, SlurmJob]:
    """The run has its folder from now on, so that it can be asked about, and stopped, while it waits."""
    run = Run.create(runs)
    try:
        job = submit(cluster, plan_batch(cluster, words, runs, run.id), run.id)
    except BaseException:
        shutil.rmtree(run.folder, ignore_errors=True)  # nothing will ever be in it
        raise
    run.write_json(run.engine, describe_job(job.id))
    return run, job
