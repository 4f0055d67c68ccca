"""Many host names in one pattern such as gpu-[0-62], and back; pure."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Parts = tuple[str, str, str]


# From a pattern to names.


@dataclass(frozen=True)
class NumberRange:
    """`08-11` in a bracket: 08, 09, 10 and 11. The first number sets how many digits all of them have at least."""

    first: int
    last: int
    width: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def spell(self) -> Iterator[str]:
        return (f"{number:0{self.width}d}" for number in range(self.first, self.last + 1))


# What may stand at one position of a name: plain text has one alternative, a bracket a few.
Alternatives = tuple[str | NumberRange, ...]


@dataclass(frozen=True)
class NamePattern:
    """The positions of `gpu-[0-3,x].lab` in order. Names can be counted before any of them is spelt out."""

    positions: tuple[Alternatives, ...]

    @property
    def count(self) -> int:
        return math.prod(
            sum(1 if isinstance(each, str) else each.count for each in position) for position in self.positions
        )

    def spell(self) -> list[str]:
        spelt = [
            [text for each in position for text in ((each,) if isinstance(each, str) else each.spell())]
            for position in self.positions
        ]
        return ["".join(texts) for texts in itertools.product(*spelt)]


def parse_names(text: str) -> NamePattern | None:
    """None when a bracket holds neither a rising range nor a list."""
    pieces = enumerate(re.split(r"\[([^]]*)\]", text))
    positions = tuple(_parse_bracket(piece) if index % 2 else (piece,) for index, piece in pieces)
    return NamePattern(positions) if all(positions) else None


def _parse_bracket(bracket: str) -> Alternatives:
    """`08-11,x` as its alternatives; none when it makes no sense."""
    alternatives: list[str | NumberRange] = []
    for item in bracket.split(","):
        ends = re.fullmatch("([0-9]{1,9})-([0-9]{1,9})", item)
        if ends and int(ends[1]) <= int(ends[2]):
            alternatives.append(NumberRange(int(ends[1]), int(ends[2]), len(ends[1])))
        elif re.fullmatch("[A-Za-z0-9_.]+", item):
            alternatives.append(item)
        else:
            return ()
    return tuple(alternatives)


# From names to a pattern.


def join_names(names: Sequence[str]) -> str:
    """The names as a cluster file may write them: `gpu-[0-3], tpu-a`."""
    forms = Counter((head, tail) for name in names for head, _, tail in _splits(name))
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        head, number, tail = next((parts for parts in _splits(name) if forms[parts[::2]] > 1), (name, "", ""))
        groups.setdefault((head, tail), []).append(number)
    return ", ".join(f"{head}{_join_numbers(numbers)}{tail}" for (head, tail), numbers in groups.items())


def shorten_names(names: Sequence[str], width: int) -> str:
    """`join_names` where it fits into the width; else the first name and the number of the others: `gpu-0 +62`."""
    whole = join_names(names)
    if len(whole) <= width:
        return whole
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    room = width - len(more)
    return (names[0] if len(names[0]) <= room else names[0][: room - 1] + "…") + more


def drop_domain(names: Sequence[str]) -> list[str]:
    """The names without the domain, if all have the same one; numeric addresses have none."""
    shared = {name.partition(".")[2] for name in names}
    if len(shared) > 1 or any(name[0].isdigit() or ":" in name for name in names):
        return list(names)
    return [name.partition(".")[0] for name in names]


def _splits(name: str) -> Iterator[Parts]:
    """The name cut into head, number and tail at each of its numbers, the last number first."""
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
    """10 follows 9 and 09, but 010 follows only 009: the first number of a range sets how many digits it has."""
    return int(number) == int(before) + 1 and (len(number) == len(before) or number[0] != "0")
