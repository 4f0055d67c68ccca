"""The batch job that runs the launcher inside an allocation: its script and the words of `sbatch`; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hostmesh.launcher.cluster.model import Cluster
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.output.run_folder import SUBMITTED
from hostmesh.worker.identity import EXIT_PREEMPTED

# Slurm's own SIGTERM is for every process of a job; this one stands for one that is for the launcher alone.
AS_SIGTERM = "USR2"
# Slurm warns the shell alone (B:), which passes it on: to a launcher that is warned the processes save and end. What
# Slurm sends at the end of a job reaches all processes, the launcher too, so the shell only must outlive it. `wait`
# returns at every signal that is trapped.
BODY = """
export PYTHONUNBUFFERED=1 {submitted}={run}
exit_file={exit_file}.exit
rm -f "$exit_file"
warned=
trap 'warned=yes; kill -USR1 "$launcher"' USR1
trap 'kill -INT "$launcher"' INT
trap 'kill -TERM "$launcher"' {as_sigterm}
trap : TERM
{command} &
launcher=$!
while wait "$launcher"; code=$?; kill -0 "$launcher" 2> /dev/null; do :; done
"""
REQUEUE = """if [ "$code" = {code} ] && [ -n "$warned" ]; then
    echo "launch: job $SLURM_JOB_ID is queued again, and goes on from what was saved" >&2
    scontrol requeue "$SLURM_JOB_ID" && exec sleep 60
fi
"""
END = """echo "$code" > "$exit_file.partial" && mv "$exit_file.partial" "$exit_file"
exit "$code"
"""


@dataclass(frozen=True)
class Batch:
    """A job that has not been submitted yet. `files` are what its output files begin with; Slurm's %j is its id."""

    options: tuple[str, ...]
    script: str
    folder: Path
    files: Path

    def argv(self) -> list[str]:
        """Paths are arguments and not in the script: there nobody has to quote them in Slurm's way."""
        files = str(self.files).replace("%", "%%")
        paths = [f"--chdir={self.folder}", f"--output={files}-%j.out", f"--error={files}-%j.err"]
        return ["sbatch", "--parsable", "--export=ALL", "--open-mode=append", *paths]

    def text(self) -> str:
        """For people: also what is not in the script itself."""
        head, _, rest = self.script.partition("\n")
        return f"{head}\n# Submitted with: {shlex.join(self.argv())}\n{rest}"


def make_batch(cluster: Cluster, command: Sequence[str], folder: Path, runs: Path, run_id: str) -> Batch:
    """`command` is what the allocation's first node runs in the folder; `runs` is where its output goes, and has the
    run's folder already."""
    settings = cluster.engine
    assert isinstance(settings, Slurm)
    options = batch_options(settings, cluster)
    files = (folder / runs).absolute() / "slurm"
    body = BODY.format(
        exit_file=f'{shlex.quote(str(files))}-"$SLURM_JOB_ID"',
        command=shlex.join(command),
        as_sigterm=AS_SIGTERM,
        submitted=SUBMITTED,
        run=run_id,
    )
    requeue = REQUEUE.format(code=EXIT_PREEMPTED) if settings.requeue else ""
    head = "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options)])
    return Batch(options, head + "\n" + body + requeue + END, folder, files)


def batch_options(settings: Slurm, cluster: Cluster) -> tuple[str, ...]:
    named = {"partition": settings.partition, "time": settings.time, "account": settings.account}
    loses_hosts = cluster.spares or cluster.min_hosts or cluster.rejoin
    return (
        f"--job-name={re.sub('[^A-Za-z0-9_.-]+', '-', cluster.name)}",
        *([f"--nodes={settings.nodes}"] if settings.nodes else []),
        "--ntasks-per-node=1",
        *(["--exclusive"] if settings.exclusive else []),
        *(f"--{name}={value}" for name, value in named.items() if value is not None),
        *([f"--signal=B:USR1@{settings.warning}"] if settings.warning else []),
        "--requeue" if settings.requeue else "--no-requeue",
        # A run that does without a host must not be ended by Slurm for it.
        *(["--no-kill"] if loses_hosts else []),
        *settings.options,
    )
