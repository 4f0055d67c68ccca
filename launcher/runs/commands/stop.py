"""`launch stop`: ask a run to end, from any terminal, and wait until it has."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from hostmesh.launcher.errors import EXIT_INTERRUPTED, UsageError
from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.runs.client import NoAnswer, ask
from hostmesh.launcher.runs.owner import is_held
from hostmesh.launcher.runs.queued import find_job_of, find_queued_job
from hostmesh.launcher.runs.reading import read_json

LOOK_EVERY = 0.05
CANCEL_TIMEOUT, ASK_SLURM_EVERY = 30.0, 0.3


def stop(folder: Path, now: bool, as_json: bool) -> int:
    """0 once it has ended, however that was."""
    if not is_held(folder) and (folder / "result.json").exists():
        return tell(folder, as_json, "had ended already")
    if (queued := find_queued_job(folder)) is not None:
        cancel(folder, queued)
    else:
        ask_to_stop(folder, now)
    if not as_json and queued is None:
        how = "at once" if now else "in order: a job that can save saves"
        print(f"launch: asked run {folder.name} to stop {how}", file=sys.stderr)
    try:
        while is_held(folder):
            time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        print(f"\nlaunch: it goes on stopping; launch stop {folder.name} --now kills at once", file=sys.stderr)
        return EXIT_INTERRUPTED
    return tell(folder, as_json, "has ended")


def ask_to_stop(folder: Path, now: bool) -> None:
    """A run in a Slurm job that cannot be asked is Slurm's to stop."""
    try:
        for _ in ask(folder, {"ask": "stop", "now": now}):
            pass
    except NoAnswer:
        job = find_job_of(folder)
        if job is None or not is_held(folder):
            raise
        from hostmesh.launcher.engines.slurm.stopping import stop_job

        stop_job(job, now)


def cancel(folder: Path, job: str) -> None:
    """A run that waits in Slurm's queue."""
    from hostmesh.launcher.engines.slurm.queued import close_queued
    from hostmesh.launcher.engines.slurm.stopping import stop_job

    stop_job(job)
    deadline = time.monotonic() + CANCEL_TIMEOUT
    while find_queued_job(folder) is not None:
        close_queued(Run(folder), job)
        if time.monotonic() > deadline:
            raise UsageError(f"Slurm has not taken job {job} out of its queue within {CANCEL_TIMEOUT:g} s")
        time.sleep(ASK_SLURM_EVERY)


def tell(folder: Path, as_json: bool, how: str) -> int:
    result = read_json(folder / "result.json")
    told = {"run": folder.name, **{name: result.get(name) for name in ("outcome", "exit_code", "message")}}
    print(json.dumps(told) if as_json else f"run {folder.name} {how}: {told['message'] or 'without a result'}")
    return 0
