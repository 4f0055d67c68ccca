"""Compares what processes say of the rows that they hold; pure.

A block of rows is known by (loader, pass, step, array, place), and all processes that hold it must report the same
fingerprint. Where they differ, the launcher waits a moment for the reports that are missing, and then asks all holders
to read the block again. It also asks one process that does not hold it: that tells who is wrong where two differ.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hostmesh.launcher.supervisor.guard.bounds import MANY_LOADERS, MANY_NAMES, MAX_LOADERS
from hostmesh.launcher.supervisor.guard.findings import Ends, Finding, Orders, Shapes, Uncovered, find_uncovered
from hostmesh.launcher.supervisor.guard.passes import Passes, tell_apart
from hostmesh.launcher.supervisor.guard.reports import Form, Part, Step, read_form, read_steps, split_blocks
from hostmesh.launcher.supervisor.guard.rows import Rows

# What is remembered: of a loader the steps that not all processes have reported, and the parts of arrays in them;
# loaders; forms of a loader.
MAX_OPEN = 2000
MAX_OPEN_PARTS = 100_000
MAX_FORMS = 1000
MAX_NAME = 300
# So begins what a process calls the calls of one name; a loader is called `loader 3`.
CALL = "check "
# Fewer values than this are often equal by chance.
MIN_COPIED = 64
# Seconds for all holders of rows to report them, and to report them again.
OTHERS_TIMEOUT = 1.5
AGAIN_TIMEOUT = 4.0
# Seconds to add for each process: the more processes there are, the more seldom each of them reports.
PER_PROCESS = 1 / 400
# Seconds after a process has left in which another reason for that may become known.
LEFT_TIMEOUT = 1.0

Votes = dict[str, set[int]]  # who has said each fingerprint
At = tuple[int, int]  # a pass over the data, and how many of its steps came before


class Pending(Enum):
    """Something is wrong, and it is not all known yet."""

    WAIT = auto()
    ASK = auto()  # let processes read the rows again


@dataclass
class OpenStep:
    """What was said of a step so far; of parts those whose holders have not all said the same."""

    parts: dict[Hashable, Votes] = field(default_factory=dict)
    orders: Votes = field(default_factory=dict)
    told: set[int] = field(default_factory=set)


@dataclass
class LoaderReports:
    """What was said of one loader, or of the calls with one name."""

    forms: dict[int, dict[int, Form]] = field(default_factory=dict)  # by number, then by process
    steps: dict[At, OpenStep] = field(default_factory=dict)
    open_parts: int = 0  # of all these steps
    taken: dict[int, int] = field(default_factory=dict)  # batches, by process
    # Processes whose main thread waits for something, and that have taken from this loader last.
    idle: set[int] = field(default_factory=set)
    left: dict[int, tuple[int, float]] = field(default_factory=dict)  # by process: with how many batches, and when
    copies: dict[Hashable, tuple[int, tuple[Part, ...]]] = field(default_factory=dict)
    passes: Passes = field(default_factory=Passes)

    @property
    def name(self) -> str:
        return next((form.what for told in self.forms.values() for form in told.values()), "its data")

    def open(self, at: At) -> OpenStep:
        if at not in self.steps:
            self.steps[at] = OpenStep()
        return self.steps[at]

    def close(self, at: At) -> None:
        self.open_parts -= len(self.steps.pop(at).parts)

    def forget_old(self) -> None:
        while self.steps and (len(self.steps) > MAX_OPEN or self.open_parts > MAX_OPEN_PARTS):
            self.close(min(self.steps))


class Guard:
    """Of one attempt with so many processes. `finding` is the first thing that is wrong."""

    def __init__(self, num_processes: int) -> None:
        self.everyone = frozenset(range(num_processes))
        self.finding: Finding | None = None
        self.found_at = 0.0
        self.asked_at: float | None = None
        self.notes: list[str] = []  # for the user; whoever tells them takes them away
        self._loaders: dict[str, LoaderReports] = {}
        self._noted: set[Hashable] = set()
        self._slack = num_processes * PER_PROCESS
        self._has_dropped_loader = False

    def note(self, process_id: int, name: str, detail: dict[str, Any], now: float) -> None:
        of = detail.get("of")
        if not isinstance(of, str) or len(of) > MAX_NAME:
            return
        loader = self._loaders.pop(of, None) or self._begin_loader(of)
        self._loaders[of] = loader  # the last of them
        if name == "rows again":
            if isinstance(self.finding, Rows) and self.asked_at is not None:
                self.finding.note_answer(process_id, detail)
        elif name == "row parts":
            self._note_form(loader, process_id, detail, now)
        else:
            self._note_taken(loader, process_id, detail, now)
            for step in read_steps(detail.get("steps")):
                self._note_step(loader, of, process_id, step, now)

    def look(self, now: float, gone: Collection[int], everyone_ended: bool) -> Finding | Pending | None:
        """What is wrong, once all is said of it. `gone` are processes that failed, or were asked to stop."""
        finding = self.finding
        if finding is None:
            return self._find_ends(now, gone)
        others_timeout = OTHERS_TIMEOUT + self._slack
        if everyone_ended:
            return finding
        if not isinstance(finding, Rows):
            return finding if finding.is_complete or now - self.found_at > others_timeout else Pending.WAIT
        if self.asked_at is not None:
            return finding if finding.is_answered or now - self.asked_at > AGAIN_TIMEOUT else Pending.WAIT
        if not finding.is_complete and now - self.found_at <= others_timeout:
            return Pending.WAIT
        return finding if finding.is_call else Pending.ASK

    # Reports.

    def _begin_loader(self, of: str) -> LoaderReports:
        """In the place of the one that was told of longest ago, where there are too many. What a process has told of
        forms it does not tell again, so names of calls, of which there may be one for each, drop no loader."""
        alike = [each for each in self._loaders if each.startswith(CALL) == of.startswith(CALL)]
        if len(alike) >= MAX_LOADERS:
            del self._loaders[alike[0]]
            if of.startswith(CALL):
                self._note_once("names", MANY_NAMES)
            else:
                self._has_dropped_loader = True
        return LoaderReports()

    def _found(self, finding: Finding, now: float) -> None:
        if self.finding is None:
            self.finding, self.found_at = finding, now

    def _note_taken(self, loader: LoaderReports, process_id: int, detail: dict[str, Any], now: float) -> None:
        if isinstance(taken := detail.get("taken"), int):
            loader.taken[process_id] = taken
            (loader.idle.add if detail.get("idle") is True else loader.idle.discard)(process_id)
            if detail.get("left") is True:
                loader.left[process_id] = taken, now

    def _note_form(self, loader: LoaderReports, process_id: int, detail: dict[str, Any], now: float) -> None:
        form, number = read_form(process_id, detail), detail.get("form")
        if form is None or not isinstance(number, int):
            return
        if number not in loader.forms and len(loader.forms) >= MAX_FORMS:
            return
        told = loader.forms.setdefault(number, {})
        told[process_id] = form
        if len({each.algorithm for each in told.values()}) > 1:
            self._note_once("xxhash", "rows are not compared: some processes lack the package xxhash, others have it")
        if len({each.mode for each in told.values()}) > 1:
            self._note_once(
                ("mode", form.what), f"{form.what} is not compared: guard= is not the same on all processes"
            )
        shapes, cuts = _group(told, _describe_shapes), _group(told, lambda each: each.layout)
        if len(shapes) > 1 or len(cuts) > 1:
            found = Shapes(form.what, shapes if len(shapes) > 1 else cuts, len(shapes) > 1, self.everyone)
            self._found(found, now)
            if isinstance(self.finding, Shapes) and self.finding.what == form.what:
                self.finding = found  # which has more sides than the first one
        elif len(told) == len(self.everyone) and (lacking := find_uncovered(told)) is not None:
            self._found(Uncovered(form.what, *lacking), now)

    def _note_step(self, loader: LoaderReports, of: str, process_id: int, step: Step, now: float) -> None:
        form = loader.forms.get(step.form, {}).get(process_id)
        if form is None:
            if self._has_dropped_loader:
                self._note_once("loaders", MANY_LOADERS)
            return
        loader.passes.note(process_id, step.at[0])
        if loader.passes.are_apart(len(self.everyone)):
            self._note_once(("passes", of), tell_apart(loader.passes.of, form.what))
        opened = loader.open(step.at)
        opened.told.add(process_id)
        if step.order:
            opened.orders.setdefault(f"{form.algorithm} {step.order}", set()).add(process_id)
            if _differ(opened.orders):
                self._found(Orders(form.what, step.number, opened.orders, self.everyone), now)
        for part, told in zip(form.shared, step.rows, strict=True) if step.fits(form) else ():
            key = part.name, part.box, part.blocks, step.nth
            votes = opened.parts.get(key)
            if votes is None:
                votes = opened.parts[key] = {}
                loader.open_parts += 1
            who = votes.setdefault(f"{form.algorithm} {told}", set())
            who.add(process_id)
            if len(votes) == 1:
                if len(who) == len(part.holders):
                    del opened.parts[key]
                    loader.open_parts -= 1
            elif _differ(votes):
                self._note_difference(of, form, step, part, votes, now)
        self._look_for_copies(loader, form, step, process_id)
        if len(opened.told) == len(self.everyone):
            loader.close(step.at)
        loader.forget_old()

    def _note_difference(self, of: str, form: Form, step: Step, part: Part, told: Votes, now: float) -> None:
        """What was told of all blocks of a part, or of one in its turn, is not the same."""
        by_block: dict[int, Votes] = {}
        for said, who in told.items():
            algorithm, _, text = said.partition(" ")
            for number, fingerprint in enumerate(split_blocks(text)):
                block = number if step.nth is None else step.nth % part.blocks
                by_block.setdefault(block, {}).setdefault(f"{algorithm} {fingerprint}", set()).update(who)
        for block, votes in by_block.items():
            if len(votes) > 1:
                about = form.is_call, self.everyone, form.changed_by
                found = Rows(form.what, of, step.number, step.form, part, block, votes, *about)
                self._found(found, now)
                if isinstance(self.finding, Rows):
                    self.finding.add(found)

    def _look_for_copies(self, loader: LoaderReports, form: Form, step: Step, process_id: int) -> None:
        """Processes that should hold different rows, and hold the same."""
        if len(step.own) != len(form.parts):
            return
        known = [(part, told) for part, told in zip(form.parts, step.own, strict=True) if told]
        parts = tuple(part for part, _ in known)
        if sum(part.volume for part in parts) < MIN_COPIED:
            return
        key = step.at, tuple((part.name, part.volume, told) for part, told in known)
        other, theirs = loader.copies.setdefault(key, (process_id, parts))
        mine_first = next((pair for pair in zip(parts, theirs, strict=True) if pair[0].box != pair[1].box), None)
        if other != process_id and mine_first is not None:
            mine, first = (f"rows {one.box[0][0]} to {one.box[0][1] - 1}" for one in mine_first)
            self._note_once(
                ("copies", form.what),
                f"process {process_id} gives as {mine} of {form.what} the same values that process {other} gives "
                f"as {first}: does each process load its own rows?",
            )
        while len(loader.copies) > MAX_OPEN:
            del loader.copies[next(iter(loader.copies))]

    def _note_once(self, key: Hashable, text: str) -> None:
        if key not in self._noted:
            self._noted.add(key)
            self.notes.append(text)

    def _find_ends(self, now: float, gone: Collection[int]) -> Finding | None:
        """A process has left in order, others have taken more batches than it, and some of these do nothing but wait:
        what they compute needs its rows. One that takes a batch more and needs nobody for it goes on, or leaves too;
        who has taken from another loader since does not wait for the rows of this one."""
        for loader in self._loaders.values():
            for process, (taken, at) in loader.left.items():
                if process in gone or now - at <= LEFT_TIMEOUT + self._slack:
                    continue
                ahead = {each: more for each, more in loader.taken.items() if more > taken and each not in gone}
                waiting = ahead.keys() - loader.left.keys()
                if waiting and waiting <= loader.idle:
                    return Ends(loader.name, process, taken, max(ahead.values()), frozenset(ahead))
        return None


def _describe_shapes(form: Form) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in form.shapes.items())


def _group(told: Mapping[int, Form], value: Any) -> Votes:
    found: Votes = {}
    for process, form in told.items():
        found.setdefault(value(form), set()).add(process)
    return found


def _differ(votes: Votes) -> bool:
    """Fingerprints that were made in the same way, and are not the same."""
    return len(votes) > 1 and len({told.partition(" ")[0] for told in votes}) == 1
