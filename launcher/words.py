"""Counts and lists of names as text: `1 process`, `3 processes`, `a, b, c and 2 more`; pure."""

from __future__ import annotations

from collections.abc import Sequence


def count_things(count: int, thing: str) -> str:
    """`1 GPU`, `2 GPUs`, `3 other processes`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"


def list_some(names: Sequence[str], most: int = 3, shown: int = 3, rest: str = "more") -> str:
    """All names when there are at most `most`, else the first `shown` and the number of the others."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:shown])} and {len(names) - shown} {rest}"
