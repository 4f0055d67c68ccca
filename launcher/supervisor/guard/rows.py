"""Rows that processes do not hold alike: who is asked about them, whose fault it is, and how it is told; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hostmesh.launcher.supervisor.guard.reports import HEX, Part
from hostmesh.launcher.words import list_some, name_processes

MAX_RECORDS_TOLD = 6
ON_WITHOUT_A_WORD = "jax computes with them all the same, and what comes out is wrong."
OTHERS_EACH_TIME = "Read again, they are others each time: "
DRAWING = {"map": "map(block, ids, rng)", "collate": "collate(records, ids, rng)"}
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
    changed_by: tuple[str, ...] = ()
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
        """All holders, and one other process if there is one: it tells who is wrong where two differ."""
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
            return [explain_randomness(self.changed_by)]
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
        told = [str(one) for one in known if isinstance(one, int)]
        if not told:
            return ""
        return f" (record{'s' if len(told) > 1 else ''} {list_some(told, MAX_RECORDS_TOLD, MAX_RECORDS_TOLD)})"


def explain_randomness(changed_by: Sequence[str]) -> str:
    """The random numbers may be those of functions that the loader was given, or of its source."""
    if not changed_by:
        source = "the source is to give the same each time"
        return f"{OTHERS_EACH_TIME}{source}; what is random belongs into `map`, map(block, ids, rng)."
    functions = [f"`{name}` is to draw from the `rng` that it is given, {DRAWING[name]}" for name in changed_by]
    return f"{OTHERS_EACH_TIME}{'; '.join(functions)}; and a source is to give the same each time."


def _in_step(is_call: bool, step: int) -> str:
    return f"in call {step}" if is_call else f"in step {step}"
