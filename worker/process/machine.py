"""Which machine this is: its name for people, and an id by which processes know that they share it."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path

from hostmesh.worker.identity import Identity


def host_name() -> str:
    identity = Identity.from_env()
    return socket.gethostname() if identity is None else identity.host


@cache
def machine_id() -> str | None:
    """Equal on processes that see each other's pids; None where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
