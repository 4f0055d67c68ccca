"""A link to a run whose supervisor is on a node of a Slurm job: a small step there relays what is said."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hostmesh.launcher.transports.slurm import relay_step

# Seconds that a step may take to begin, beside what an answer takes; and to end once nobody asks any more.
STEP_TIMEOUT, STEP_END_TIMEOUT = 30.0, 10.0


@contextmanager
def open_step(folder: Path, job: str, node: str, timeout: float | None) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            end = theirs.fileno()
            relay = [sys.executable, "-P", "-m", "hostmesh.launcher.runs.relay", str(folder.absolute())]
            step = subprocess.Popen(relay_step(job, node, relay), stdin=end, stdout=end, start_new_session=True)
        try:
            ours.settimeout(None if timeout is None else timeout + STEP_TIMEOUT)
            yield ours
        finally:
            ours.close()  # the relay's stdin ends
            end_step(step)


def end_step(step: subprocess.Popen[bytes]) -> None:
    for ask in (None, step.terminate, step.kill):
        if ask is not None:
            ask()
        try:
            step.wait(STEP_END_TIMEOUT)
            return
        except subprocess.TimeoutExpired:
            continue
