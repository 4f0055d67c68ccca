"""Many host names in few words: gpu-[0-62]; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

Parts = tuple[str, str, str]


def join_names(names: Sequence[str]) -> str:
    """As a cluster file would spell them; names that do not belong together stand side by side."""
    forms = Counter((head, tail) for name in names for head, _, tail in _splits(name))
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        head, number, tail = next((parts for parts in _splits(name) if forms[parts[::2]] > 1), (name, "", ""))
        groups.setdefault((head, tail), []).append(number)
    return ", ".join(f"{head}{_join_numbers(numbers)}{tail}" for (head, tail), numbers in groups.items())


def shorten_names(names: Sequence[str], width: int) -> str:
    """The same where it fits; else the first, and how many more."""
    whole = join_names(names)
    if len(whole) <= width:
        return whole
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    room = width - len(more)
    return (names[0] if len(names[0]) <= room else names[0][: room - 1] + "…") + more


def drop_domain(names: Sequence[str]) -> list[str]:
    """Without what all of them share after the first dot; numbers have no domain."""
    shared = {name.partition(".")[2] for name in names}
    if len(shared) > 1 or any(name[0].isdigit() or ":" in name for name in names):
        return list(names)
    return [name.partition(".")[0] for name in names]


def _splits(name: str) -> Iterator[Parts]:
    """Around each number in it, the last one first."""
    for match in reversed(list(re.finditer(r"\d+", name))):
        yield name[: match.start()], match[0], name[match.end() :]


def _join_numbers(numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    runs: list[list[str]] = []
    for number in sorted(numbers, key=lambda number: (len(number), number)):
        if runs and _follows(number, runs[-1][-1]):
            runs[-1].append(number)
        else:
            runs.append([number])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def _follows(number: str, before: str) -> bool:
    """10 follows 9 and 09, 010 follows 009 alone: as in a cluster file, the first number of a range sets its width."""
    return int(number) == int(before) + 1 and (len(number) == len(before) or number[0] != "0")
