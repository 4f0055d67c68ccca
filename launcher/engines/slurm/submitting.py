"""From a login node to a batch job: submit it, and know where its output will be."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.engines.slurm.batch import Batch, make_batch
from hostmesh.launcher.engines.slurm.commands import ask
from hostmesh.launcher.errors import UsageError


@dataclass(frozen=True)
class SlurmJob:
    """A job that was submitted, and the files on the shared folder that tell of it."""

    id: str
    files: Path
    run_id: str

    @property
    def out(self) -> Path:
        return self.files.with_name(f"{self.files.name}-{self.id}.out")

    @property
    def err(self) -> Path:
        return self.out.with_suffix(".err")

    @property
    def exit(self) -> Path:
        """The launcher's exit code, once it has ended."""
        return self.out.with_suffix(".exit")


def plan_batch(cluster: Cluster, argv: Sequence[str], runs: Path, run_id: str) -> Batch:
    """The same command again, by this launcher's own Python; `argv` are the words after `launch`."""
    command = [sys.executable, "-P", "-m", "hostmesh.launcher", *argv]
    return make_batch(cluster, command, Path(os.getcwd()), runs, run_id)


def submit(cluster: Cluster, batch: Batch, run_id: str) -> SlurmJob:
    """Secrets travel in the environment, as `sbatch --export=ALL` takes it along."""
    if missing := [name for name in cluster.secrets if not os.environ.get(name)]:
        raise UsageError(f"secrets: {', '.join(missing)} not set in the environment of the launcher")
    answer = ask(batch.argv(), batch.script)
    number = answer.out.strip().partition(";")[0]  # with the cluster's name, where there are several
    if answer.code != 0 or not number.isdecimal():
        raise UsageError(f"Slurm took no job:\n  {answer.error_text}")
    return SlurmJob(number, batch.files, run_id)
