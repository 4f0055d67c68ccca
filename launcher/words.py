"""Counts, lists of names, sizes and what others have printed as text: `3 processes`, `a, b and 2 more`; pure."""

from __future__ import annotations

from collections.abc import Sequence

# Those that do not only lose their s.
PLURAL_VERBS = {"is": "are", "was": "were", "has": "have", "does": "do"}
MAX_PROCESSES = 6
MAX_LINE = 200


def count_things(count: int, thing: str) -> str:
    """`1 GPU`, `2 GPUs`, `3 other processes`."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"


def list_some(names: Sequence[str], most: int = 3, shown: int = 3, rest: str = "more") -> str:
    """All names when there are at most `most`, else the first `shown` and the number of the others."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:shown])} and {len(names) - shown} {rest}"


def agree(verb: str, count: int) -> str:
    """A verb in the number of its subject: `was` of one, `were` of several."""
    return verb if count == 1 else PLURAL_VERBS.get(verb, verb.removesuffix("s"))


def name_processes(ids: Sequence[int]) -> str:
    """`process 2`, `processes 0 and 1`, `processes 0, 1, 2, 3, 4 and 95 more`."""
    return f"{'process' if len(ids) == 1 else 'processes'} {list_ids(ids)}"


def list_ids(ids: Sequence[int]) -> str:
    if len(ids) < 2 or len(ids) > MAX_PROCESSES:
        return list_some(list(map(str, ids)), 1, MAX_PROCESSES - 1)
    *most, last = ids
    return f"{', '.join(map(str, most))} and {last}"


def as_one_line(text: str, most: int = MAX_LINE) -> str:
    return " ".join(text.split())[:most]


def last_lines(printed: str, most: int) -> list[str]:
    """Of what a program has printed, without empty lines."""
    return [line.rstrip() for line in printed.splitlines() if line.strip()][-most:]


def tell_size(size: float) -> str:
    """`512 bytes`, `64 MB`, `11.2 GB`; each unit is 1000 of the one before."""
    for unit in ("bytes", "kB", "MB"):
        if round(size) < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    size, unit = (size, "GB") if size < 999.95 else (size / 1000, "TB")
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"
