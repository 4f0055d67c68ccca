"""Reports: training never waits for one, none that matters is lost, and what is not finite is told."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Launch, LiveRun, Script, Start, busyness
from facts_socket import FactsSocket

from hostmesh.launcher.output import metrics as keeping
from hostmesh.launcher.protocol import wire
from hostmesh.worker import metrics as reporting
from hostmesh.worker.metrics import flush_report, report
from hostmesh.worker.reporting import reports as reports_module
from hostmesh.worker.reporting.reports import MAX_CHANGES, MAX_UNSENT, REPORT_EVERY, Reports

TOLD = ("not finite", "finite again")


class Agent(FactsSocket):
    """What has arrived there."""

    def heard(self) -> list[dict[str, Any]]:
        """One entry a step, as the launcher keeps them."""
        return [report for name, detail in self.facts() if name == "metrics" for report in detail["reports"]]

    def steps(self) -> list[int]:
        return [report["step"] for report in self.heard()]

    def finiteness(self) -> list[tuple[str, str, int]]:
        changes = [change for name, detail in self.facts() if name == "metrics" for change in detail["changes"]]
        return [(TOLD[change["finite"]], change["metric"], change["step"]) for change in changes]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path has room for 107 bytes
        agent = Agent(f"{folder}/facts")
        monkeypatch.setenv("HOSTMESH_FACTS_SOCKET", f"{folder}/facts")
        monkeypatch.setenv("HOSTMESH_PROCESS_ID", "0")
        monkeypatch.setattr(reporting, "_reports", Reports())
        yield agent
        agent.socket.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reports(agent: Agent, clock: Clock) -> Reports:
    return Reports(clock)


class Pending:
    """A scalar of a device that is as slow as the test wants."""

    shape, dtype, addressable_shards = (), np.dtype("float32"), (None,)

    def __init__(self, value: float, ready: bool = False) -> None:
        self.value, self.ready, self.waited = value, ready, False

    def is_ready(self) -> bool:
        return self.ready

    def is_deleted(self) -> bool:
        return False

    def item(self) -> float:
        self.waited = not self.ready
        return self.value


@jax.jit
def compute_slowly(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 40, lambda _, y: (y @ y) / jnp.linalg.norm(y), x).sum()


def test_a_report_of_any_kind_of_number_arrives(agent: Agent) -> None:
    with jax.enable_x64(True):
        wide = jnp.float64(0.1)
    report(
        np.int64(7),
        **{"int": 3, "float": 0.5, "flag": True, "numpy": np.float32(1.5), "array": np.array(2), "jax": jnp.float32(4)},
        **{"short": jnp.bfloat16(1.5), "whole": jnp.int32(5), "huge": 10**400, "wide": wide},
    )
    assert agent.heard() == [
        {
            "step": 7,
            "values": {
                **{"int": 3, "float": 0.5, "flag": True, "numpy": 1.5, "array": 2, "jax": 4.0},
                **{"short": 1.5, "whole": 5, "huge": 10**400, "wide": 0.1},
            },
        }
    ]


def test_numbers_that_are_not_finite_stay_valid_json(agent: Agent) -> None:
    report(1, loss=math.nan, most=jnp.float32(np.inf), least=np.float64(-np.inf))
    assert agent.heard() == [{"step": 1, "values": {"loss": "nan", "most": "inf", "least": "-inf"}}]


BAD = {
    "text": ("x", "found str 'x'"),
    "nothing": (None, "found NoneType None"),
    "a list": ([1], "found list [1]"),
    "complex": (1j, "found complex 1j"),
    "a vector": (jnp.ones(3), "of shape (3,) and type float32"),
    "a numpy vector": (np.ones(3), "found ndarray of shape (3,) and type float64"),
    "a key": (jax.random.key(0), "found PRNGKeyArray of shape () and type key<fry>"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_number_is_named(kind: str, agent: Agent) -> None:
    value, said = BAD[kind]
    with pytest.raises(TypeError, match="report: accuracy: found ") as error:
        report(1, loss=0.5, accuracy=value)
    assert said in str(error.value) and "wanted a number or a scalar of NumPy or jax" in str(error.value)
    assert agent.heard() == []


@pytest.mark.parametrize("step", [1.5, "1", None, jnp.int32(1)])
def test_a_step_that_would_be_waited_for_is_refused(step: Any) -> None:
    with pytest.raises(TypeError, match="report: step: found .*wanted a whole number such as loader.step"):
        report(step, loss=0.5)


def test_a_traced_value_is_refused() -> None:
    with pytest.raises(TypeError, match="report: loss: found .*Tracer"):
        jax.jit(lambda loss: report(1, loss=loss))(1.0)


def test_in_the_long_run_half_a_second_brings_one_value_and_the_newest(
    agent: Agent, reports: Reports, clock: Clock
) -> None:
    for step in range(1000):
        clock.now = step * REPORT_EVERY / 100
        reports.add(step, {"loss": 0.5})
    first, rest = (steps := agent.steps())[:MAX_UNSENT], steps[MAX_UNSENT:]
    assert first[:2] == [0, 1] and first == sorted(first) and first[-1] < 100 and rest == list(range(100, 1000, 100))
    reports.flush()
    assert agent.steps() == [999]
    reports.leave(timeout=0)
    assert agent.facts() == [("metrics thinned", {"values": {"loss": 1000 - len(steps) - 1}, "refused": 0})]


def test_a_rare_metric_loses_nothing_to_a_frequent_one(agent: Agent, reports: Reports) -> None:
    for step in range(1, 101):
        reports.add(step, {"loss": Pending(1 / step, ready=True)})
        if step % 20 == 0:
            reports.add(step, {"eval_accuracy": step / 100})
    reports.leave(timeout=0)
    heard = agent.heard()
    accuracies = [
        (each["step"], each["values"]["eval_accuracy"]) for each in heard if "eval_accuracy" in each["values"]
    ]
    assert accuracies == [(step, step / 100) for step in range(20, 101, 20)]
    assert heard[-1] == {"step": 100, "values": {"loss": 0.01, "eval_accuracy": 1.0}}


def test_what_a_busy_agent_does_not_take_is_sent_again(agent: Agent, reports: Reports, clock: Clock) -> None:
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    filler.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            filler.sendto(b'{"name": "x", "detail": {}}', agent.address)
    filler.close()
    reports.add(1, {"eval_accuracy": 0.9})
    assert agent.heard() == []
    clock.now = REPORT_EVERY
    reports.add(2, {"loss": 0.5})
    assert agent.heard() == [
        {"step": 1, "values": {"eval_accuracy": 0.9}},
        {"step": 2, "values": {"loss": 0.5}},
    ]


def test_names_without_end_take_no_memory_without_end(
    agent: Agent, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_module, "MAX_NAMES", 1000)
    for number in range(1007):
        reports.add(number, {f"loss_{number}": 0.5})
    reports.leave(timeout=0)
    *sent, last = agent.facts()
    assert last == ("metrics thinned", {"values": {}, "refused": 7})
    assert sum(len(each["values"]) for _, detail in sent for each in detail["reports"]) == 1000


def test_a_value_is_that_of_its_report_also_if_its_array_changes(agent: Agent, reports: Reports) -> None:
    total = np.zeros((), np.longdouble)
    for step in range(1, 4):
        total += step
        reports.add(step, {"total": total})
    reports.flush()
    assert [each["values"]["total"] for each in agent.heard()] == [1, 3, 6]


def test_the_first_value_that_is_not_finite_is_told_however_many_follow(agent: Agent, reports: Reports) -> None:
    for step in range(1, 201):
        reports.add(step, {"loss": math.nan if step >= 37 else 0.5, "norm": math.inf if step in (3, 150) else 1})
    reports.leave(timeout=0)
    assert agent.finiteness() == [
        ("not finite", "norm", 3),
        ("finite again", "norm", 4),
        ("not finite", "loss", 37),
        ("not finite", "norm", 150),
        ("finite again", "norm", 151),
    ]


def test_of_values_on_a_device_those_that_are_not_sent_are_looked_at_as_well(
    agent: Agent, reports: Reports, clock: Clock
) -> None:
    for step in range(100):
        clock.now = step * REPORT_EVERY / 10
        reports.add(step, {"loss": jnp.float32(np.nan if step >= 77 else 0.5)})
    reports.flush()
    assert agent.finiteness() == [("not finite", "loss", 77)]


def test_a_metric_that_is_not_finite_now_and_then_is_told_of_only_so_often(agent: Agent, reports: Reports) -> None:
    for step in range(100):
        reports.add(step, {"norm": math.inf if step % 2 else 1.0})
    reports.flush()
    assert len(agent.finiteness()) == MAX_CHANGES


def test_other_processes_tell_only_what_is_not_finite_unless_all_are_kept(
    agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTMESH_PROCESS_ID", "7")
    monkeypatch.setenv("HOSTMESH_NUM_PROCESSES", "1000")
    alone = Reports(clock)
    for step in range(50):
        alone.add(step, {"loss": math.nan})
    alone.leave(timeout=0)
    change = {"metric": "loss", "step": 0, "value": "nan", "finite": False}
    assert agent.facts() == [("metrics", {"reports": [], "changes": [change]})]

    monkeypatch.setenv("HOSTMESH_METRICS", "all")
    among_many = Reports(clock)
    for step in range(10_000):
        clock.now = step * 0.01
        among_many.add(step, {"loss": 0.5})
    assert len(agent.facts()) == 10  # one in ten seconds: a thousand processes together send a hundred a second


def test_after_a_failure_nothing_waits_for_a_value(agent: Agent, reports: Reports) -> None:
    reports.add(1, {"loss": 0.5})
    reports.add(2, {"loss": 0.4, "norm": Pending(1.0)})
    reports.leave(timeout=0)
    assert [each["step"] for each in agent.heard()] == [1, 2]
    reports.leave(timeout=60)  # an exit handler after it finds nothing to wait for
    assert agent.heard() == []


def test_a_value_that_never_comes_holds_up_no_end(agent: Agent, reports: Reports) -> None:
    reports.add(1, {"loss": Pending(0.5)})
    reports.leave(timeout=0.01)
    assert agent.heard() == []


def test_a_value_whose_computation_failed_is_left_out(agent: Agent, reports: Reports) -> None:
    class Failed(Pending):
        def item(self) -> float:
            raise RuntimeError("UNKNOWN: Gloo")

    reports.add(1, {"loss": Failed(0.5, ready=True), "rate": 0.1})
    assert agent.heard() == [{"step": 1, "values": {"rate": 0.1}}]


def test_a_value_in_computation_is_sent_once_it_is_there(agent: Agent, reports: Reports) -> None:
    loss = Pending(0.5)
    reports.add(1, {"loss": loss})
    assert agent.heard() == [] and not loss.waited
    loss.ready = True
    reports.add(2, {"loss": Pending(0.4)})
    assert agent.heard() == [{"step": 1, "values": {"loss": 0.5}}]


def test_a_device_that_is_always_behind_does_not_silence_the_reports(
    agent: Agent, reports: Reports, clock: Clock
) -> None:
    """The newest of a program that runs ahead is never ready: an older one must be kept until it is."""
    losses = [Pending(step) for step in range(100)]
    for step, loss in enumerate(losses):
        clock.now = step * REPORT_EVERY / 10
        if step >= 5:
            losses[step - 5].ready = True
        reports.add(step, {"loss": loss})
    steps = agent.steps()
    assert len(steps) >= 7 and not any(loss.waited for loss in losses)
    assert steps == sorted(set(steps)) and steps[-1] >= 80


def test_a_report_on_a_busy_device_returns_before_the_value_is_there(agent: Agent) -> None:
    x = jnp.ones((800, 800))
    compute_slowly(x).block_until_ready()
    loss = compute_slowly(x)
    report(1, loss=loss)
    assert not loss.is_ready() and agent.heard() == []
    flush_report()
    assert agent.heard() == [{"step": 1, "values": {"loss": loss.item()}}]


def test_a_flush_sends_nothing_twice(agent: Agent) -> None:
    flush_report()
    report(1, loss=0.5)
    flush_report()
    assert agent.steps() == [1]


def test_a_donated_value_is_left_out(agent: Agent, reports: Reports) -> None:
    rate = jnp.float32(0.1)
    reports.add(0, {"loss": 0.6})
    reports.add(1, {"rate": rate, "loss": 0.5})
    rate.delete()
    reports.flush()
    assert agent.heard() == [{"step": 0, "values": {"loss": 0.6}}, {"step": 1, "values": {"loss": 0.5}}]


def test_a_call_that_sends_nothing_costs_next_to_nothing(agent: Agent) -> None:
    metrics = {"loss": jnp.float32(0.5), "accuracy": jnp.float32(0.5), "rate": 0.1}
    later, pending = Reports(), Reports()
    later.add(0, metrics)
    for reports, values in ((later, metrics), (pending, {**metrics, "loss": Pending(0.5)})):
        took = timeit.repeat(lambda r=reports, v=values: r.add(1, v), timer=time.thread_time, number=500, repeat=20)  # type: ignore[misc]
        assert min(took) / 500 < 20e-6 * busyness()
    assert len(agent.heard()) <= 1 + 20  # and all of it was no more than the clock allows


def test_a_process_without_a_launcher_reports_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOSTMESH_FACTS_SOCKET", raising=False)
    report(1, loss=0.5)
    flush_report()


GLOBAL = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from hostmesh.worker.metrics import report
jax.distributed.initialize()
sharding = NamedSharding(Mesh(jax.devices(), "x"), P("x"))
rows = jax.make_array_from_callback((8,), sharding, lambda index: np.arange(8.0, dtype=np.float32)[index])
total = jax.jit(jnp.sum)(rows)
assert not total.is_fully_addressable
last = SingleDeviceSharding(jax.devices()[-1])
shards = [jax.device_put(jnp.float32(1), jax.local_devices()[-1])] if jax.process_index() else []
elsewhere = jax.make_array_from_single_device_arrays((), last, shards, dtype=jnp.float32)
for step in range(100):
    report(step, total=total, elsewhere=elsewhere)
"""


def events(run: LiveRun, name: str) -> list[dict[str, Any]]:
    lines = (run.run_folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_global_scalars_are_reported_and_only_process_0_is_kept(start: Start, script: Script) -> None:
    run = start("--local", "2", "--devices", "2", script(GLOBAL))
    assert run.wait() == 0, run.stderr
    kept = events(run, "metrics")
    assert {event["process_id"] for event in kept} == {0}
    assert kept[-1]["detail"] == {"step": 99, "values": {"total": 28.0}}
    assert len(kept) < 60


ENDS = {
    "at its end": ("", 0),
    "preempted": ("sys.exit(75)", 75),
    "with an exception": ("raise ValueError('no')", 1),
    "by a lost peer": ("raise ValueError('UNKNOWN: Gloo connection reset by peer')", 1),
    "interrupted": ("raise KeyboardInterrupt", 130),
}
ENDING = """
import sys
from hostmesh import report
class Never:
    '''A value that a device will not give any more.'''
    shape, dtype, addressable_shards = (), __import__("numpy").dtype("float32"), (None,)
    is_ready = is_deleted = lambda self: False
for step in range(1, 101):
    report(step, loss=1 / step)
    if step % 20 == 0:
        report(step, eval_accuracy=step / 100)
if {code} not in (0, 75):
    report(100, norm=Never())
{end}
"""


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.quick("with an exception", "preempted")
def test_the_last_report_and_the_rare_ones_arrive_however_a_process_ends(
    start: Start, script: Script, how: str
) -> None:
    end, code = ENDS[how]
    run = start("--local", "1", script(ENDING.format(end=end, code=code)))
    assert run.wait() == code, run.stderr
    kept = [event["detail"] for event in events(run, "metrics")]
    assert [each["values"]["eval_accuracy"] for each in kept if "eval_accuracy" in each["values"]] == [
        *(0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    assert kept[-1] == {"step": 100, "values": {"loss": 0.01, "eval_accuracy": 1.0}}
    assert events(run, "metrics thinned")[0]["detail"]["values"] == {"loss": 100 - len(losses(kept))}


def losses(kept: list[dict[str, Any]]) -> list[int]:
    return [each["step"] for each in kept if "loss" in each["values"]]


def test_a_plain_python_that_fails_waits_for_no_value(start: Start, script: Script) -> None:
    name = script(ENDING.format(end="raise ValueError('no')", code=1))
    run = start("--local", "1", "--", sys.executable, name)
    assert run.wait() == 1, run.stderr
    assert events(run, "metrics")[-1]["detail"]["step"] == 100


NOT_FINITE = """
import os
from hostmesh import report
process_id = int(os.environ["HOSTMESH_PROCESS_ID"])
for step in range(1, 61):
    nan = float("nan")
    report(step, loss=nan if step >= 12 else 0.5, norm=float("inf") if step == 3 else 1.0)
    if process_id == 1:
        report(step, local_loss=nan if step >= 37 else 0.5)
"""


def test_what_is_not_finite_is_told_by_the_events_the_last_line_and_the_result(start: Start, script: Script) -> None:
    run = start("--local", "2", "--cold", "--metrics", "all", script(NOT_FINITE))
    assert run.wait() == 0
    told = {
        (each["process_id"], each["detail"]["metric"], each["detail"]["step"]) for each in events(run, "not finite")
    }
    assert told == {(0, "loss", 12), (1, "loss", 12), (0, "norm", 3), (1, "norm", 3), (1, "local_loss", 37)}
    last = run.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"launch: all 2 processes succeeded in [\d.]+ s; norm was not finite at times, first at step 3;"
        r" loss was not finite from step 12 on; local_loss of process 1 was not finite from step 37 on",
        last,
    )
    assert {
        one["metric"]: (one["step"], one["until_the_end"], one["processes"]) for one in run.result["not_finite"]
    } == {**{"norm": (3, False, 2), "loss": (12, True, 2), "local_loss": (37, True, 1)}}
    assert {event["process_id"] for event in events(run, "metrics")} == {0, 1}


def test_of_many_names_that_are_not_finite_the_first_few_are_told() -> None:
    metrics = keeping.Metrics(False, lambda *_, **__: 0, pytest.fail)
    changes = [{"metric": f"m{n}", "step": 9 - n, "value": "nan", "finite": False} for n in range(5)]
    forged = [{"metric": "x", "step": 1, "value": 1, "finite": True}, {"metric": 3}, None]
    metrics.note_fact("a", wire.Fact("metrics", 2, {"reports": [], "changes": [*changes, *forged]}))
    told = [f"m{9 - step} of process 2 was not finite from step {step} on" for step in (5, 6, 7)]
    assert metrics.remarks() == [*told, "2 other metrics were not finite either"]


def test_metrics_of_all_processes_take_no_disk_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_BYTES_OF_OTHERS", 1000)
    kept: list[int] = []
    notes: list[str] = []

    def add(event: str, process_id: int, **detail: Any) -> int:
        kept.append(process_id)
        return 100

    metrics = keeping.Metrics(True, add, notes.append)
    for process_id in list(range(50)) * 2:
        detail = {"reports": [{"step": 1, "values": {"loss": 0.5}}], "changes": []}
        assert metrics.note_fact("a", wire.Fact("metrics", process_id, detail))
    assert kept.count(0) == 2 and len(kept) == 2 + 10
    assert len(notes) == 1 and "from here on only those of process 0" in notes[0]


def test_a_summary_of_process_0_is_a_file_of_the_run(start: Start, script: Script) -> None:
    name = script(
        "import os\nfrom hostmesh.worker.process.facts import send_fact\n"
        "send_fact('summary', must_arrive=True, process=os.environ['HOSTMESH_PROCESS_ID'], loss=0.5)\n"
    )
    run = start("--local", "2", "--cold", name)
    assert run.wait() == 0
    assert json.loads((run.run_folder / "summary.json").read_text()) == {"process": "0", "loss": 0.5}
    assert run.result["outcome"] == "succeeded" and "loss" not in run.result


def test_a_secret_in_a_summary_is_hidden(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [a]\nsecrets: [KEY]\nrun: {script: script.py}\n")
    script(
        "import os\nfrom hostmesh.worker.process.facts import send_fact\nsend_fact('summary', key=os.environ['KEY'])\n"
    )
    assert launch("--hosts", "c.yaml", env={"KEY": "open-sesame-42"}).returncode == 0
    [file] = (tmp_path / "runs").glob("*/summary.json")
    assert "open-sesame-42" not in file.read_text() and "redacted" in file.read_text()


def test_facts_that_make_no_sense_are_only_logged(start: Start, script: Script) -> None:
    name = script(
        "from hostmesh.worker.process.facts import send_fact\n"
        "send_fact('saved', must_arrive=True, step='x')\n"
        "for name in ('saves_when_stopped', 'metrics', 'crash'): send_fact(name, must_arrive=True)\n"
    )
    run = start("--local", "1", name)
    assert run.wait() == 0
    assert run.result["saved_step"] is None and len(events(run, "saved")) == 1
