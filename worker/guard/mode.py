"""How much of what a process loads is compared with other processes."""

from __future__ import annotations

import os

import jax

from hostmesh.worker.audit.deliveries import is_wanted
from hostmesh.worker.identity import GUARD, GUARDS
from hostmesh.worker.loading.choices import require_choice


def choose_mode(given: str | None) -> str:
    """`off` where nobody could compare: without `launch`, or in a process that is alone."""
    wanted = find_wanted_mode(given)
    return wanted if is_wanted() and jax.process_count() > 1 else "off"


def find_wanted_mode(given: str | None) -> str:
    """What must be the same on all processes: what they compare in different ways is not compared."""
    if given is not None:
        require_choice("guard", given, GUARDS)
    return given or os.environ.get(GUARD) or "sample"
