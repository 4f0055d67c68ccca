"""A two-way link to the supervisor of a run: its socket on this machine, or through Slurm on a node of its job."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostmesh.launcher.runs.owner import Owner
from hostmesh.launcher.runs.queued import find_job_of
from hostmesh.launcher.supervisor.control.server import with_address


@contextmanager
def open_link(folder: Path, owner: Owner, timeout: float | None) -> Iterator[socket.socket]:
    """Raises OSError where the supervisor cannot be reached. Without a timeout an answer may take any time."""
    job = None if owner.is_here else find_job_of(folder)
    if job is not None:
        from hostmesh.launcher.runs.job_step import open_step

        with open_step(folder, job, owner.node or owner.host, timeout) as link:
            yield link
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(timeout)
        with_address(folder / "control", link.connect)
        yield link
