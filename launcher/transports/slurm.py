"""An agent on a node of the allocation that we are in: a job step of its own, through `srun`."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Mapping, Sequence

from hostmesh.launcher.cluster.model import Host
from hostmesh.launcher.engines.program import run_program
from hostmesh.launcher.engines.slurm.commands import explain_node
from hostmesh.launcher.errors import HostmeshError, Unreachable
from hostmesh.launcher.transports.pipe import PipeStream

ASK_TIMEOUT = 10.0
# Before it steps shared their job's resources by default, and there was no such option.
FIRST_WITH_OVERLAP = (20, 11)
# What sbatch or salloc put there about the job's own tasks; srun would take it for options of the step.
OPTIONS_IN_ENVIRONMENT = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|NTASKS_PER_\w+|TASKS_PER_NODE|CPUS_PER_TASK|CPU_BIND\w*|MEM_BIND\w*|MEM_PER_\w+"
    r"|DISTRIBUTION|EXACT|EXCLUSIVE|OVERLAP|THREADS_PER_CORE|HINT|UNBUFFEREDIO|LABELIO|STDINMODE|STDOUTMODE|STDERRMODE"
    r"|OPEN_MODE|WAIT|KILL_BAD_EXIT|IMMEDIATE|TIMELIMIT|WORKING_DIR|HOSTFILE|ARBITRARY\w*|JOB_NAME|MPI_TYPE|EXPORT_ENV)"
    r"|SRUN_\w+"
)


class SlurmStream(PipeStream):
    """A node's agent; Slurm itself tells why there is none."""

    def __init__(self, host: Host, command: Sequence[str]) -> None:
        self._node = host.address
        self._has_spoken = False
        super().__init__(step_argv(host, command, has_overlap(ask_version())), step_environment(os.environ))

    def explain_start(self, program: str, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return "found no program srun on this machine; put Slurm's programs on PATH"
        return super().explain_start(program, error)

    def read(self) -> bytes:
        """Raises Unreachable when the node, and not a program on it, is why nothing ever came."""
        data = super().read()
        if not data and not self._has_spoken and (problem := find_problem(self._node)):
            raise Unreachable(problem)
        self._has_spoken = True
        return data


def step_argv(host: Host, command: Sequence[str], overlap: bool = True) -> list[str]:
    """A step without --exact has all CPUs of the job on its node, and its GPUs unless it asks for others."""
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--nodelist={host.address}"),
        *(["--overlap"] if overlap else []),
        *("--mem=0", "--cpu-bind=none", "--mpi=none", "--export=ALL", "--job-name=hostmesh-agent"),
        *("--input=0", "--unbuffered", "--kill-on-bad-exit=1", "--quiet", "--", *command),
    ]


def relay_step(job: str, node: str, command: Sequence[str]) -> list[str]:
    """A small step beside those of a job that we are not in."""
    overlap = ["--overlap"] if has_overlap(ask_version()) else []
    return [
        *("srun", f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--nodelist={node}", *overlap, "--mem=0"),
        *("--mpi=none", "--job-name=hostmesh-ask", "--input=0", "--unbuffered", "--quiet", "--", *command),
    ]


def step_environment(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if not OPTIONS_IN_ENVIRONMENT.fullmatch(name)}


@functools.cache
def ask_version() -> str:
    try:
        done = run_program(["srun", "--version"], "", ASK_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def has_overlap(version: str) -> bool:
    """`slurm-wlm 22.05.8` or `slurm 20.02.7`; an unknown one is taken for a new one."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return found is None or (int(found[1]), int(found[2])) >= FIRST_WITH_OVERLAP


def find_problem(node: str) -> str | None:
    try:
        return explain_node(node)
    except HostmeshError as error:
        return str(error)
