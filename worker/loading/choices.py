"""The values that options of a loader and of a checkpoint may have."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from hostmesh.worker.errors import DataError

STRATEGIES = ("per_process", "per_device", "global", "reshard")
TAILS = ("carry", "pad", "drop")
DATA_CHANGED = REFUSE, OK = "refuse", "ok"


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} wants one of {', '.join(choices)}; found {value!r}")


def as_count(value: Any, least: int = 1) -> int | None:
    """An integer of any kind, NumPy's too, as Python's; None where it is none, or less."""
    if isinstance(value, bool):
        return None
    try:
        found = index(value)
    except TypeError:
        return None
    return found if found >= least else None


def require_count(name: str, value: Any, least: int = 1) -> int:
    found = as_count(value, least)
    if found is None:
        raise DataError(f"{name} wants an integer of {least} or more, found {value!r}")
    return found


def require_function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        how = "; a name is for the command line: import the function and give it" if isinstance(value, str) else ""
        raise DataError(f"{name} wants a function, found {value!r}{how}")


def require_batches(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} wants a number of batches, 0 or more; found {value!r}")
