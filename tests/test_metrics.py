"""Reports: training never waits for one, each half second brings the newest, and process 0's are kept."""

from __future__ import annotations

import json
import math
import socket
import tempfile
import timeit
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Launch, LiveRun, Script, Start

from worker import metrics as reporting
from worker.metrics import REPORT_EVERY, Reports, flush_report, report


class Agent:
    """The agent's end of the socket: what has arrived there."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[dict[str, Any]]:
        found = []
        while True:
            try:
                fact = json.loads(self.socket.recv(1 << 17))
            except BlockingIOError:
                return found
            assert fact["name"] == "metrics"
            found.append(fact["detail"])

    def steps(self) -> list[int]:
        return [detail["step"] for detail in self.heard()]


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


def test_half_a_second_brings_one_report_and_the_newest(agent: Agent, reports: Reports, clock: Clock) -> None:
    for step in range(1000):
        clock.now = step * REPORT_EVERY / 100
        reports.add(step, {"loss": 0.5})
    assert agent.steps() == list(range(0, 1000, 100))
    reports.flush()
    assert agent.steps() == [999]


def test_a_value_in_computation_is_sent_once_it_is_there(agent: Agent, reports: Reports) -> None:
    loss = Pending(0.5)
    reports.add(1, {"loss": loss})
    assert agent.heard() == [] and not loss.waited
    loss.ready = True
    reports.add(2, {"loss": Pending(0.4)})
    assert agent.heard() == [{"step": 1, "values": {"loss": 0.5}}]


def test_of_two_that_are_ready_the_newest_wins(agent: Agent, reports: Reports) -> None:
    loss = Pending(0.5)
    reports.add(1, {"loss": loss})
    loss.ready = True
    reports.add(2, {"loss": 0.4})
    assert agent.steps() == [2]


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
    assert len(steps) == 7 and not any(loss.waited for loss in losses)
    assert steps == sorted(set(steps))


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
    loss, rate = Pending(0.5), jnp.float32(0.1)
    reports.add(1, {"rate": rate, "loss": loss})
    rate.delete()
    loss.ready = True
    reports.add(2, {"loss": Pending(0.4)})
    assert agent.heard() == [{"step": 1, "values": {"loss": 0.5}}]


def test_a_call_that_sends_nothing_costs_next_to_nothing(agent: Agent) -> None:
    metrics = {"loss": jnp.float32(0.5), "accuracy": jnp.float32(0.5), "rate": 0.1}
    later, pending = Reports(), Reports()
    later.add(0, metrics)
    for reports, values in ((later, metrics), (pending, {**metrics, "loss": Pending(0.5)})):
        best = min(timeit.repeat(lambda r=reports, v=values: r.add(1, v), number=500, repeat=20)) / 500  # type: ignore[misc]
        assert best < 20e-6
    assert len(agent.heard()) <= 1 + 20  # and all of it was no more than the clock allows


def test_a_process_without_a_launcher_reports_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOSTMESH_FACTS_SOCKET", raising=False)
    report(1, loss=0.5)
    flush_report()


GLOBAL = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from worker.metrics import flush_report, report
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
flush_report()
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
    assert len(kept) < 10


def test_a_summary_of_process_0_is_a_file_of_the_run(start: Start, script: Script) -> None:
    name = script(
        "import os\nfrom worker.facts import send_fact\n"
        "send_fact('summary', must_arrive=True, process=os.environ['HOSTMESH_PROCESS_ID'], loss=0.5)\n"
    )
    run = start("--local", "2", "--cold", name)
    assert run.wait() == 0
    assert json.loads((run.run_folder / "summary.json").read_text()) == {"process": "0", "loss": 0.5}
    assert run.result["outcome"] == "succeeded" and "loss" not in run.result


def test_a_secret_in_a_summary_is_hidden(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [a]\nsecrets: [KEY]\nrun: {script: script.py}\n")
    script("import os\nfrom worker.facts import send_fact\nsend_fact('summary', key=os.environ['KEY'])\n")
    assert launch("--hosts", "c.yaml", env={"KEY": "open-sesame-42"}).returncode == 0
    [file] = (tmp_path / "runs").glob("*/summary.json")
    assert "open-sesame-42" not in file.read_text() and "redacted" in file.read_text()


def test_facts_that_make_no_sense_are_only_logged(start: Start, script: Script) -> None:
    name = script(
        "from worker.facts import send_fact\n"
        "send_fact('saved', must_arrive=True, step='x')\n"
        "for name in ('saves_when_stopped', 'metrics', 'crash'): send_fact(name, must_arrive=True)\n"
    )
    run = start("--local", "1", name)
    assert run.wait() == 0
    assert run.result["saved_step"] is None and len(events(run, "saved")) == 1
