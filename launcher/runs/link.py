"""A two-way link to the supervisor of a run: its socket on this machine, or through Slurm on a node of its job."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostmesh.launcher.runs.owner import Owner
from hostmesh.launcher.runs.queued import find_job_of
from hostmesh.launcher.supervisor.control.server import with_address

# Seconds that a job step may take to begin, beside what an answer takes; and to end once nobody asks any more.
STEP_TIMEOUT, STEP_END_TIMEOUT = 30.0, 10.0


@contextmanager
def open_link(folder: Path, owner: Owner, timeout: float | None) -> Iterator[socket.socket]:
    """Raises OSError where the supervisor cannot be reached. Without a timeout an answer may take any time."""
    job = None if owner.is_here else find_job_of(folder)
    if job is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout)
            with_address(folder / "control", link.connect)
            yield link
        return
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            end = theirs.fileno()
            step = subprocess.Popen(relay_argv(job, owner, folder), stdin=end, stdout=end, start_new_session=True)
        try:
            ours.settimeout(None if timeout is None else timeout + STEP_TIMEOUT)
            yield ours
        finally:
            ours.close()  # the relay's stdin ends
            end_step(step)


def relay_argv(job: str, owner: Owner, folder: Path) -> list[str]:
    from hostmesh.launcher.transports.slurm import relay_step

    return relay_step(
        job,
        owner.node or owner.host,
        [sys.executable, "-P", "-m", "hostmesh.launcher.runs.relay", str(folder.absolute())],
    )


def end_step(step: subprocess.Popen[bytes]) -> None:
    try:
        step.wait(STEP_END_TIMEOUT)
    except subprocess.TimeoutExpired:
        step.terminate()
        try:
            step.wait(STEP_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()
