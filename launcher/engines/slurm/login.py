"""`launch` on a login node: a batch job that runs it in an allocation, submitted and followed, or only shown."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.engines.slurm.allocation import find_job
from hostmesh.launcher.engines.slurm.following import HANDLED, follow
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.engines.slurm.submitting import plan_batch, submit


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
    batch = plan_batch(cluster, words, runs)
    if dry_run:
        print(batch.text(), end="")
        return 0
    # A Ctrl-C must not come between a job and who knows of it; `follow` takes it.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    job = submit(cluster, batch)
    print(f"launch: job {job.id} is submitted to {cluster.engine}; its output: {job.out}", file=sys.stderr)
    if is_detached:
        print(f"launch: Slurm runs it without this terminal; squeue --job {job.id} tells of it", file=sys.stderr)
        print(job.id)
        return 0
    return follow(job, cluster.engine)
