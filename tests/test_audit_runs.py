"""The audit of real runs: of those whose processes are killed, of those that go on, and of those that go wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, Launch, LiveRun, Script, Start, clean_env

# Trains on numbers, saves after every third step, and is killed in the first attempt where that is asked for.
TRAIN = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
import hostmesh
mode, total = sys.argv[1], int(sys.argv[2])
hostmesh.join()
is_first = os.environ["HOSTMESH_ATTEMPT"] == "1"
mesh = hostmesh.make_mesh(data=-1)
def records(shard, shards):
    return ({"x": np.int32(n)} for n in range(10_000))
source = hostmesh.as_stream(records) if mode == "stream" else {"x": np.arange(101, dtype=np.int32)}
loader = hostmesh.Loader(source, mesh, 12, steps=total)
checked = hostmesh.Loader({"x": np.arange(40)}, mesh, 12, shuffle=False, epochs=1, tail="pad")
state = jax.device_put(jnp.zeros(()), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))
checkpoint = hostmesh.Checkpoint("saved", data_spec=loader.data_spec)
found = checkpoint.restore(state)
if found is not None:
    state, position = found
    loader.restore(position - 1 if mode == "early" else position)
if mode == "wrong row" and jax.process_index() == 1:
    ids = loader._rows.order.ids
    def wrong(start, stop):
        found = ids(start, stop)
        if start == 4 * 12:
            found[7] = found[8]
        return found
    object.__setattr__(loader._rows.order, "ids", wrong)
for batch in loader:
    state = state + batch["x"].sum()
    if loader.step % 3 == 0 and mode != "never saved":
        checkpoint.save(loader.step, state, loader.state())
        checkpoint.wait()
        for batch in checked:
            pass
    if is_first and loader.step == 8 and jax.process_index() == 1 and mode in ("killed", "early", "stream"):
        os.kill(os.getpid(), 9)
checkpoint.close()
"""


def run_training(start: Start, script: Script, mode: str, total: int, *options: str) -> LiveRun:
    run = start("--local", "2", *options, script(TRAIN), mode, str(total))
    assert run.wait(HANGS) == 0, run.stderr
    return run


def audit_again(run: LiveRun) -> Any:
    """By the command that makes it from the events alone."""
    command = [sys.executable, "-P", "-m", "hostmesh.launcher.audit", str(run.run_folder)]
    return json.loads(subprocess.run(command, env=clean_env(), capture_output=True, check=True).stdout)


def test_a_killed_run_used_each_record_once_and_so_did_the_run_that_continues_it(start: Start, script: Script) -> None:
    run = run_training(start, script, "killed", 12, "--restarts", "1")
    audit = run.result["audit"]
    assert audit == audit_again(run)
    assert {**audit, "repeated_steps": None} == {
        **{"exact": True, "steps": 12, "first_step": 1, "records": 144, "epochs": 2, "left_out": 0},
        **{"repeated_steps": None, "problems": [], "unknown": [], "attempts": 2},
    }
    assert audit["repeated_steps"] in (1, 2)  # of step 8 its processes may not all have begun
    assert "launch: audit: 12 steps, 144 records, each used exactly once in 2 epochs; " in run.stderr
    run = run_training(start, script, "plain", 20)
    audit = run.result["audit"]
    assert (audit["exact"], audit["first_step"], audit["steps"], audit["records"]) == (True, 13, 8, 96)
    assert "launch: audit: 8 steps from step 13 on, 96 records, each used exactly once in 2 epochs" in run.stderr


@pytest.mark.slow
def test_a_resume_that_uses_a_batch_twice_is_found(start: Start, script: Script) -> None:
    run = run_training(start, script, "early", 12, "--restarts", "1")
    problem = "step 6 was used twice: attempt 2 restored what was saved after step 6 and went on with step 6"
    assert (run.result["audit"]["exact"], run.result["audit"]["problems"]) == (False, [problem])
    assert f"launch: audit: 12 steps: NOT every record was used exactly once:\n  {problem}" in run.stderr
    assert (run.result["outcome"], run.result["exit_code"]) == ("succeeded", 0)


def test_a_wrong_row_is_found(start: Start, script: Script) -> None:
    run = run_training(start, script, "wrong row", 12, "--guard", "off")  # which would end it at once
    (problem,) = run.result["audit"]["problems"]
    assert "process 1 used other records than those of the order" in problem and problem in run.stderr


@pytest.mark.slow
def test_of_a_stream_the_steps_are_audited(start: Start, script: Script) -> None:
    run = run_training(start, script, "stream", 12, "--restarts", "1")
    audit = run.result["audit"]
    assert (audit["exact"], audit["steps"], audit["records"], audit["problems"]) == (None, 12, None, [])
    assert "the records of a stream have no numbers" in run.stderr


@pytest.mark.slow
def test_a_run_that_never_saves_is_audited_and_no_line_is_shown(start: Start, script: Script) -> None:
    run = run_training(start, script, "never saved", 12)
    assert (run.result["audit"]["exact"], run.result["audit"]["steps"]) == (True, 12)
    assert "audit" not in run.stderr


def test_a_skipped_batch_is_found(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "faults.yaml").write_text("faults: [{kind: skip batch, process: 0, step: 4}]\n")
    done = launch("--local", "1", "--chaos", "faults.yaml", script(TRAIN), "never saved", "9")
    assert done.returncode == 0, done.stderr
    assert "process 0 used 12 records too few" in done.stdout + done.stderr


def test_a_script_without_a_loader_has_no_audit(start: Start, script: Script) -> None:
    run = start("--local", "1", script("print('nothing to count')"))
    assert run.wait(HANGS) == 0
    assert "audit" not in run.result and "audit" not in run.stderr


@pytest.mark.parametrize("problem", ["no numpy", "slow"])
@pytest.mark.quick("no numpy")
def test_an_audit_that_cannot_be_made_changes_nothing(
    start: Start, script: Script, tmp_path: Path, problem: str
) -> None:
    """What the launcher's own Python lacks must not matter to a run."""
    (tmp_path / "below.py").write_text(
        "import sys\n"
        "from hostmesh.launcher.audit import asking\n"
        + (
            "asking.PROGRAM = 'import no_such_module'\n"
            if problem == "no numpy"
            else "asking.Recounter.__init__.__defaults__ = (0.001,)\n"
        )
        + "from hostmesh.launcher.cli import main\nmain()\n"
    )
    command = [sys.executable, str(tmp_path / "below.py"), "--local", "1", script(TRAIN), "never saved", "5"]
    done = subprocess.run(command, cwd=tmp_path, env=clean_env(), capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "runs").glob("*/result.json")
    audit = json.loads(result.read_text())["audit"]
    assert (audit["exact"], audit["steps"]) == (None, 5) and "the recount" in audit["unknown"][0]
