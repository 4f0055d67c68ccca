"""Counts, lists of names and sizes as text: `3 processes`, `a, b, c and 2 more`, `11.2 GB`; pure."""

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


def tell_size(size: float) -> str:
    """`512 bytes`, `64 MB`, `11.2 GB`; each unit is 1000 of the one before."""
    for unit in ("bytes", "kB", "MB"):
        if round(size) < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    size, unit = (size, "GB") if size < 999.95 else (size / 1000, "TB")
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"
