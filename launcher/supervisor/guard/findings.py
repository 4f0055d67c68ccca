"""What can be wrong with the rows of processes, whose fault it is, and how it is told; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hostmesh.launcher.supervisor.guard.reports import HEX, Part
from hostmesh.launcher.supervisor.programs.disagreement import name_processes

MAX_RECORDS_TOLD = 6
ON_WITHOUT_A_WORD = "jax computes with them all the same, and what comes out is wrong."
OWN_RANDOMNESS = (
    "Read again, they are others each time: `map` is to draw from the `rng` that it is given, map(block, ids, rng)."
)
CHANGED_LATER = (
    "Read again, they are those of the others: they were changed after they were read, or are not read alike."
)
OTHER_DATA = (
    "Read again, they are the same as before: its data, or the code that reads them, is not that of the others."
)
NOT_KNOWN = "Which of them is wrong is not known: each reads the same again, so their data, or their code, differ."
OWN_ARRAYS = "They are arrays that the script has made itself, of what it gave to jax on these processes."

Votes = Mapping[str, set[int]]  # who has said each fingerprint
Name = Callable[[int], str]  # `process 2 on gpu-c`


@dataclass
class Rows:
    """Blocks of rows that their holders do not hold alike; `block` is the first one that was found."""

    what: str
    of: str
    step: int
    form: int
    part: Part
    block: int
    votes: Votes
    is_call: bool
    everyone: frozenset[int]
    blocks: set[int] = field(default_factory=set)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, other: Rows) -> None:
        """More of the same step."""
        if other.place == self.place:
            self.blocks.add(other.block)
            if other.block == self.block:
                self.votes = other.votes

    @property
    def place(self) -> tuple[Any, ...]:
        return self.of, self.step, self.part.name, self.part.box

    # Asking.

    @property
    def is_complete(self) -> bool:
        return self.part.holders <= {process for who in self.votes.values() for process in who}

    @property
    def asked(self) -> list[int]:
        """All who hold the rows, and another one where there is one: two who differ need a third."""
        return [*sorted(self.part.holders), *sorted(self.everyone - self.part.holders)[:1]]

    @property
    def question(self) -> dict[str, Any]:
        box = [list(span) for span in self.part.box]
        about = {"of": self.of, "step": self.step, "form": self.form, "array": self.part.name, "box": box}
        return {**about, "rows": list(self.part.rows_of(self.block)), "all_rows": list(self._span)}

    @property
    def is_answered(self) -> bool:
        return self.answers.keys() >= set(self.asked)

    def note_answer(self, process_id: int, detail: dict[str, Any]) -> None:
        is_of_this = all(detail.get(key) == value for key, value in self.question.items())
        if is_of_this and process_id in self.asked:
            self.answers[process_id] = detail

    # Blame.

    @property
    def _first(self) -> dict[int, str]:
        return {process: told for told, who in self.votes.items() for process in who}

    @property
    def _again(self) -> dict[int, str]:
        algorithm = next(iter(self.votes)).partition(" ")[0]
        found = {process: answer.get("again") for process, answer in self.answers.items()}
        return {
            process: f"{algorithm} {told}"
            for process, told in found.items()
            if isinstance(told, str) and HEX.fullmatch(told)
        }

    @property
    def is_random(self) -> bool:
        """Whoever reads the rows again gets what nobody has had."""
        first, again = self._first, self._again
        known = [process for process in first if process in again]
        said = [*first.values(), *again.values()]
        return bool(known) and all(said.count(again[process]) == 1 for process in known)

    @property
    def culprits(self) -> tuple[int, ...]:
        """Those who said something else than most did; nobody where that is not known."""
        if self.is_random:
            return ()
        first, again = self._first, self._again
        said = [*first.values(), *again.values()]
        by_count = sorted({(said.count(told), told) for told in said}, reverse=True)
        if len(by_count) > 1 and by_count[0][0] == by_count[1][0]:
            return ()
        return tuple(sorted(process for process, told in first.items() if told != by_count[0][1]))

    def text(self, name: Name) -> str:
        wrong = self.culprits
        where = f"{_in_step(self.is_call, self.step)} of {self.what}: {self.part.name}, {self._rows}{self._records}"
        if len(wrong) == 1:
            others = [process for process in self._first if process not in wrong]
            return f"{name(wrong[0])} gave other rows than {name_processes(sorted(others))} {where}"
        if wrong:
            others = [process for process in self._first if process not in wrong]
            return f"{name_processes(wrong)} gave other rows than {name_processes(sorted(others))} {where}"
        return f"{name_processes(sorted(self._first))} gave different rows, which should be the same, {where}"

    def explain(self) -> list[str]:
        return [*self._explain_cause(), f"They hold replicas of these rows: {ON_WITHOUT_A_WORD}"]

    def _explain_cause(self) -> list[str]:
        if self.is_call:
            return [OWN_ARRAYS]
        if self.is_random:
            return [OWN_RANDOMNESS]
        again, first = self._again, self._first
        if not again:
            return []
        if not self.culprits:
            return [NOT_KNOWN]
        same = [again[process] == first[process] for process in self.culprits if process in again]
        return ([OTHER_DATA] if all(same) else [CHANGED_LATER]) if same else []

    @property
    def _span(self) -> tuple[int, int]:
        spans = [self.part.rows_of(block) for block in {*self.blocks, self.block}]
        return min(span[0] for span in spans), max(span[1] for span in spans)

    @property
    def _rows(self) -> str:
        first, last = self._span[0], self._span[1] - 1
        return f"row {first}" if first == last else f"rows {first} to {last}"

    @property
    def _records(self) -> str:
        found = [each.get("records") for each in self.answers.values()]
        known = next((each for each in found if isinstance(each, list) and each), [])
        told = [str(one) for one in known[:MAX_RECORDS_TOLD] if isinstance(one, int)]
        if not told:
            return ""
        more = f" and {len(known) - len(told)} more" if len(known) > len(told) else ""
        return f" (record{'s' if len(known) > 1 else ''} {', '.join(told)}{more})"


@dataclass
class Orders:
    """The records of a step are not the same, or not in the same order, on all processes."""

    what: str
    step: int
    votes: Votes
    everyone: frozenset[int]

    @property
    def is_complete(self) -> bool:
        return len(self.everyone) == sum(map(len, self.votes.values()))

    @property
    def culprits(self) -> tuple[int, ...]:
        return find_minority(self.votes, self.everyone)

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
class Shapes:
    """Arrays of different shapes or dtypes, or cut differently."""

    what: str
    votes: Votes
    of_shapes: bool
    everyone: frozenset[int]

    @property
    def is_complete(self) -> bool:
        return len(self.everyone) == sum(map(len, self.votes.values()))

    @property
    def culprits(self) -> tuple[int, ...]:
        return find_minority(self.votes, self.everyone)

    def text(self, name: Name) -> str:
        if not self.of_shapes:
            apart = _tell_sides(self.votes, self.culprits, name)
            return f"{apart} another mesh or sharding for {self.what} than the others"
        sides = sorted(self.votes.items(), key=lambda side: (-len(side[1]), min(side[1])))
        has = [f"{name_processes(sorted(who))} {'has' if len(who) == 1 else 'have'} {shape}" for shape, who in sides]
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


def _in_step(is_call: bool, step: int) -> str:
    return f"in call {step}" if is_call else f"in step {step}"
