"""A run that was submitted and has not begun: how Slurm says that it stands, and its result when it never will."""

from __future__ import annotations

import signal
from typing import Any

from hostmesh.launcher.engines.slurm.commands import JobInfo, ask_job
from hostmesh.launcher.errors import EXIT_HOST_LOST
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.runs.queued import find_queued_job

TERMINATED = 128 + signal.SIGTERM
# Of a job whose launcher left no exit code.
CODES = {"NODE_FAIL": EXIT_HOST_LOST, "BOOT_FAIL": EXIT_HOST_LOST, "OUT_OF_MEMORY": 128 + signal.SIGKILL}


def describe_job(job: str) -> dict[str, Any]:
    """What engine.json says of a run."""
    return {"engine": "slurm", "job": job}


def describe_queued(job: str) -> tuple[str, str]:
    """How such a run stands: a word, and Slurm's own ones."""
    info = ask_job(job)
    if info is None:
        return "died", f"Slurm does not know its job {job} any more"
    return ("ended" if info.is_over else "queued"), f"Slurm job {job} is {info.state}{reason_of(info)}"


def close_queued(run: Run, job: str) -> None:
    """Writes the result of a run whose job has ended before it could begin; nobody else will."""
    if find_queued_job(run.folder) is None:
        return
    info = ask_job(job) or JobInfo("FAILED", "Slurm does not know it any more")
    if not info.is_over:
        return
    outcome = "stopped" if info.state == "CANCELLED" else "failed"
    message = f"Slurm job {job} has ended before the run began: {info.state}{reason_of(info)}"
    run.write_json(run.result, {"run": run.id, "outcome": outcome, "exit_code": exit_code_of(info), "message": message})


def reason_of(info: JobInfo) -> str:
    return f", Reason={info.reason}" if info.reason not in ("None", "") else ""


def exit_code_of(info: JobInfo) -> int:
    return CODES.get(info.state) or info.exit_code or TERMINATED
