"""Processes that share devices must run the same programs: one that runs another ends the run, nothing else does."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import HANGS, Launch, Script, Start, await_true
from facts_socket import FactsSocket
from fake_agent import FakeAgent
from stories import Story, plan_of

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame.failures import NO_CRASH
from hostmesh.launcher.supervisor.programs.comparison import Programs
from hostmesh.launcher.supervisor.programs.disagreement import Disagreement, Side
from hostmesh.worker.process.facts import FACTS_SOCKET, PROCESS_ID
from hostmesh.worker.recording import programs as reporting
from hostmesh.worker.recording.program_text import communicates, describe_module, parse_groups, shorten
from hostmesh.worker.recording.record import Phase
from hostmesh.worker.recording.recorder import RECORDER

# A pure table: what processes report, as `0:A` (process 0 compiles A), `0:A!` (it has compiled it), and who disagrees.


def begun(name: str, ahead: bool = False, processes: int = 3, devices: str = "all", **other: Any) -> dict[str, Any]:
    """Program `A96` is `A` with another shape: the same name, from the same line."""
    shape = f"f32[{name[1:] or 128},64]"
    return {
        "program": f"jit_{name[0]}",
        "fingerprint": name,
        "layout": name,
        "inputs": [[shape, 1]],
        "place": "train.py:41",
        "stack": name[0],
        "ahead": ahead,
        "again": False,
        "processes": [[0, processes - 1]],
        "devices": devices,
        **other,
    }


class Told:
    """A Programs to which processes 0 to 2 report, in order."""

    def __init__(self) -> None:
        self.programs, self.now = Programs(), 0.0
        self.numbers: dict[int, int] = {}
        self.open: dict[tuple[int, str], int] = {}

    def begin(self, process_id: int, name: str, pid: int = 7, **how: Any) -> None:
        number = self.numbers[process_id] = self.numbers.get(process_id, 0) + 1
        self.open[process_id, name] = number
        self.programs.note(process_id, "program", {"pid": pid, "number": number, **begun(name, **how)}, self.now)

    def end(self, process_id: int, name: str, pid: int = 7, communicates: bool | None = True, **how: Any) -> None:
        detail = {"pid": pid, "number": self.open.pop((process_id, name)), "communicates": communicates, **how}
        self.programs.note(process_id, "program compiled", detail, self.now)

    def run(self, process_id: int, *names: str, communicates: bool | None = True, pid: int = 7, **how: Any) -> None:
        for name in names:
            self.begin(process_id, name, pid, **how)
            self.end(process_id, name, pid, communicates)

    def later(self, seconds: float) -> None:
        self.now += seconds

    def found(self, ended: Any = ()) -> str | None:
        found = self.programs.find_disagreement(self.now, ended)
        return None if found is None else found.text()


def everybody_runs_one_but(told: Told, odd: str, **how: Any) -> None:
    for process_id, name in enumerate(["A", "A", odd]):
        told.run(process_id, name, **how)


ODD_ONE = "processes 0 and 1 run jit_A with f32[128,64], process 2 with f32[96,64] (train.py:41)"


def test_one_of_three_with_another_shape_is_named_after_a_second() -> None:
    told = Told()
    everybody_runs_one_but(told, "A96")
    told.later(0.9)
    assert told.found() is None
    told.later(0.2)
    assert told.found() == ODD_ONE
    found = told.programs.find_disagreement(told.now)
    assert found is not None and found.minority == (2,)


def test_the_end_of_all_is_the_end_of_waiting() -> None:
    told = Told()
    everybody_runs_one_but(told, "A96")
    assert told.found(ended={0, 1}) is None
    assert told.found(ended={0, 1, 2}) == ODD_ONE


def behind(told: Told) -> None:
    told.run(0, "A", "B", "C")
    told.run(1, "A", "B")
    told.run(2, "A")


def not_begun(told: Told) -> None:
    told.run(0, "A", "B")
    told.run(1, "C96")
    told.programs.note(1, "programs not compared", {"problem": "lost"}, told.now)


def swapped_ahead_of_time(told: Told) -> None:
    for process_id, names in enumerate(["AB", "AB", "BA"]):
        told.run(process_id, *names, ahead=True)
        told.later(2)
        assert told.found() is None


def one_analyses_ahead_of_time(told: Told) -> None:
    """Process 0 looks at the cost of a program that the others never compile, and takes its time."""
    told.run(0, "E", ahead=True)
    told.run(1, "A")
    told.run(2, "A")


def each_tries_another_ahead_of_time(told: Told) -> None:
    """Which batch fits into memory? Then all train with the same."""
    everybody_runs_one_but(told, "A96", ahead=True)
    for process_id in range(3):
        told.run(process_id, "B")


def one_prints_what_needs_no_other(told: Told) -> None:
    """`if jax.process_index() == 0: print(loss / 3)`; then it writes to a slow disk while the others go on."""
    for process_id in range(3):
        told.run(process_id, "A")
    told.run(0, "D", communicates=False)
    told.run(1, "E")
    told.run(2, "E")


def another_order_of_what_needs_no_other(told: Told) -> None:
    told.run(0, "A", "A96", communicates=False)
    told.run(1, "A96", communicates=False)
    told.run(2, "A", communicates=False)


def still_compiling(told: Told) -> None:
    told.run(0, "A")
    told.run(1, "A")
    told.begin(2, "A96")


def failed_to_compile(told: Told) -> None:
    told.run(0, "A")
    told.run(1, "A")
    told.begin(2, "A96")
    told.end(2, "A96", failed=True)


def other_devices(told: Told) -> None:
    told.run(0, "A", devices="first of each")
    told.run(1, "A96", devices="second of each")


def reports_that_were_lost(told: Told) -> None:
    told.run(0, "A")
    told.run(1, "A")
    told.numbers[2] = 1
    told.run(2, "A96")


def nonsense(told: Told) -> None:
    told.run(0, "A")
    told.run(1, "A")
    told.run(2, "A96", inputs=[["f32[1]", 10**12]])


def one_program_after_another(told: Told) -> None:
    """A command starts two Pythons in turn; process 0 is at its second when the others are at their first."""
    told.run(0, "A")
    told.numbers[0] = 0
    told.run(0, "B", pid=8)
    told.run(1, "A", "C")
    told.run(2, "A", "C")


NO_DISAGREEMENT: list[Callable[[Told], None]] = [
    behind,
    not_begun,
    swapped_ahead_of_time,
    one_analyses_ahead_of_time,
    one_prints_what_needs_no_other,
    each_tries_another_ahead_of_time,
    another_order_of_what_needs_no_other,
    still_compiling,
    failed_to_compile,
    other_devices,
    reports_that_were_lost,
    nonsense,
    one_program_after_another,
]


@pytest.mark.parametrize("story", NO_DISAGREEMENT, ids=lambda story: story.__name__)
def test_what_is_no_disagreement(story: Callable[[Told], None]) -> None:
    told = Told()
    story(told)
    assert told.found() is None
    told.later(600)
    assert told.found() is None and told.found(ended={0, 1, 2}) is None


def test_what_everybody_has_is_forgotten_and_may_be_compiled_again() -> None:
    told = Told()
    for process_id in range(3):
        told.run(process_id, "A", ahead=True)
    told.run(0, "A", again=True)  # now it is called
    for process_id in (1, 2):
        told.run(process_id, "B")
    told.later(600)
    assert told.found() is None
    assert {name for group in told.programs._groups.values() for name in group.programs} == {"B"}


@pytest.mark.parametrize(
    ("how", "communicating", "seconds"),
    [({}, True, 1), ({}, None, 5), ({"ahead": True}, True, 30), ({"ahead": True}, None, 30)],
)
def test_weaker_evidence_waits_longer_for_another_explanation(
    how: dict[str, Any], communicating: bool | None, seconds: float
) -> None:
    told = Told()
    everybody_runs_one_but(told, "A96", communicates=communicating, **how)
    told.later(seconds - 0.1)
    assert told.found() is None
    told.later(0.2)
    assert told.found() == ODD_ONE


def test_what_was_compiled_ahead_of_time_counts_once_it_is_called() -> None:
    told = Told()
    everybody_runs_one_but(told, "A96", ahead=True)
    assert told.found(ended={0, 1, 2}) is None
    everybody_runs_one_but(told, "A96", communicates=None, again=True)
    told.later(2)
    assert told.found() == ODD_ONE


def test_weak_evidence_waits_for_who_is_compiling_something_else() -> None:
    told = Told()
    everybody_runs_one_but(told, "A96", communicates=None)
    told.begin(2, "B")
    told.later(600)
    assert told.found() is None
    told.end(2, "B")
    told.later(6)
    assert told.found() == ODD_ONE


def test_weak_evidence_needs_the_same_line() -> None:
    told = Told()
    everybody_runs_one_but(told, "B", communicates=None)
    told.later(600)
    assert told.found() is None


def test_who_has_neither_may_show_who_is_alone() -> None:
    told = Told()
    told.run(0, "A")
    told.run(2, "A96")
    told.later(2)
    assert told.found() is None  # process 1 has compiled neither
    told.run(1, "A")
    assert told.found() == ODD_ONE


def test_nobody_is_singled_out_of_two() -> None:
    told = Told()
    told.run(0, "A", processes=2)
    told.run(1, "A96", processes=2)
    told.later(2)
    found = told.programs.find_disagreement(told.now)
    assert found is not None and found.minority == ()
    assert found.text() == "process 0 runs jit_A with f32[128,64], process 1 with f32[96,64] (train.py:41)"


def test_a_disagreement_is_accepted_once() -> None:
    told = Told()
    everybody_runs_one_but(told, "A96")
    told.later(2)
    found = told.programs.find_disagreement(told.now)
    assert found is not None
    told.programs.accept(found)
    assert told.found() is None
    everybody_runs_one_but(told, "B96")
    told.later(2)
    assert told.found() is not None


def test_who_lacks_a_program_is_known_of_a_run_that_stands_still() -> None:
    told = Told()
    behind(told)
    missing = told.programs.find_missing()
    assert missing is not None
    assert (missing.side.name, missing.side.processes, missing.lacking) == ("jit_B", (0, 1), (2,))


LONE = "process 2 has run jit_B (train.py:41) with processes 0 and 1, who have not, and all went on"


@pytest.mark.parametrize(
    ("taken", "communicates", "found"),
    [
        ((60, 60, 60), True, LONE),
        ((60, 60, 60), False, None),  # it needs nobody else: `if jax.process_index() == 0: print(loss / 3)`
        ((60, 60, 60), None, None),
        ((60, 60, 20), True, None),  # it may be waiting for the others, with some steps in its queue
        ((60, 20, 60), True, None),
        ((0, 0, 0), True, None),  # they tell no steps
    ],
)
def test_a_program_of_one_process_that_all_went_on_from_was_run_with_something_else(
    taken: tuple[int, ...], communicates: bool | None, found: str | None
) -> None:
    told = Told()
    for process_id in range(3):
        told.run(process_id, "A")
    told.run(2, "B", communicates=communicates)
    steps = {0: 10, 1: 11, 2: 10}
    lone = None
    for seconds in (1.0, 5.0, 6.0):
        told.later(seconds)
        lone = told.programs.find_lone(told.now, lambda steps=steps: steps)  # type: ignore[misc]
        assert lone is None or told.now > 10
        steps = {process_id: step + taken[process_id] for process_id, step in steps.items()}
    assert (lone and lone.text()) == found
    assert lone is None or lone.minority == (2,)


def test_processes_that_are_unequally_far_cost_little_to_compare() -> None:
    """Half of 500 are 50 programs behind the others, the longest list there is to compare with."""
    told = Told()
    names = [f"{letter}{number}" for letter in "ABCDE" for number in range(10, 30)]
    for process_id in range(500):
        for name in names[: len(names) if process_id % 2 else 50]:
            told.run(process_id, name, processes=500)
    told.later(600)
    assert told.found() is None


# The words.


def side(processes: tuple[int, ...], *inputs: tuple[str, int], name: str = "jit_f", place: str = "a.py:1") -> Side:
    return Side(name, place, inputs, "layout", processes)


SENTENCES: dict[str, tuple[tuple[Side, ...], str]] = {
    "only the inputs that differ": (
        (side((0, 1), ("f32[8]", 99), ("f32[4]", 1)), side((2,), ("f32[8]", 99), ("f32[3]", 1))),
        "processes 0 and 1 run jit_f with f32[4], process 2 with f32[3] (a.py:1)",
    ),
    "many of them": (
        (side((0,), ("f32[8]", 9)), side((1,), ("f32[7]", 9))),
        "process 0 runs jit_f with f32[8], f32[8] and 7 more, process 1 with f32[7], f32[7] and 7 more (a.py:1)",
    ),
    "another number of inputs": (
        (side((0,), ("f32[8]", 9)), side((1,), ("f32[8]", 8))),
        "process 0 runs jit_f with 9 inputs, process 1 with 8 inputs (a.py:1)",
    ),
    "another computation": (
        (side((0, 1), ("f32[8]", 1)), side((2,), ("f32[8]", 1))),
        "processes 0 and 1 run jit_f, process 2 another one (a.py:1): the same shapes, another computation",
    ),
    "another name and place": (
        (side((0, 1)), side((2,), name="jit_g", place="b.py:2")),
        "processes 0 and 1 run jit_f (a.py:1), process 2 runs jit_g (b.py:2)",
    ),
    "each its own": (
        tuple(side((number,), (f"f32[{number}]", 1)) for number in range(6)),
        "process 0 runs jit_f with f32[0], process 1 with f32[1], process 2 with f32[2], process 3 with f32[3], "
        "and 2 more kinds (a.py:1)",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_disagreement_in_words(case: str) -> None:
    sides, text = SENTENCES[case]
    assert Disagreement(sides, 8).text() == text


# The text of a computation.

MODULE = """module @jit_step attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["data"=2]>
  func.func public @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, \
 %arg1: tensor<8x8xf32>, %arg2: tensor<i1>, %arg3: tensor<4xcomplex<f32>>, %arg4: tensor<2xui8>)\
 -> (tensor<9xf32> {r = "r"}) {
    stablehlo.custom_call @CustomSPMDPartitioning(%0) {backend_config = "139872", has_side_effect = true}
  }
}"""


def test_a_module_becomes_a_name_shapes_and_a_fingerprint() -> None:
    described = describe_module(MODULE, [0, 1])
    assert described.program == "jit_step"
    assert described.inputs == [("f32[8,8]", 2), ("bool[]", 1), ("c64[4]", 1), ("u8[2]", 1)]
    assert describe_module(MODULE.replace("139872", "139999"), [0, 1]) == described  # an address in memory
    renamed = describe_module(MODULE.replace("jit_step", "jit_step_of_2"), [0, 1])
    assert (renamed.program, renamed.fingerprint) == ("jit_step_of_2", described.fingerprint)
    assert describe_module(MODULE, [1, 0]).fingerprint != described.fingerprint
    assert describe_module(MODULE.replace("9xf32", "8xf32"), [0, 1]).layout != described.layout


def test_shapes_without_end_are_cut_off() -> None:
    kept = shorten([f"f32[{number}]" for number in range(10_000)])
    assert kept[-1] == ("…", 1) and len(json.dumps(kept)) < 8000


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}, use_global_device_ids=true", [[0, 1], [2, 3]]),
        ("{}, to_apply=%add", [[0, 1, 2, 3]]),
        ("[2,2]<=[4], use", [[0, 1], [2, 3]]),
        ("[2,2]<=[2,2]T(1,0), use", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=2] {'a'}, use", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=2] {'b'}, use", [[0, 1], [2, 3]]),
        ("mesh['a'=2,'b'=2] {'a','b'}, use", [[0, 1, 2, 3]]),
        ("mesh['a'=4] {'a':(1)2}, use", None),
        ("[2,2]<=[8], use", None),
        ("something else", None),
    ],
)
def test_who_takes_part_in_a_collective(text: str, groups: list[list[int]] | None) -> None:
    found = parse_groups(text, 4)
    assert (found and sorted(sorted(group) for group in found)) == groups


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("%add = f32[] add(%a, %b)", False),
        ("%r = f32[] all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add", False),
        ("%r = f32[] all-reduce(%x), channel_id=1, replica_groups={{0,2},{1,3}}, to_apply=%add", True),
        ("%r = f32[] all-reduce-start(%x), replica_groups=[1,4]<=[4], to_apply=%add", True),
        ("%r = f32[] collective-permute(%x), source_target_pairs={{0,1},{1,0}}", False),
        ("%r = f32[] collective-permute(%x), source_target_pairs={{0,1},{1,2}}", True),
        ("%r = f32[] all-gather(%x), replica_groups=of a new kind", None),
        ("%r = f32[] all-reduce(%x), replica_groups=mesh['a'=2,'b'=2] {'b'}, use_global_device_ids=true", False),
        ("%r = f32[] all-reduce(%x), replica_groups=mesh['a'=2,'b'=2] {'a'}", True),
        ("%r = f32[] all-gather(%x), of a new kind", None),
        ("%g = f32[] get-tuple-element(%all-reduce.2), index=0", False),
    ],
)
def test_only_collectives_between_processes_count(line: str, answer: bool | None) -> None:
    assert communicates(f"HloModule jit_f\n  {line}\n", [0, 0, 1, 1]) is answer


# The reports of a process.


@pytest.fixture
def ears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FactsSocket]:
    ears = FactsSocket(str(tmp_path / "facts"))
    monkeypatch.setenv(FACTS_SOCKET, ears.address)
    monkeypatch.setenv(PROCESS_ID, "0")
    yield ears
    ears.socket.close()


class Thing:
    """Whatever has the attributes that a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Devices(list[Any]):
    def flatten(self) -> Any:
        return Thing(tolist=lambda: list(self))


def fake_compiler(compile: Any) -> ModuleType:
    module = ModuleType("jax._src.compiler")
    module.compile_or_get_cached = compile  # type: ignore[attr-defined]
    return module


def two_processes(text: str = MODULE) -> tuple[Any, Any, Devices]:
    operation = Thing(get_asm=lambda **_: text)
    return None, Thing(operation=operation), Devices([Thing(id=n, process_index=n) for n in range(2)])


def test_a_compilation_is_reported_once_and_in_order(ears: FactsSocket) -> None:
    programs = reporting.Programs()
    executable = Thing(hlo_modules=lambda: [Thing(to_string=lambda: "all-reduce(%x), replica_groups={{0,1}}")])
    compiler = fake_compiler(lambda backend, computation, devices, rest=None: executable)
    programs.watch(compiler)
    programs.watch(compiler)  # it is watched already
    assert compiler.compile_or_get_cached(*two_processes()) is executable
    assert ears.facts() == []  # it has joined nobody
    programs.begin()
    for _ in range(3):
        assert compiler.compile_or_get_cached(*two_processes()) is executable
    first, second = ears.facts()
    assert first[0] == "program" and first[1]["number"] == 1 and first[1]["processes"] == [[0, 1]]
    assert first[1]["place"].startswith("test_programs.py:") and first[1]["ahead"] is False
    assert second[0] == "program compiled" and second[1]["communicates"] is True and second[1]["pid"] == os.getpid()


def test_the_first_call_of_what_was_compiled_ahead_of_time_is_reported(ears: FactsSocket) -> None:
    class Compiled:
        def __init__(self, executable: Any) -> None:
            self.executable, self._call = executable, None

        def __call__(self, x: int) -> int:
            self._call = self._call or abs
            return self._call(x)

        def runtime_executable(self) -> Any:
            return self.executable

    programs, stages = reporting.Programs(), ModuleType("jax._src.stages")
    stages.Compiled = Compiled  # type: ignore[attr-defined]
    compiler = fake_compiler(lambda backend, computation, devices: Thing(hlo_modules=list))
    programs.watch(compiler)
    programs.watch_calls(stages)
    programs.begin()
    # As if the frame were jax's own.
    source = compile(
        "def compile(call, *args): return call(*args)", reporting.os.sep + reporting.AHEAD_OF_TIME[0], "exec"
    )
    jax: dict[str, Any] = {}
    exec(source, jax)
    compiled = Compiled(jax["compile"](compiler.compile_or_get_cached, *two_processes()))
    assert [compiled(-number) for number in range(3)] == [0, 1, 2]
    facts = ears.facts()
    assert [(name, detail.get("ahead"), detail.get("again")) for name, detail in facts] == [
        ("program", True, False),
        ("program compiled", None, None),
        ("program", False, True),
        ("program compiled", None, None),
    ]
    assert [detail["number"] for _, detail in facts] == [1, 1, 2, 2]


def test_compiling_is_a_phase_of_the_main_thread() -> None:
    phases: list[int] = []
    compiler = fake_compiler(lambda backend, computation, devices: phases.append(RECORDER._phase))
    reporting.Programs().watch(compiler)
    before = RECORDER._phase
    compiler.compile_or_get_cached(*two_processes())
    thread = threading.Thread(target=compiler.compile_or_get_cached, args=two_processes())
    thread.start()
    thread.join()
    assert phases == [Phase.COMPILING, before] and RECORDER._phase == before != Phase.COMPILING


def test_what_an_agent_does_not_take_is_offered_again(ears: FactsSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = reporting.Programs()
    compiler = fake_compiler(lambda backend, computation, devices: None)
    programs.watch(compiler)
    programs.begin()
    takes = False
    offer = reporting.offer_fact
    monkeypatch.setattr(reporting, "offer_fact", lambda name, **detail: takes and offer(name, **detail))
    compiler.compile_or_get_cached(*two_processes())
    assert ears.facts() == []
    takes = True
    compiler.compile_or_get_cached(*two_processes(MODULE.replace("9xf32", "8xf32")))
    assert [detail["number"] for _, detail in ears.facts()] == [1, 1, 2, 2]
    takes = False
    compiler.compile_or_get_cached(*two_processes(MODULE.replace("9xf32", "7xf32")))
    takes = True
    numbers: list[int] = []
    await_true(
        lambda: (numbers.extend(detail["number"] for _, detail in ears.facts()), len(numbers) == 2)[1],
        HANGS,
        "what waits is sent when nothing more is compiled",
    )
    assert numbers == [3, 3]


def test_a_program_that_fails_to_compile_fails_as_ever(ears: FactsSocket) -> None:
    def fail(backend: Any, computation: Any, devices: Any) -> Any:
        raise ValueError("no room")

    programs = reporting.Programs()
    compiler = fake_compiler(fail)
    programs.watch(compiler)
    programs.begin()
    with pytest.raises(ValueError, match="no room"):
        compiler.compile_or_get_cached(*two_processes())
    assert [detail.get("failed") for _, detail in ears.facts()] == [None, True]


def test_what_cannot_be_described_is_compiled_all_the_same(ears: FactsSocket) -> None:
    programs = reporting.Programs()
    compiler = fake_compiler(lambda backend, computation, devices: "executable")
    programs.watch(compiler)
    programs.begin()
    for _ in range(2):
        assert compiler.compile_or_get_cached(None, "no module", two_processes()[2]) == "executable"
    [(name, detail)] = ears.facts()
    assert name == "programs not compared" and "AttributeError" in detail["problem"]


@pytest.mark.parametrize("compile", [None, lambda program: None])
def test_another_jax_loses_only_this(compile: Any, ears: FactsSocket) -> None:
    programs = reporting.Programs()
    compiler = fake_compiler(compile)
    programs.watch(compiler)
    assert compiler.compile_or_get_cached is compile
    programs.begin()
    [(name, detail)] = ears.facts()
    assert name == "programs not compared" and "jax._src.compiler.compile_or_get_cached" in detail["problem"]


# The supervisor.


def report(process_id: int, name: str, number: int = 1) -> list[wire.Fact]:
    compiled = {"pid": 7, "number": number, "failed": False, "communicates": True, "seconds": 0.1}
    detail = {"pid": 7, "number": number, **begun(name, processes=4)}
    return [wire.Fact("program", process_id, detail), wire.Fact("program compiled", process_id, compiled)]


def tell(folder: Path, **settings: Any) -> Story:
    """Process 2 of four, on host b, runs another program than the rest."""
    story = Story(folder, (FakeAgent(), FakeAgent()), **settings)
    for process_id, name in enumerate(["A", "A", "A96", "A"]):
        story.say_at(5, process_id // 2, *report(process_id, name))
    return story


def test_a_disagreement_ends_the_run_and_names_the_odd_one(tmp_path: Path) -> None:
    story = tell(tmp_path)
    verdict = story.run()
    assert (verdict.outcome, verdict.kind, verdict.exit_code) == ("failed", "disagreement", 1)
    assert (verdict.process_id, verdict.host, verdict.victims) == (2, "b", 3)
    assert "processes 0, 1 and 3 run jit_A with f32[128,64], process 2 with f32[96,64] (train.py:41)" in story.shown
    assert 6 <= story.inbox.seconds < 9


@pytest.mark.parametrize("programs", ["stop", "warn"])
def test_a_program_of_one_process_that_all_went_on_from_is_a_disagreement(tmp_path: Path, programs: str) -> None:
    story = Story(tmp_path, (FakeAgent(), FakeAgent()), programs=programs)
    for process_id in range(4):
        story.say_at(2, process_id // 2, *report(process_id, "A"))
        for at in range(3, 30):
            story.say_at(at, process_id // 2, wire.Observed(process_id, "", 10 * at, "step", 10 * at, True))
        story.exit_at(40, process_id, 0)
    story.say_at(5, 0, *report(1, "B", number=2))
    verdict = story.run()
    assert (
        "process 1 has run jit_B (train.py:41) with processes 0, 2 and 3, who have not, and all went on" in story.shown
    )
    if programs == "stop":
        assert (verdict.kind, verdict.process_id) == ("disagreement", 1) and 15 <= story.inbox.seconds < 20
    else:
        assert verdict.exit_code == 0 and story.shown.count("jit_B") == 1


def test_a_short_run_does_not_succeed_with_a_disagreement(tmp_path: Path) -> None:
    story = tell(tmp_path)
    for process_id in range(4):
        story.exit_at(5.1, process_id, 0)
    assert story.run().kind == "disagreement"


def test_a_process_that_the_runtime_ends_over_it_is_no_other_cause(tmp_path: Path) -> None:
    story = tell(tmp_path)
    story.exit_at(5.1, 2, -6, b"gloo::EnforceNotMet\n")
    verdict = story.run()
    assert verdict.kind == "disagreement" and verdict.process_id == 2
    assert "process 2 on b was killed by signal 6 (SIGABRT) over it." in story.shown


def test_an_exception_of_its_own_remains_the_cause(tmp_path: Path) -> None:
    story = tell(tmp_path)
    story.say_at(5.1, 0, wire.Fact("crash", 1, {**NO_CRASH, "type": "ValueError", "message": "no data"}))
    story.exit_at(5.2, 1, 1)
    verdict = story.run()
    assert verdict.process_id == 1 and "ValueError: no data" in story.shown


def test_warn_says_it_once_and_goes_on(tmp_path: Path) -> None:
    story = tell(tmp_path, programs="warn")
    for process_id in range(4):
        story.exit_at(100, process_id, 0)
    assert story.run().outcome == "succeeded"
    assert story.shown.count("process 2 with f32[96,64]") == 1
    assert '"event": "disagreement"' in story.events.getvalue()


def test_a_missing_hook_is_told_once_a_run(tmp_path: Path) -> None:
    story = Story(tmp_path, (FakeAgent(), FakeAgent()))
    for process_id in range(4):
        story.say_at(5, process_id // 2, wire.Fact("programs not compared", process_id, {"problem": "no hook"}))
        story.exit_at(6, process_id, 0)
    assert story.run().outcome == "succeeded"
    assert story.shown.count("launch: programs are not compared") == 1


def test_only_who_does_not_want_it_is_told_so() -> None:
    for programs, env in {"stop": {}, "warn": {}, "off": {"HOSTMESH_PROGRAMS": "off"}}.items():
        assert [process.env for process in plan_of("a", programs=programs).processes] == [env] * 2


def test_an_unknown_way_is_refused(launch: Launch) -> None:
    refused = launch("--local", "2", "--programs", "maybe", "script.py")
    assert refused.returncode == 2 and "--programs" in refused.stderr and "maybe" in refused.stderr


# Real processes, and scripts that know nothing of hostmesh.

BEGIN = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
jax.distributed.initialize()
me, count = jax.process_index(), jax.process_count()
mesh = jax.make_mesh((count,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
def load(rows):
    return jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), np.ones((rows, 64), np.float32))
"""
UNEVEN = f"""{BEGIN}
@jax.jit
def step(x):
    return x.sum()

x = load(32 if me == 2 else 43)
for number in range(int(sys.argv[1])):
    print("sum", float(step(x)), flush=True)
    time.sleep(0.05)
"""
CALL = 1 + [line.strip()[:5] for line in UNEVEN.splitlines()].index("print")
WHO = f"processes 0 and 1 run jit_step with f32[129,64], process 2 with f32[96,64] (script.py:{CALL})"


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["forked", "cold"])
def test_one_process_with_fewer_rows_ends_the_run(how: list[str], start: Start, script: Script) -> None:
    run = start("--local", "3", *how, script(UNEVEN), "100000")
    run.await_event("program", count=2)
    assert run.wait() == 1
    assert run.result["process_id"] == 2 and WHO in run.result["message"]
    assert "sum" in run.log(0).decode()  # jax has noticed nothing
    programs = [event["time"] for event in run.seen if event["event"] == "program"]
    assert run.await_event("run ended")["time"] - max(programs) < 30


@pytest.mark.slow
def test_a_short_script_with_fewer_rows_on_one_process_fails(launch: Launch, script: Script) -> None:
    result = launch("--local", "3", script(UNEVEN), "1")
    assert result.returncode == 1 and WHO in result.stderr


def test_what_was_compiled_ahead_of_time_is_compared_when_it_is_called(launch: Launch, script: Script) -> None:
    text = UNEVEN.replace("for number in", "step = step.lower(x).compile()\nfor number in")
    result = launch("--local", "3", script(text), "1")
    assert result.returncode == 1 and WHO.rpartition(" (")[0] in result.stderr


@pytest.mark.slow
def test_a_python_below_a_shell_is_compared_too(launch: Launch, script: Script) -> None:
    name = script(UNEVEN)
    result = launch("--local", "3", "--", "sh", "-c", f"{sys.executable} {name} 1 && true")
    assert result.returncode == 1 and WHO in result.stderr


@pytest.mark.slow
def test_warn_lets_them_go_on_and_off_says_nothing(launch: Launch, script: Script) -> None:
    name = script(UNEVEN)
    warned = launch("--local", "3", "--programs", "warn", name, "1")
    assert warned.returncode == 0 and warned.stderr.count(WHO) == 1
    silent = launch("--local", "3", "--programs", "off", name, "1")
    assert silent.returncode == 0 and WHO not in silent.stderr
    assert silent.stdout.count("sum") == warned.stdout.count("sum") == 3


# A jax whose function takes something else; hostmesh adapts the module after this has.
OTHER_JAX = """
import sys
class OtherJax:
    def find_spec(self, name, path=None, target=None):
        if name != "jax._src.compiler" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in sys.meta_path)))
        execute = spec.loader.exec_module
        def change(module):
            execute(module)
            compile = module.compile_or_get_cached
            module.compile_or_get_cached = lambda client, *rest: compile(client, *rest)
        spec.loader.exec_module = change
        return spec
sys.meta_path.insert(-3, OtherJax())
"""


@pytest.mark.slow
def test_a_jax_without_the_hook_runs_and_says_so_once(launch: Launch, script: Script) -> None:
    result = launch("--local", "3", "--cold", script(OTHER_JAX + UNEVEN), "1")
    assert result.returncode == 0 and result.stdout.count("sum") == 3
    assert result.stderr.count("launch: programs are not compared") == 1
    assert "compile_or_get_cached(backend, computation, devices, …)" in result.stderr


HEALTHY = f"""{BEGIN}
x = load(8)
def ahead():
    functions = [jax.jit(lambda x: (x * 2).sum()), jax.jit(lambda x: x.max())]
    compiled = {{}}
    for number in [1, 0] if me == 2 else [0, 1]:
        compiled[number] = functions[number].lower(x).compile()
    return compiled[0](x) + compiled[1](x)

def mine(y):
    return jax.jit(lambda y: y * (me + 2))(y)

def noisy(x):
    jax.debug.print("sum {{}}", x.sum())
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x.sum())

print("ahead", ahead())
print("mine", mine(jnp.ones(me + 1)))
print("noisy", jax.jit(noisy)(x))
if me == 0:
    print("alone", ahead.__name__, jax.jit(lambda x: x + 1)(x).shape)
jax.block_until_ready(jax.jit(lambda x: x.sum() * 7)(x))
"""


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["forked", "cold"])
@pytest.mark.slow
def test_healthy_processes_need_not_compile_in_step(how: list[str], start: Start, script: Script) -> None:
    """Another order ahead of time, programs of their own devices, host callbacks, and one that needs no other."""
    run = start("--local", "3", *how, script(HEALTHY))
    assert run.wait() == 0, run.stderr
    run.await_event("run ended")
    programs = [event["detail"] for event in run.seen if event["event"] == "program"]
    assert all(detail["processes"] == [[0, 2]] for detail in programs)
    fingerprints = [detail["fingerprint"] for detail in programs]
    assert len(set(fingerprints)) == len(fingerprints), "two processes have described one program differently"
    assert "programs are not compared" not in run.stderr
