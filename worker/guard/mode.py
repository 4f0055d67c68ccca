"""How much of what a process loads is compared with other processes."""

from __future__ import annotations

import os

import jax

from hostmesh.worker.audit.deliveries import is_wanted
from hostmesh.worker.identity import GUARD, GUARDS
from hostmesh.worker.loading.choices import require_choice


def choose_mode(given: str | None) -> str:
    """`off` where nobody could compare: without `launch`, or in a process that is alone."""
    if given is not None:
        require_choice("guard", given, GUARDS)
    if not is_wanted() or jax.process_count() == 1:
        return "off"
    return given or os.environ.get(GUARD) or "sample"
