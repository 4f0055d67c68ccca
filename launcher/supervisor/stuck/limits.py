"""For how long a run may stand still, by the phases that its processes are in; pure."""

from __future__ import annotations

import math

from hostmesh.launcher.cluster.model import HangTimeout

# Where every process tells its steps, and nobody has said otherwise.
DEFAULT = 300.0
# These take their time; a shorter general limit is not meant for them.
PHASE_TIMEOUTS = {"compiling": 3600.0, "saving": 1800.0, "restoring": 1800.0}


def find_limit(phase: str, timeout: HangTimeout, all_are_kept: bool) -> float:
    """Seconds, and infinity for never."""
    if phase in timeout.phases:
        return timeout.phases[phase]
    general = timeout.seconds if timeout.seconds is not None else timeout.phases.get("step")
    if general is None:
        general = DEFAULT if all_are_kept else 0.0
    if general == 0.0:
        return math.inf
    return max(general, PHASE_TIMEOUTS.get(phase, 0.0))
