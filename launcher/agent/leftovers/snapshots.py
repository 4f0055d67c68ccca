"""The folder in /dev/shm where processes keep snapshots of their state, and where the workers' code lies: it outlives
them, and goes with the agent."""

from __future__ import annotations

import os
from typing import Optional

from hostmesh.launcher.agent.leftovers.shared_memory import FOLDER
from hostmesh.launcher.agent.unpack import hold


def snapshots_of(folder: str) -> str:
    """Named like the agent's own folder, which is removed together with it."""
    return os.path.join(FOLDER, os.path.basename(folder))


def make_snapshots(folder: str) -> Optional[str]:
    """Made and locked before the guardian is forked, as the agent's own folder is. None on a host without shared
    memory, or where somebody has taken the name."""
    path = snapshots_of(folder)
    try:
        os.mkdir(path, 0o700)
        hold(path)
    except OSError:
        return None
    return path
