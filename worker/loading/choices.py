"""The values that options of a loader and of a checkpoint may have."""

from __future__ import annotations

from collections.abc import Sequence

STRATEGIES = ("per_process", "per_device", "global", "reshard")
TAILS = ("carry", "pad", "drop")
DATA_CHANGED = REFUSE, OK = "refuse", "ok"


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} wants one of {', '.join(choices)}; found {value!r}")


def require_batches(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} wants a number of batches, 0 or more; found {value!r}")
