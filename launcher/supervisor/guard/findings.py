"""What can be wrong with the rows of processes, whose fault it is, and how it is told; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from hostmesh.launcher.supervisor.guard.reports import Form
from hostmesh.launcher.supervisor.guard.rows import ON_WITHOUT_A_WORD, Name, Rows, Votes
from hostmesh.launcher.words import agree, name_processes


class Voted:
    """Every process says something of a whole, and all should say the same."""

    votes: Votes
    everyone: frozenset[int]

    @property
    def is_complete(self) -> bool:
        return len(self.everyone) == sum(map(len, self.votes.values()))

    @property
    def culprits(self) -> tuple[int, ...]:
        return find_minority(self.votes, self.everyone)


@dataclass
class Orders(Voted):
    """The records of a step are not the same, or not in the same order, on all processes."""

    what: str
    step: int
    votes: Votes
    everyone: frozenset[int]

    def text(self, name: Name) -> str:
        if len(self._steps) > 1:
            at = [f"{name_processes(sorted(who))} at step {_step_of(told)}" for told, who in self.votes.items()]
            return f"the processes are not at the same step of {self.what}: {'; '.join(at)}"
        if self.culprits:
            sides = _tell_sides(self.votes, self.culprits, name)
            return f"{sides} other records than the others in step {self.step} of {self.what}"
        everybody = sorted(process for who in self.votes.values() for process in who)
        return f"{name_processes(everybody)} do not have the same records in step {self.step} of {self.what}"

    @property
    def _steps(self) -> set[int]:
        return {_step_of(told) for told in self.votes}

    def explain(self) -> list[str]:
        if len(self._steps) > 1:
            return [f"Each gives the rows of its own step: {ON_WITHOUT_A_WORD}"]
        return ["Each process computes which records a step has, from the seed and the source: these are not equal."]


@dataclass
class Shapes(Voted):
    """Arrays of different shapes or dtypes, or cut differently."""

    what: str
    votes: Votes
    of_shapes: bool
    everyone: frozenset[int]

    def text(self, name: Name) -> str:
        if not self.of_shapes:
            apart = _tell_sides(self.votes, self.culprits, name)
            return f"{apart} another mesh or sharding for {self.what} than the others"
        sides = sorted(self.votes.items(), key=lambda side: (-len(side[1]), min(side[1])))
        has = [f"{name_processes(sorted(who))} {agree('has', len(who))} {shape}" for shape, who in sides]
        return f"the arrays of {self.what} are not the same everywhere: {'; '.join(has)}"

    def explain(self) -> list[str]:
        return [f"Each process believes in its own: {ON_WITHOUT_A_WORD}"]


@dataclass
class Uncovered:
    """The parts of all processes are less, or more, than the whole array."""

    what: str
    name: str
    found: int
    whole: int
    culprits: tuple[int, ...] = ()
    is_complete = True

    def text(self, name: Name) -> str:
        has = f"{self.found:,} values of {self.name} of {self.what}"
        return f"all processes together hold {has}, which has {self.whole:,}"

    def explain(self) -> list[str]:
        return ["Each row must be on the devices of some process, and on those of several only as a replica."]


@dataclass
class Ends:
    """One process has left with fewer batches than others have taken."""

    what: str
    process: int
    taken: int
    most: int
    ahead: frozenset[int]
    is_complete = True

    @property
    def culprits(self) -> tuple[int, ...]:
        return (self.process,)

    def text(self, name: Name) -> str:
        others = name_processes(sorted(self.ahead))
        left = f"{name(self.process)} has left after {self.taken:,} batches of {self.what}"
        return f"{left}, and {others} took {self.most:,}"

    def explain(self) -> list[str]:
        return [
            f"The rows of step {self.taken} that it should hold are missing: all processes must take as many batches."
        ]


Finding = Rows | Orders | Shapes | Uncovered | Ends


def find_uncovered(told: Mapping[int, Form]) -> tuple[str, int, int] | None:
    """An array whose parts on all processes are not the whole: its name, how many values they have, how many it has."""
    first = next(iter(told.values()))
    if not all(form.is_all for form in told.values()):
        return None
    for name, shape in first.shapes.items():
        sizes = shape.partition("[")[2].rstrip("]")
        whole = prod(int(size) for size in sizes.split(",") if size.isdecimal())
        boxes = {part.box: part.volume for form in told.values() for part in form.parts if part.name == name}
        if (found := sum(boxes.values())) != whole:
            return name, found, whole
    return None


def find_minority(votes: Votes, everyone: Collection[int]) -> tuple[int, ...]:
    """Those who differ from more than half of all."""
    most = max(votes.values(), key=len)
    if 2 * len(most) <= len(everyone):
        return ()
    return tuple(sorted(process for who in votes.values() if who is not most for process in who))


def _step_of(told: str) -> int:
    """`xxh3 0000000c…` is of step 12."""
    return int(told.partition(" ")[2][:8] or "0", 16)


def _tell_sides(votes: Votes, culprits: tuple[int, ...], name: Name) -> str:
    if len(culprits) == 1:
        return f"{name(culprits[0])} has"
    if culprits:
        return f"{name_processes(culprits)} have"
    sides = sorted((sorted(who) for who in votes.values()), key=lambda who: who[0])
    return f"{' and '.join(map(name_processes, sides))} each have"
