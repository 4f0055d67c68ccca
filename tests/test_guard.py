"""Rows that several processes hold must be the same on all of them: who holds others is told, and nothing else is."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import HANGS, await_true
from facts_socket import FactsSocket
from fake_agent import FakeAgent
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from stories import Story

import hostmesh
from hostmesh.launcher.agent.processes.facts import ask
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.failures import NO_CRASH
from hostmesh.launcher.supervisor.guard import comparison
from hostmesh.launcher.supervisor.guard.bounds import MANY_LOADERS, MANY_NAMES, MAX_LOADERS
from hostmesh.launcher.supervisor.guard.comparison import Guard, Pending
from hostmesh.launcher.supervisor.guard.findings import Finding, find_uncovered
from hostmesh.launcher.supervisor.guard.passes import LASTING_STEPS
from hostmesh.launcher.supervisor.guard.reports import read_form, read_steps
from hostmesh.launcher.supervisor.guard.rows import Rows
from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.errors import DataError, DisagreementError
from hostmesh.worker.guard import check as check_module
from hostmesh.worker.guard import telling
from hostmesh.worker.guard.check import Checked
from hostmesh.worker.guard.hashing import ALGORITHM, DIGITS, fingerprint, fingerprint_blocks
from hostmesh.worker.guard.loaded import LoadedRows
from hostmesh.worker.guard.parts import find_held, keep_what_fits, shorten, to_spans, unique
from hostmesh.worker.guard.sampling import FIRST_STEPS, MIN_SAMPLE, Sampling, cut
from hostmesh.worker.guard.telling import Idleness, Teller, Told
from hostmesh.worker.identity import FACTS_SOCKET, GUARD, PROCESS_ID, QUESTIONS

LOADER = "loader 0"

# A pure table: `AABA` are the fingerprints of four blocks, of two rows each, that a process has told.


def letters(text: str) -> str:
    return "".join(f"{ord(letter):0{DIGITS}x}" for letter in text)


def form_of(process: int, holders: int = 3, first: int = 0, **other: Any) -> dict[str, Any]:
    """Rows 0 to 7 are those of processes 0 to `holders` - 1, the next eight those of as many that follow, and so on."""
    group = process // holders
    held_by = [[group * holders, group * holders + holders - 1]]
    part = ["x", [[first or 8 * group, (first or 8 * group) + 8], [0, 4]], held_by, 4]
    return {
        "of": LOADER,
        "form": 0,
        "what": "photos",
        "hash": "xxh3",
        "shapes": {"x": "float32[8,4]"},
        "layout": "a",
        "parts": [part],
        "is_all": False,
        "changed_by": ["map"],
        **other,
    }


def rows_of(step: int, told: str, order: str = "", nth_pass: int = 0, at: int | None = None, **other: Any) -> Any:
    where = [nth_pass, step if at is None else at]
    rows = [letters(told)] if told else []
    return {"step": step, "at": where, "form": 0, "rows": rows, "order": f"{step:08x}{letters(order)}", **other}


class Said:
    """A Guard to which some processes tell what they hold; holders of the same rows follow one another."""

    def __init__(self, processes: int = 3, holders: int | None = None, tell_forms: bool = True) -> None:
        self.guard, self.now, self.holders = Guard(processes), 0.0, holders or processes
        for process in range(processes if tell_forms else 0):
            self.form(process)

    def form(self, process: int, **other: Any) -> None:
        self.guard.note(process, "row parts", form_of(process, self.holders, **other), self.now)

    def steps(self, process: int, *steps: Any, of: str = LOADER, **other: Any) -> None:
        self.guard.note(process, "rows", {"of": of, "taken": 0, "steps": list(steps), **other}, self.now)

    def step(self, number: int, *told: str) -> None:
        """What the processes say of a step, in their order."""
        for process, rows in enumerate(told):
            self.steps(process, rows_of(number, rows))

    def again(self, *told: str | None) -> None:
        """The processes that were asked read once more."""
        assert isinstance(self.guard.finding, Rows)
        self.guard.asked_at = self.now
        for process, rows in enumerate(told):
            found = {"problem": "no"} if rows is None else {"again": letters(rows), "records": [7, 3]}
            self.guard.note(process, "rows again", {**self.guard.finding.question, **found}, self.now)

    def look(self, gone: Any = (), ended: bool = False) -> Finding | Pending | None:
        return self.guard.look(self.now, gone, ended)

    def text(self, **how: Any) -> str | None:
        found = self.look(**how)
        return None if found is None or isinstance(found, Pending) else found.text(lambda number: f"process {number}")

    def later(self, seconds: float) -> None:
        self.now += seconds


def test_one_of_three_is_outvoted() -> None:
    said = Said()
    said.step(4, "AAAA", "AAAA", "AABA")
    assert said.look() is Pending.ASK
    assert isinstance(said.guard.finding, Rows) and said.guard.finding.culprits == (2,)
    said.again("A", "A", "B")
    assert said.text() == "process 2 gave other rows than processes 0 and 1 in step 4 of photos: x, rows 4 to 5 (" + (
        "records 7, 3)"
    )
    assert "is not that of the others" in said.guard.finding.explain()[0]


@pytest.mark.parametrize(
    ("again", "culprits", "cause"),
    [
        (("A", "B", "A"), (1,), "is not that of the others"),  # a third shows who is wrong, and it still is
        (("A", "A", "A"), (1,), "changed after they were read"),
        (("B", "B", "B"), (0,), "changed after they were read"),
        (("C", "D", "E"), (), "`map` is to draw from the `rng`"),
        (("A", "C", "A"), (1,), "changed after they were read"),  # random at one of them only
        (("A", "B", None), (), "who is wrong is not known"),
        ((None, None, None), (), None),  # nobody can read it again
    ],
)
def test_of_two_holders_a_third_reading_tells_who_is_wrong(
    again: tuple[str | None, ...], culprits: tuple[int, ...], cause: str | None
) -> None:
    said = Said(3, holders=2)
    said.step(0, "AAAA", "AAAB")
    assert said.look() is Pending.ASK
    finding = said.guard.finding
    assert isinstance(finding, Rows) and finding.asked == [0, 1, 2]
    said.again(*again)
    assert said.look() is finding and finding.culprits == culprits
    assert (cause or "They hold replicas").replace("who is", "Which of them is") in " ".join(finding.explain()) or (
        cause == "who is wrong is not known" and "Which of them is wrong is not known" in finding.explain()[0]
    )


def test_who_does_not_answer_is_not_waited_for() -> None:
    said = Said()
    said.step(0, "AAAA", "AAAA", "BAAA")
    assert said.look() is Pending.ASK
    said.again("A", "A")
    assert said.look() is Pending.WAIT
    said.later(comparison.AGAIN_TIMEOUT + 0.1)
    assert (said.text() or "").startswith("process 2 gave other rows")


def test_who_has_not_told_yet_is_waited_for_but_not_for_long() -> None:
    said = Said()
    said.step(0, "AAAA", "AABA")
    assert said.look() is Pending.WAIT
    said.later(comparison.OTHERS_TIMEOUT + 0.1)
    assert said.look() is Pending.ASK


def test_all_rows_of_the_step_that_differ_are_told() -> None:
    said = Said()
    said.step(3, "AAAA", "AAAA", "ABBA")
    said.again("A", "A", "B")
    assert "step 3 of photos: x, rows 2 to 5" in (said.text() or "")


def test_several_that_are_alike_wrong_are_named_together() -> None:
    said = Said(5)
    said.step(0, "AAAA", "AAAA", "AAAA", "BAAA", "BAAA")
    said.again("A", "A", "A", "B", "B")
    assert (said.text() or "").startswith("processes 3 and 4 gave other rows than processes 0, 1 and 2 in step 0")


def test_a_run_that_is_over_is_told_what_is_known() -> None:
    said = Said(2)
    said.step(0, "AAAA", "AABA")
    assert said.text(ended=True) == (
        "processes 0 and 1 gave different rows, which should be the same, in step 0 of photos: x, rows 4 to 5"
    )


def test_one_with_other_records_is_named() -> None:
    said = Said()
    for process, order in enumerate("AAB"):
        said.steps(process, rows_of(9, "AAAA", order))
    assert said.text() == "process 2 has other records than the others in step 9 of photos"


def test_one_that_goes_on_from_another_step_is_named() -> None:
    """Its rows are those of its own step, in their order: nothing else tells that they do not belong together."""
    said = Said(2)
    said.steps(0, rows_of(100, "AAAA", "A", nth_pass=1, at=0))
    said.steps(1, rows_of(50, "BBBB", "B", nth_pass=1, at=0))
    assert (
        said.text() == "the processes are not at the same step of photos: process 0 at step 100; process 1 at step 50"
    )


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {"shapes": {"x": "float32[6,4]"}},
            "the arrays of photos are not the same everywhere: processes 0 and 1 have x float32[8,4]; process 2 has x "
            "float32[6,4]",
        ),
        ({"layout": "b"}, "process 2 has another mesh or sharding for photos than the others"),
    ],
)
def test_another_shape_or_cut_at_one_is_told(other: dict[str, Any], told: str) -> None:
    said = Said(tell_forms=False)
    for process in range(3):
        said.form(process, **(other if process == 2 else {}))
    assert said.text() == told


def test_parts_that_are_not_the_whole_are_told() -> None:
    said = Said(2, holders=1, tell_forms=False)
    for process in range(2):
        said.form(process, shapes={"x": "float32[32,4]"}, is_all=True)
    assert said.text() == "all processes together hold 64 values of x of photos, which has 128"


def test_parts_that_were_left_out_are_not_missed() -> None:
    said = Said(2, holders=1, tell_forms=False)
    for process in range(2):
        said.form(process, shapes={"x": "float32[32,4]"}, is_all=process == 0)
    assert said.look() is None


# Uneven ends.


def leave(said: Said, *taken: int, left: tuple[int, ...] = (), idle: tuple[int, ...] = ()) -> None:
    for process, batches in enumerate(taken):
        said.steps(process, taken=batches, idle=process in idle, left=process in left)


def test_one_that_leaves_with_fewer_batches_is_told_once_others_wait_for_it() -> None:
    said = Said()
    leave(said, 8, 9, 9, left=(0,))
    said.later(60)
    assert said.look() is None  # the others go on: they need nobody
    leave(said, 8, 9, 9, left=(0,), idle=(1,))
    assert said.look() is None  # and one of them does
    leave(said, 8, 9, 9, idle=(1, 2))
    said.later(2)
    assert said.text() == "process 0 has left after 8 batches of photos, and processes 1 and 2 took 9"
    assert isinstance(found := said.look(), comparison.Ends) and found.culprits == (0,)


def test_others_that_have_left_too_are_not_waited_for() -> None:
    said = Said(4)
    leave(said, 8, 9, 9, 9, left=(0, 1, 2), idle=(3,))
    said.later(2)
    assert (said.text() or "").startswith("process 0 has left after 8 batches")


@pytest.mark.parametrize("gone", [{0}, {1, 2}])
def test_who_failed_or_was_stopped_has_not_left_early(gone: set[int]) -> None:
    said = Said()
    leave(said, 8, 9, 9, left=(0,), idle=(1, 2))
    said.later(60)
    assert said.look(gone=gone) is None


def test_all_may_take_as_many_as_they_like_and_leave() -> None:
    """Process 0 has looked at one more batch, at its very end, and needed nobody for that."""
    said = Said()
    leave(said, 10, 9, 9, left=(0, 1, 2), idle=(0, 1, 2))
    said.later(60)
    assert said.look() is None and said.look(ended=True) is None


@pytest.mark.parametrize("waits_for", [LOADER, "loader 1"])
def test_who_has_gone_on_with_another_loader_waits_for_that(waits_for: str) -> None:
    """Process 0 has looked at one batch more of an evaluation loader, long ago."""
    said = Said(2)
    for process, taken in ((0, 2), (1, 1)):
        said.steps(process, taken=taken, idle=process == 0 and waits_for == LOADER, left=process == 1)
        said.steps(process, of="loader 1", taken=9, idle=process == 0 and waits_for != LOADER, left=process == 1)
    said.later(60)
    assert (said.look() is None) == (waits_for != LOADER)


# Names and passes.


def test_names_of_calls_drop_no_loader_and_are_told_once() -> None:
    said = Said(2)
    for number in range(450):
        of = f"check 0 batch {number}"
        for process in range(2):
            said.form(process, of=of, what=f"batch {number}", is_call=True)
            said.steps(process, rows_of(0, "AAAA"), of=of)
    assert len(said.guard._loaders) == MAX_LOADERS + 1
    assert said.guard.notes == [MANY_NAMES] and "more than 300 names" in MANY_NAMES
    said.step(7, "AAAA", "AABA")
    assert isinstance(said.guard.finding, Rows)


def test_the_loader_that_was_told_of_longest_ago_is_dropped() -> None:
    said = Said(2)
    for number in range(1, 2 * MAX_LOADERS):
        for process in range(2):
            said.form(process, of=f"loader {number}")
            said.steps(process, rows_of(0, "AAAA"), of=f"loader {number}")
        said.step(number, "AAAA", "AAAA")
    said.step(9000, "AAAA", "AABA")
    assert isinstance(said.guard.finding, Rows) and said.guard.notes == []


@pytest.mark.parametrize("kind", ["loader", "check"])
def test_what_was_dropped_and_is_told_again_is_no_disagreement(kind: str) -> None:
    said = Said(2)
    of = f"{kind} x"
    for process in range(2):
        said.form(process, of=of)
    said.steps(0, rows_of(3, "AAAA"), of=of)
    for number in range(MAX_LOADERS):
        said.steps(0, of=f"{kind} {number}")
    said.steps(1, rows_of(3, "BBBB", order="A"), of=of)
    said.steps(0, rows_of(4, "AAAA", order="B"), of=of)
    said.form(1, of=of, shapes={"x": "float32[9,4]"})
    said.later(60)
    assert said.look() is None and said.look(ended=True) is None
    assert said.guard.notes == [MANY_LOADERS if kind == "loader" else MANY_NAMES]


def test_another_guard_on_another_process_is_told() -> None:
    said = Said(2, tell_forms=False)
    for process, mode in enumerate(("every", "sample")):
        said.form(process, mode=mode)
    assert said.guard.notes == ["photos is not compared: guard= is not the same on all processes"]


def test_processes_that_stay_in_different_passes_are_told_once() -> None:
    said = Said(3)
    for step in range(3 * LASTING_STEPS):
        for process in range(3):
            said.steps(process, rows_of(step, "ABA"[process] * 4, nth_pass=int(process == 1)))
    assert said.guard.notes == [
        "the processes stay in different passes over photos, so that their rows are not compared: processes 0 and 2 in "
        "pass 1, process 1 in pass 2. Was it restored, or begun anew, on some of them only?"
    ]
    assert said.look() is None


def test_a_process_that_is_ahead_in_another_pass_is_not_told() -> None:
    """It reads ahead; or has looked at an evaluation loader alone, of which nobody tells any more."""
    said = Said(2)
    for nth_pass in range(5):
        for step in range(2 * LASTING_STEPS):
            for process in (0, 1):
                behind = process == 1 and step < LASTING_STEPS - 1
                said.steps(process, rows_of(step, "AAAA", nth_pass=nth_pass - behind))
                if nth_pass == 0:
                    break
    assert said.guard.notes == []


@pytest.mark.parametrize(
    ("changed_by", "wanted", "not_wanted"),
    [
        ([], "the source is to give the same each time", "`collate`"),
        (["map"], "`map` is to draw from the `rng` that it is given, map(block, ids, rng); and a source", "`collate`"),
        (["collate"], "`collate` is to draw from the `rng` that it is given, collate(records, ids, rng)", "`map`"),
        ("nonsense", "the source is to give the same each time", "`collate`"),
    ],
)
def test_whose_random_numbers_they_may_be_is_told(changed_by: Any, wanted: str, not_wanted: str) -> None:
    said = Said(2, tell_forms=False)
    for process in range(2):
        said.form(process, changed_by=changed_by)
    said.step(0, "AAAA", "BBBB")
    said.again("C", "D")
    assert isinstance(said.guard.finding, Rows)
    explained = said.guard.finding.explain()[0]
    assert wanted in explained and not_wanted not in explained


# What is no disagreement.


def other_algorithm(said: Said) -> None:
    said.form(2, hash="crc32")
    said.step(0, "AAAA", "AAAA", "BBBB")


def another_pass(said: Said) -> None:
    """The second pass over a stream has other rows, and process 2 is still at the end of the first."""
    for process in (0, 1):
        said.steps(process, rows_of(0, "AAAA"), rows_of(0, "BBBB", nth_pass=1))
    said.steps(2, rows_of(0, "AAAA"))


def another_loader(said: Said) -> None:
    for process, of in enumerate([LOADER, LOADER, "loader 1"]):
        said.form(process, of=of)
        said.steps(process, rows_of(0, "AAAB"[process] * 4), of=of) if process else None


def not_all_told(said: Said) -> None:
    said.step(0, "AAAA", "AAAA")


def other_holders(said: Said) -> None:
    """Each two hold their own rows."""
    pairs = Said(4, holders=2)
    pairs.step(0, "AAAA", "AAAA", "BBBB", "BBBB")
    said.guard = pairs.guard


def other_blocks_in_turn(said: Said) -> None:
    for process in range(3):
        said.steps(process, rows_of(8, "ABC"[process], nth=process))


def told_twice(said: Said) -> None:
    for _ in range(2):
        said.step(0, "ABCD", "ABCD", "ABCD")
        for process in range(3):
            said.form(process)


def without_a_form(said: Said) -> None:
    for process in range(3):
        said.steps(process, {**rows_of(0, "ABC"[process] * 4), "form": 1})


def another_number_of_blocks(said: Said) -> None:
    said.step(0, "AAAA", "AAAA", "BB")


def nonsense(said: Said) -> None:
    form, step = form_of(2), rows_of(0, "BBBB")
    for broken in (
        *({**step, key: value} for key, value in (("rows", 7), ("rows", ["zz"]), ("at", [0]), ("form", "x"))),
        *({**step, key: value} for key, value in (("order", 3), ("nth", "a"), ("own", [None]))),
        *([], None, {}, 7),
    ):
        assert read_steps([broken]) == []
        said.steps(2, broken)
    for key, value in (
        ("parts", 7),
        ("parts", [["x", [[0, 0]], [[0, 2]], 4]]),
        ("parts", [["x", [[0, 8]], [[0, 10**9]], 4]]),
        ("parts", [["x", [[0, 8]], [[0, 1]], 4]]),  # it is not one of the holders
        ("parts", [["x", [[0, 8]], [[0, 2]], 0]]),
        ("shapes", {"x": 3}),
        ("hash", None),
    ):
        assert read_form(2, {**form, key: value}) is None
        said.guard.note(2, "row parts", {**form, key: value, "form": 5}, 0.0)
    said.guard.note(2, "rows", {"of": 7}, 0.0)
    said.guard.note(2, "rows again", {"of": LOADER}, 0.0)
    said.steps(2, taken="many", left=True)


NO_DISAGREEMENT: list[Callable[[Said], None]] = [
    other_algorithm,
    another_pass,
    another_loader,
    not_all_told,
    other_holders,
    other_blocks_in_turn,
    told_twice,
    without_a_form,
    another_number_of_blocks,
    nonsense,
]


@pytest.mark.parametrize("story", NO_DISAGREEMENT, ids=lambda story: story.__name__)
def test_what_is_no_disagreement(story: Callable[[Said], None]) -> None:
    said = Said()
    story(said)
    assert said.look() is None
    said.later(600)
    assert said.look() is None and said.look(ended=True) is None


def test_hosts_without_the_hash_are_told_once() -> None:
    said = Said()
    for _ in range(3):
        said.form(2, hash="crc32")
    assert said.guard.notes == ["rows are not compared: some processes lack the package xxhash, others have it"]


def own_rows(said: Said, *told: str, parts: int = 1) -> None:
    for process, rows in enumerate(told):
        own = [letters(letter) if letter != "-" else "" for letter in rows]
        part = form_of(process, 1)["parts"][0]
        said.form(
            process, parts=[[f"x{n}", [[span * 4 for span in part[1][0]], [0, 4]], *part[2:]] for n in range(parts)]
        )
        said.steps(process, rows_of(0, "", own=own))


def test_the_same_rows_for_different_parts_are_told_once() -> None:
    said = Said(2, holders=1)
    own_rows(said, "A", "A")
    own_rows(said, "A", "A")
    (note,) = said.guard.notes
    assert note == (
        "process 1 gives as rows 32 to 63 of photos the same values that process 0 gives as rows 0 to 31: does each "
        "process load its own rows?"
    )


@pytest.mark.parametrize("told", [("A", "B"), ("-", "-"), ("AB", "AC")])
def test_one_array_that_is_alike_by_nature_is_no_copy(told: tuple[str, ...]) -> None:
    """Positions are 0, 1, 2, … in every row of every process; a mask is all ones."""
    said = Said(2, holders=1)
    own_rows(said, *told, parts=len(told[0]))
    assert said.guard.notes == []


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_OPEN_PARTS", 1000)
    said = Said(3)
    for first in range(0, 9000, 100):
        for process in (0, 1):  # process 2 tells nothing
            said.steps(process, *(rows_of(step, "AAAA", own=[letters("A")]) for step in range(first, first + 100)))
    loader = said.guard._loaders[LOADER]
    assert len(loader.steps) <= 1000 and loader.open_parts <= 1000 and len(loader.copies) <= comparison.MAX_OPEN
    assert loader.open_parts == sum(len(step.parts) for step in loader.steps.values())
    for step in range(8000, 9000):
        said.steps(2, rows_of(step, "AAAA"))
    assert said.look() is None and loader.open_parts == sum(len(step.parts) for step in loader.steps.values())
    said.step(9001, "AAAA", "AAAA", "AAAA")
    assert (0, 9001) not in loader.steps
    for number in range(2 * MAX_LOADERS):
        said.steps(0, of=f"loader {number}")
    assert len(said.guard._loaders) == MAX_LOADERS


# The processes' side.


@pytest.fixture
def ears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FactsSocket]:
    """This process is the first of two."""
    ears = FactsSocket(str(tmp_path / "facts"))
    monkeypatch.setenv(FACTS_SOCKET, ears.address)
    monkeypatch.setenv(PROCESS_ID, "0")
    monkeypatch.delenv(GUARD, raising=False)
    yield ears
    ears.socket.close()


def test_which_rows_are_compared_is_a_function_of_the_step() -> None:
    every, sample = Sampling.of("every", 0, 100.0, 4), Sampling.of("sample", 0, 100.0, 4)
    assert all(every.is_compared(step) and every.is_whole(step) for step in range(1000))
    assert sample.is_whole(0) and not any(sample.is_whole(step) for step in range(1, 1000))
    compared = [step for step in range(10_000) if sample.is_compared(step)]
    assert compared[:FIRST_STEPS] == list(range(FIRST_STEPS))
    later = [step for step in compared if step >= FIRST_STEPS]
    assert {b - a for a, b in zip(later, later[1:], strict=False)} == {sample.period} and sample.period > 1
    # Every block has its turn, also for a loader that goes on from another step.
    resumed = Sampling.of("sample", 5000, 100.0, 4)
    for sampling, steps in ((sample, later), (resumed, [step for step in later if step >= 5000 + FIRST_STEPS])):
        assert {sampling.turn(step) % 32 for step in steps[:32]} == set(range(32))
    assert resumed.is_whole(5000) and resumed.is_compared(5001)


@pytest.mark.parametrize(
    ("size", "processes", "period"),
    [(400e6, 4, 1), (40e6, 4, 4), (4e6, 4, 64), (0, 4, 64), (40e6, 1000, 16), (0, 9999, 64)],
)
def test_small_batches_and_many_processes_are_compared_more_seldom(size: float, processes: int, period: int) -> None:
    assert Sampling.of("sample", 0, size, processes).period == period
    assert Sampling.of("every", 0, size, processes).is_compared(12345)


def test_rows_are_cut_evenly() -> None:
    assert cut(10, 3) == [(0, 3), (3, 6), (6, 10)]
    for rows, count in ((1, 1), (7, 7), (1000, 32)):
        blocks = cut(rows, count)
        assert blocks[0][0] == 0 and blocks[-1][1] == rows and all(stop > start for start, stop in blocks)
        assert all(one[1] == other[0] for one, other in zip(blocks, blocks[1:], strict=False))


class Device:
    """Of a process, as far as a sharding's cuts need it."""

    def __init__(self, number: int, process_index: int) -> None:
        self.id, self.process_index = number, process_index


class Cut:
    """A sharding of two axes over devices of several processes, which this process alone could not make."""

    def __init__(self, owners: list[list[int]], spec: tuple[int | None, ...]) -> None:
        self.spec = spec
        self.devices = {
            (a, b): Device(10 * a + b, owner) for a, row in enumerate(owners) for b, owner in enumerate(row)
        }
        self.shape = len(owners), len(owners[0])

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, Any]:
        found = {}
        for place, device in self.devices.items():
            index = []
            for axis, size in zip((*self.spec, *(None,) * (len(shape) - len(self.spec))), shape, strict=True):
                parts = 1 if axis is None else self.shape[axis]
                nth = 0 if axis is None else place[axis]
                index.append(slice(size * nth // parts, size * (nth + 1) // parts))
            found[device] = tuple(index)
        return found


ACROSS = [[0, 1], [2, 3]]  # two replicas of each half, on four processes


@pytest.mark.parametrize(
    ("owners", "spec", "parts"),
    [
        (ACROSS, (0,), [[[[0, 4], [0, 6]], [[0, 1]]]]),
        (ACROSS, (None,), [[[[0, 8], [0, 6]], [[0, 3]]]]),
        (ACROSS, (0, 1), [[[[0, 4], [0, 3]], [[0, 0]]]]),
        (ACROSS, (None, 1), [[[[0, 8], [0, 3]], [[0, 0], [2, 2]]]]),  # columns; process 2 has the same ones
        ([[0, 0], [1, 1]], (0,), [[[[0, 4], [0, 6]], [[0, 0]]]]),  # replicas within a process
        ([[0, 1], [0, 1]], (0,), [[[[0, 4], [0, 6]], [[0, 1]]], [[[4, 8], [0, 6]], [[0, 1]]]]),
    ],
)
def test_who_holds_the_same_parts_follows_from_the_sharding(owners: Any, spec: Any, parts: Any) -> None:
    held = find_held("every", ["x"], [jax.ShapeDtypeStruct((8, 6), np.float32)], [Cut(owners, spec)])  # type: ignore[list-item]
    assert [part.describe()[1:3] for part in held.parts] == parts
    assert held.shapes == {"x": "float32[8,6]"} and held.is_all


def test_a_sample_has_no_small_blocks_and_every_is_cut_finely() -> None:
    rows = 4 * MIN_SAMPLE // 4
    large = [jax.ShapeDtypeStruct((rows, 1), np.float32)]
    for mode, blocks in (("sample", 4), ("every", 32)):
        held = find_held(mode, ["x"], large, [Cut([[0], [1]], (None,))])  # type: ignore[list-item]
        assert len(held.parts[0].blocks) == blocks
    few = find_held("every", ["x"], [jax.ShapeDtypeStruct((3, 9), np.float32)], [Cut([[0], [1]], (None,))])  # type: ignore[list-item]
    assert few.parts[0].blocks == [(0, 1), (1, 2), (2, 3)]


def test_arrays_without_values_are_nothing_to_compare() -> None:
    held = find_held("every", ["x"], [jax.ShapeDtypeStruct((8, 0), np.float32)], [Cut(ACROSS, (0,))])  # type: ignore[list-item]
    assert held.parts == [] and held.is_all


def test_of_very_many_arrays_the_first_ones_are_told_in_one_message() -> None:
    names = [f"layer {number}" for number in range(5000)]
    avals = [jax.ShapeDtypeStruct((8, 6), np.float32)] * len(names)
    held = find_held("sample", names, avals, [Cut(ACROSS, (0,))] * len(names))  # type: ignore[arg-type]
    assert not held.is_all and 100 < len(held.parts) < 5000
    assert len(json.dumps(held.describe())) < 120_000
    assert keep_what_fits(held.parts) == held.parts
    assert shorten({"x": "float32[1]"}) == {"x": "float32[1]"}
    assert shorten(held.shapes) != shorten({**held.shapes, "layer 4999": "float32[2]"})


def test_arrays_of_one_name_are_told_apart() -> None:
    assert unique(["a.b", "a.b", "c\n d", "c d"]) == ["a.b", "a.b (2)", "c d", "c d (2)"]


def test_holders_are_told_as_spans() -> None:
    assert to_spans([0, 1, 2, 5, 7, 8]) == [[0, 2], [5, 5], [7, 8]]


def test_fingerprints_are_of_the_bytes_alone() -> None:
    array = np.arange(64, dtype=np.float32).reshape(8, 8)
    assert fingerprint(array) == fingerprint(array.copy()) and len(fingerprint(array)) == DIGITS
    assert fingerprint(array[:, 2:4]) == fingerprint(array[:, 2:4].copy())
    changed = array.copy()
    changed.view(np.uint8)[3, 3] ^= 1
    assert fingerprint(changed) != fingerprint(array)
    blocks = [(0, 1), (1, 4), (4, 8)]
    for rows in (array, array[:, 2:5], array.astype(np.int64)):
        assert fingerprint_blocks(rows, blocks) == "".join(fingerprint(rows[start:stop]) for start, stop in blocks)
    assert fingerprint(array[:0]) == fingerprint(array[:0].copy()) and ALGORITHM == "xxh3"


def messages(ears: FactsSocket) -> list[tuple[str, Any]]:
    found = []
    for name, detail in ears.facts():
        found.append((name, detail["form"] if name == "row parts" else [step["step"] for step in detail["steps"]]))
    return found


def test_forms_are_told_before_their_steps_and_a_busy_agent_hears_all_later(
    ears: FactsSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(LOADER)
    takes = 0
    offer = telling.offer

    def offer_some(name: str, wait: bool, detail: Any) -> bool:
        nonlocal takes
        takes -= 1
        return takes >= 0 and offer(name, wait, detail)

    monkeypatch.setattr(telling, "offer", offer_some)
    told.add_form({"form": 0})
    told.add({"step": 0, "form": 0, "rows": ["a"]})
    told.add({"step": 1, "form": 0, "rows": ["a"]})
    assert not told.tell() and messages(ears) == []
    takes = 1
    assert not told.tell() and messages(ears) == [("row parts", 0)]
    told.add({"step": 2, "form": 0, "rows": ["b"]})
    takes = 9
    assert told.tell() and messages(ears) == [("rows", [0, 1, 2])]
    assert told.tell() and messages(ears) == []  # nothing is new
    told.taken = 3
    assert told.tell() and messages(ears) == [("rows", [])]


def test_what_the_loader_has_not_compared_itself_is_held_back(ears: FactsSocket) -> None:
    """It raises what differs in all processes, and a script may go on from there."""
    told = Told(LOADER)
    told.hold_back(8)
    told.add_form({"form": 8})
    for step, form in enumerate([8, 4, 8]):
        told.add({"step": step, "form": form, "rows": ["a"]})
    assert told.tell() and messages(ears) == [("rows", [1])]
    told.release(8)
    told.add({"step": 3, "form": 8, "rows": ["a"]})
    assert told.tell() and messages(ears) == [("row parts", 8), ("rows", [0, 2, 3])]


def test_many_fingerprints_are_told_in_several_messages(ears: FactsSocket) -> None:
    told = Told(LOADER)
    for step in range(8):
        told.add({"step": step, "form": 0, "rows": ["f" * 20_000], "own": ["f" * 10_000]})
    assert told.tell()
    assert messages(ears) == [("rows", [0, 1]), ("rows", [2, 3]), ("rows", [4, 5]), ("rows", [6, 7])]


def test_what_nobody_takes_is_dropped_the_oldest_first() -> None:
    told = Told(LOADER)
    for step in range(telling.MAX_UNTOLD + 10):
        told.add({"step": step, "form": 0, "rows": []})
    assert len(told._steps) == telling.MAX_UNTOLD and told._steps[0]["step"] == 10


def test_an_agent_that_is_gone_holds_up_the_end_once(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    teller, offered = Teller(), []
    monkeypatch.setattr(teller, "_thread", object())
    for number in range(50):
        teller.add(f"loader {number}")
    monkeypatch.setattr(telling, "offer", lambda *arguments: offered.append(arguments))
    teller.tell_end()
    assert len(offered) == 1


def test_one_waits_for_what_it_has_taken_from_last(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    teller = Teller()
    teller._thread = object()  # type: ignore[assignment]
    monkeypatch.setattr(teller._idleness, "look", lambda: True)
    train, evaluation = teller.add("loader 0"), teller.add("loader 1")

    def idle() -> list[str]:
        teller._tell_all()
        last = {detail["of"]: detail["idle"] for _, detail in ears.facts()}
        return [of for of, is_idle in last.items() if is_idle]

    for told in (evaluation, train):
        teller.note_taken(told)
        assert idle() == [told.of] and told.taken == 1
    teller.last = None  # a loader whose guard is off
    teller._tell_all()
    assert not train.is_idle and not evaluation.is_idle


def test_loaders_that_nobody_uses_are_forgotten_all_but_the_last(ears: FactsSocket) -> None:
    class Owner:
        pass

    teller = Teller()
    teller._thread = object()  # type: ignore[assignment]
    kept = [Owner() for _ in range(3)]
    for number in range(60):
        teller.add(f"loader {number}", kept[number] if number < 3 else Owner())
        teller._tell_all()
        ears.facts()
    names = [told.of for told in teller._list()]
    assert names[:3] == ["loader 0", "loader 1", "loader 2"] and names[-1] == "loader 59"
    assert len(names) == 3 + telling.MAX_OVER


def test_a_main_thread_that_waits_is_idle_until_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    idleness, used, now = Idleness(), 1.0, 100.0
    monkeypatch.setattr(telling.time, "clock_gettime", lambda _: used)
    monkeypatch.setattr(telling.time, "monotonic", lambda: now)
    assert not idleness.look()
    now += telling.IDLE_AFTER + 0.1
    assert idleness.look()
    used += 0.1
    assert not idleness.look()
    now += telling.IDLE_AFTER - 0.1
    assert not idleness.look()


def test_a_question_is_answered_by_the_loader_that_is_asked(
    ears: FactsSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Owner:
        def answer(self, question: dict[str, Any]) -> dict[str, Any]:
            if question["step"] == 7:
                raise OSError("bad sector")
            return {"again": "ab"}

    monkeypatch.setattr(telling, "TELL_EVERY", 0.01)
    teller, owner = Teller(), Owner()
    monkeypatch.setattr(telling.atexit, "register", lambda _: None)
    teller.add(LOADER, owner, owner.answer)
    teller.add("check images")
    answers: list[dict[str, Any]] = []

    def has(count: int) -> bool:
        answers.extend(detail for name, detail in ears.facts() if name == "rows again")
        return len(answers) == count

    await_true((tmp_path / f"{QUESTIONS}-0").exists, HANGS, "the process listens")
    (tmp_path / "garbage").touch()
    questions = [{"of": LOADER, "step": 3}, {"of": LOADER, "step": 7}, {"of": "check images"}, {"of": "nobody's"}]
    for number, question in enumerate(questions):
        ask(str(tmp_path), 0, question)
        await_true(lambda number=number: has(min(number + 1, 3)), HANGS, "an answer")  # type: ignore[misc]
    assert answers == [
        {"of": LOADER, "step": 3, "again": "ab"},
        {"of": LOADER, "step": 7, "problem": "OSError: bad sector"},
        {"of": "check images", "problem": "it cannot be read again"},
    ]
    ask(str(tmp_path), 5, {})  # nobody listens there
    end_thread(teller, monkeypatch)


def end_thread(teller: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one for all its life; here it would tell what the agents of later tests do not expect."""

    def end() -> None:
        raise SystemExit

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    monkeypatch.setattr(teller, "_tell_all", end)
    assert teller._thread is not None
    teller._thread.join(HANGS)
    assert not teller._thread.is_alive()


# A loader's rows.


def make_guarded(loader: hostmesh.Loader, mode: str = "every") -> LoadedRows:
    """As if there were somebody to compare with."""
    layout: Layout = loader._layout
    return LoadedRows(mode, 0, loader.source.name, layout, loader._rows)


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> Teller:
    """Nothing runs beside the test."""
    from hostmesh.worker.guard import check, loaded

    teller = Teller()
    teller._thread = object()  # type: ignore[assignment]
    monkeypatch.setattr(loaded, "TELLER", teller)
    monkeypatch.setattr(check, "TELLER", teller)
    return teller


def test_a_loader_tells_steps_by_their_place_in_the_pass(untold: Teller) -> None:
    loader = hostmesh.Loader({"x": np.arange(64.0)}, batch_size=8, steps=4)
    loader._guard = make_guarded(loader)
    (told,) = untold._list()
    places: list[tuple[int, Any]] = []

    def take() -> None:
        for _ in loader:
            pass
        places.extend((step["step"], step["at"]) for step in told._steps)
        told._steps.clear()

    take()
    assert places == [(step, [0, step]) for step in range(4)]
    places.clear()
    take()  # from the beginning
    loader.restore(2)
    loader.restore(1)
    take()
    assert places == [*((step, [1, step]) for step in range(4)), *((step, [2, step - 1]) for step in range(1, 4))]
    assert told.taken == 4 + 4 + 3


def test_a_loader_that_is_restored_before_it_reads_is_in_its_first_pass(untold: Teller) -> None:
    """Also if one process restores twice, because what it found first was of no use."""
    loader = hostmesh.Loader({"x": np.arange(64.0)}, batch_size=8, steps=6, prefetch=0, device_prefetch=0)
    loader._guard = make_guarded(loader)
    (told,) = untold._list()
    loader.restore(2)
    loader.restore(4)
    next(loader)
    assert [(step["step"], step["at"]) for step in told._steps] == [(4, [0, 0])]


def test_reading_on_after_close_is_the_same_pass(untold: Teller) -> None:
    loader = hostmesh.Loader({"x": np.arange(64.0)}, batch_size=8, steps=4, prefetch=0, device_prefetch=0)
    loader._guard = make_guarded(loader)
    (told,) = untold._list()
    next(loader)
    loader.close()
    next(loader)
    assert [(step["step"], step["at"]) for step in told._steps] == [(0, [0, 0]), (1, [0, 1])]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"map": lambda block, ids, rng: {"x": block["x"] + rng.random()[:, None]}},
        {"tail": "pad", "epochs": 1},
        {"loading": "per_device"},
    ],
    ids=["plain", "map", "pad", "per_device"],
)
def test_what_is_read_again_is_what_was_given(untold: Teller, options: dict[str, Any]) -> None:
    spec = P("data", "model")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    source = {"x": np.arange(60.0, dtype=np.float32).reshape(15, 4)}
    tail = {"spec": {"x": spec, "mask": P("data")}} if options.get("tail") == "pad" else {"spec": {"x": spec}}
    loader = hostmesh.Loader(source, mesh, 8, seed=3, **{"epochs": 2, **tail, **options})
    guard = make_guarded(loader)
    for step, batch in enumerate(loader):
        for name, box in (("x", [[4, 8], [2, 4]]),):
            question = {"step": step, "form": 0, "array": name, "box": box, "rows": [5, 7], "all_rows": [5, 7]}
            answer = guard._read_again(question)
            assert answer["again"] == fingerprint(np.asarray(batch[name])[5:7, 2:4])
            assert answer["records"] == loader.record_ids(step)[5:7].tolist()


@pytest.mark.parametrize("known", [True, False])
def test_padded_rows_are_read_again_at_their_length(untold: Teller, known: bool) -> None:
    class Texts:
        name = "texts"

        def __len__(self) -> int:
            return 16

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"tokens": np.arange(1 + number % 7, dtype=np.int32)}

    if known:
        Texts.lengths = lambda self, ids: 1 + ids % 7  # type: ignore[attr-defined]
    loader = hostmesh.Loader(Texts(), batch_size=4, seed=3, steps=4, lengths=[4, 8])
    guard = make_guarded(loader)
    for step, batch in enumerate(loader):
        rows = np.asarray(batch["tokens"])
        box = [[0, 4], [0, rows.shape[1]]]
        question = {
            "step": step,
            "form": rows.shape[1],
            "array": "tokens",
            "box": box,
            "rows": [1, 3],
            "all_rows": [1, 3],
        }
        assert guard._read_again(question)["again"] == fingerprint(rows[1:3])


def test_a_busy_source_is_not_read_by_two(untold: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    from hostmesh.worker.guard import loaded

    monkeypatch.setattr(loaded, "READING_TIMEOUT", 0.01)
    loader = hostmesh.Loader({"x": np.arange(64.0)}, batch_size=8, steps=4)
    guard = make_guarded(loader)
    with guard._reading, pytest.raises(DataError, match="its source is busy"):
        guard._read_again({"step": 0, "form": 0, "array": "x", "box": [[0, 8]], "rows": [0, 8], "all_rows": [0, 8]})


# hostmesh.check


def test_check_wants_global_arrays_with_rows(untold: Teller) -> None:
    checked = Checked("images", "every")
    with pytest.raises(DataError, match="found a ndarray as x"):
        checked.check({"x": np.ones(3)})
    with pytest.raises(DataError, match="found a float as y.a"):
        checked.check({"x": jax.numpy.ones(3), "y": {"a": 1.0}})
    with pytest.raises(DataError, match="call it outside jit; x is traced"):
        jax.jit(lambda x: checked.check({"x": x}))(jax.numpy.ones(3))


def test_check_refuses_arrays_of_this_process_alone(untold: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(DataError, match=r"opt.count is local, .*: jax.device_put\(x, NamedSharding\(mesh, P\(\)\)\)"):
        Checked("state", "every").check({"opt": {"count": jax.numpy.int32(1)}})


def test_check_compares_scalars_and_random_keys(untold: Teller) -> None:
    state = {"count": jax.numpy.int32(3), "key": jax.random.key(7), "keys": jax.random.split(jax.random.key(1), 4)}
    checked = Checked("state", "every")
    checked.check(state)
    checked.check({**state, "count": jax.numpy.int32(4), "key": jax.random.key(8)})
    (told,) = untold._list()
    (form,) = told.forms
    assert form["shapes"] == {"count": "int32[]", "key": "uint32[2]", "keys": "uint32[4,2]"}
    known = read_form(0, json.loads(json.dumps({"of": "check", **form})))
    assert known is not None and [part.box[0] for part in known.parts] == [(0, 1), (0, 2), (0, 4)]
    assert find_uncovered({0: known}) is None
    first, second = (step["own"] for step in told._steps)
    assert [bool(own) for own in first] == [False, True, True]  # one value says nothing
    assert first[1] != second[1] and first[2] == second[2]


def test_a_scalar_that_others_hold_too_is_compared(untold: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = find_held("every", ["count"], [jax.ShapeDtypeStruct((), np.int32)], [Cut([[0], [1]], ())])  # type: ignore[list-item]
    assert [part.describe() for part in shared.parts] == [["count", [[0, 1]], [[0, 1]], 1]]
    monkeypatch.setattr(check_module, "find_held", lambda *_: shared)
    checked = Checked("state", "every")
    for count in (3, 3, 4):
        checked.check({"count": jax.numpy.int32(count)})
    (told,) = untold._list()
    assert [step["rows"] for step in told._steps] == [[fingerprint(np.int32([count]))] for count in (3, 3, 4)]


def test_check_of_many_names_follows_the_last_ones(untold: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "MAX_NAMES", 3)
    names = check_module.Names()
    a, b = names.find("a", "every"), names.find("b", "every")
    for number in range(5):
        names.find(f"c {number}", "every")
        assert names.find("a", "every") is a
    assert names.find("b", "every") is not b and len(names._checked) == 3
    (first, again) = (told for told in untold._list() if told.of.endswith(" b"))
    assert first.is_over and not again.is_over and first.of != again.of


def test_check_has_one_guard_for_a_name(untold: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "choose_mode", lambda given: given or "sample")
    monkeypatch.setattr(check_module, "_names", check_module.Names())
    array = jax.numpy.ones(3)
    hostmesh.check(array, "x", guard="every")
    hostmesh.check(array, "x")
    hostmesh.check(array, "y")
    hostmesh.check(array, "y", guard="sample")
    for name, other in (("x", "sample"), ("y", "every")):
        with pytest.raises(DataError, match=f"hostmesh.check of {name} began with guard=.*; found guard='{other}'"):
            hostmesh.check(array, name, guard=other)


def test_check_without_anybody_to_compare_does_nothing_and_refuses_an_unknown_mode() -> None:
    hostmesh.check({"x": np.ones(3)}, "images")
    with pytest.raises(ValueError, match="guard"):
        hostmesh.check({"x": np.ones(3)}, "images", guard="all")
    with pytest.raises(ValueError, match="guard"):
        hostmesh.Loader({"x": np.ones(30)}, guard="all")


def test_check_tells_of_each_call_and_of_shapes_that_change(untold: Teller) -> None:
    checked = Checked("images", "every")
    (told,) = untold._list()
    for rows in (8, 8, 4, 8):
        checked.check({"a": {"b": jax.numpy.arange(float(rows))}, "a.b": jax.numpy.zeros((rows, 2))})
    assert [form["shapes"] for form in told.forms] == [
        {"a.b": "float32[8]", "a.b (2)": "float32[8,2]"},
        {"a.b": "float32[4]", "a.b (2)": "float32[4,2]"},
    ]
    assert [(step["at"], step["form"]) for step in told._steps] == [([0, 0], 0), ([0, 1], 0), ([0, 2], 1), ([0, 3], 0)]
    first, *_ = told._steps
    assert [bool(own) for own in first["own"]] == [True, False]  # what is the same everywhere says nothing
    assert told.taken == 4


def test_copies_within_a_process_that_differ_are_refused_at_once(untold: Teller) -> None:
    devices = jax.devices()
    replicated = NamedSharding(Mesh(np.array(devices), "data"), P())
    parts = [jax.device_put(np.full(4, float(number == 2)), device) for number, device in enumerate(devices)]
    array = jax.make_array_from_single_device_arrays((4,), replicated, parts)
    with pytest.raises(DisagreementError, match="x: .*0 and .*2 of this process hold different values of .* 0 to 3"):
        Checked("images", "every").check({"x": array})


# The supervisor.


def forms(*processes: int, **other: Any) -> list[wire.Fact]:
    return [wire.Fact("row parts", number, form_of(number, 2, **other)) for number in processes]


def said(process: int, *steps: Any, **other: Any) -> wire.Fact:
    return wire.Fact("rows", process, {"of": LOADER, "taken": 1, "steps": list(steps), **other})


def answering(again: dict[int, str | None]) -> Any:
    """An agent whose processes read rows again; one that says None is silent."""

    def answer(_: FakeAgent, order: wire.AskRows) -> list[wire.Fact]:
        told = again.get(order.process_id)
        found = {**order.question, "again": told and letters(told), "records": [145, 340]}
        return [] if told is None else [wire.Fact("rows again", order.process_id, found)]

    return {wire.AskRows: answer}


def tell(folder: Path, again: dict[int, str | None] | None = None, **settings: Any) -> Story:
    """Processes 0 and 1 on host a, and 2 and 3 on host b; process 3 holds other rows than process 2."""
    script = answering(again or {2: "A", 3: "B", 0: "A"})
    story = Story(folder, (FakeAgent(script), FakeAgent(script)), **settings)
    story.say_at(5, 0, *forms(0, 1))
    story.say_at(5, 1, *forms(2, 3))
    for process, rows in enumerate(["AAAA", "AAAA", "CCCC", "CBCC"]):
        story.say_at(5, process // 2, said(process, rows_of(12, rows)))
    return story


def test_who_holds_other_rows_ends_the_run_and_is_named(tmp_path: Path) -> None:
    story = tell(tmp_path, {2: "C", 3: "B", 0: "C"}, restarts=3)
    verdict = story.run()
    assert (verdict.outcome, verdict.kind, verdict.exit_code) == ("failed", "disagreement", 1)
    assert (verdict.process_id, verdict.host) == (3, "b")
    assert (
        "process 3 on b gave other rows than process 2 in step 12 of photos: x, rows 10 to 11 (records 145, 340)"
        in (story.shown)
    )
    assert "its data, or the code that reads them, is not that of the others" in story.shown
    assert [order.process_id for order in story.commands(1, wire.AskRows)] == [2, 3]
    assert [order.process_id for order in story.commands(0, wire.AskRows)] == [0]  # the third
    result = json.loads((story.record.folder / "result.json").read_text())
    assert result["verdict"]["kind"] == "disagreement" and len(result.get("attempts", [1])) == 1
    assert len(story.commands(0, wire.Spawn)) == 2  # no second attempt
    assert story.inbox.seconds < 8


def test_a_silent_holder_is_not_waited_for_long(tmp_path: Path) -> None:
    story = tell(tmp_path, {2: "C", 0: "C"})
    verdict = story.run()
    assert verdict.process_id == 3 and 9 <= story.inbox.seconds < 12


def test_two_that_both_stay_with_what_they_said_are_named_together(tmp_path: Path) -> None:
    story = tell(tmp_path, {2: "C", 3: "B"})
    verdict = story.run()
    assert verdict.process_id is None and "processes 2 and 3 gave different rows" in story.shown


def test_rows_that_differ_explain_why_a_process_fails(tmp_path: Path) -> None:
    story = tell(tmp_path, {2: "C", 3: "B", 0: "C"})
    story.exit_at(5.2, 2, -6, b"gloo::EnforceNotMet\n")
    assert story.run().process_id == 3


def test_a_short_run_does_not_succeed_with_rows_that_differ(tmp_path: Path) -> None:
    story = tell(tmp_path, {9: None})
    for process in range(4):
        story.exit_at(5.1, process, 0)
    verdict = story.run()
    assert (verdict.kind, verdict.exit_code) == ("disagreement", 1)


def test_a_run_that_keeps_going_is_told_at_its_end(tmp_path: Path) -> None:
    story = tell(tmp_path, keep_going=True)
    for process in range(4):
        story.exit_at(30, process, 0)
    assert story.run().kind == "disagreement" and story.inbox.seconds >= 30


def test_a_run_that_was_asked_to_stop_is_stopped(tmp_path: Path) -> None:
    story = tell(tmp_path)
    story.interrupt_at(4, 2)
    assert story.run().outcome == "stopped"


def test_a_lost_host_is_lost(tmp_path: Path) -> None:
    story = tell(tmp_path, {9: None})
    story.at(5.5, lambda: setattr(story.agents[1], "beats", False))
    story.at(5.5, lambda: story.agents[1].close())
    assert story.run().outcome == "host lost"


def test_one_that_leaves_early_is_named_while_others_wait(tmp_path: Path) -> None:
    story = Story(tmp_path, (FakeAgent(), FakeAgent()))
    story.say_at(5, 0, *forms(0, 1))
    story.say_at(5, 1, *forms(2, 3))
    story.say_at(6, 0, said(0, taken=9, idle=True), said(1, taken=8, left=True))
    story.say_at(6, 1, said(2, taken=9, idle=True), said(3, taken=9, idle=True))
    verdict = story.run()
    assert (verdict.process_id, verdict.kind) == (1, "disagreement")
    assert "process 1 on a has left after 8 batches of photos, and processes 0, 2 and 3 took 9" in story.shown


@pytest.mark.parametrize("code", [1, 75])
def test_a_process_that_fails_is_no_early_leaver(tmp_path: Path, code: int) -> None:
    story = Story(tmp_path, (FakeAgent(), FakeAgent()))
    story.say_at(5, 0, *forms(0, 1), said(0, taken=9, idle=True), said(1, taken=8, left=True))
    story.say_at(5.2, 0, wire.Fact("crash", 1, {**NO_CRASH, "type": "ValueError", "message": "no data"}))
    story.exit_at(5.3, 1, code)
    for process in (0, 2, 3):
        story.exit_at(20, process, 0)
    verdict = story.run()
    assert (verdict.kind, verdict.process_id) == {1: ("bug", 1), 75: ("preempted", None)}[code]


def test_another_attempt_is_compared_anew(tmp_path: Path) -> None:
    """What the first one told of step 12 is not that of the second, which reads other rows there."""
    story = Story(tmp_path, (FakeAgent(),), restarts=1)
    story.say_at(5, 0, *forms(0, 1), said(0, rows_of(12, "AAAA")))
    story.exit_at(6, 1, 1, b"ValueError: no\n")
    story.say_at(40, 0, *forms(0, 1), said(1, rows_of(12, "BBBB")))
    for process in (0, 1):
        story.exit_at(60, process, 0)
    assert story.run().exit_code == 0


def test_a_note_on_copies_ends_nothing(tmp_path: Path) -> None:
    story = Story(tmp_path, (FakeAgent(),))
    for process in (0, 1):
        form = form_of(process, 1, is_call=True)
        form["parts"][0][1][1] = [0, 64]
        own = [letters("A")]
        story.say_at(5, 0, wire.Fact("row parts", process, form), said(process, rows_of(0, "", own=own)))
        story.exit_at(9, process, 0)
    assert story.run().exit_code == 0
    assert story.shown.count("launch: process 1 gives as rows 8 to 15 of photos the same values that process 0") == 1
