"""What has been asked and told since a run last moved."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Standstill:
    moved_at: float = -math.inf
    asked_at: float | None = None  # an examination is under way
    asked_for: float = 0.0  # the moment that it is for, in seconds without movement
    done: float = 0.0  # moments up to this one have been dealt with
