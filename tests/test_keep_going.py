"""--keep-going: a failed process or a lost host ends nobody else, and the verdict says who failed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from conftest import Script, Start, processes_of

# jax lets the others live when one that was declared recoverable is gone; but nobody outlives process 0.
RECOVERS = """
import os, time
import jax
jax.config.update("jax_enable_recoverability", True)
jax.distributed.initialize()
if jax.process_index() == 1:
    raise ValueError("no data")
while not os.path.exists(f"go-{jax.process_index()}"): time.sleep(0.01)
print("computed", jax.numpy.ones(3).sum(), flush=True)
"""
# Process 1 fails, the others wait to be let go.
ONE_FAILS = """
import os, sys, time
if os.environ["HOSTMESH_PROCESS_ID"] == "1":
    sys.exit(7)
while not os.path.exists("go"): time.sleep(0.01)
"""


def test_survivors_of_a_recoverable_job_live_and_end_by_themselves(start: Start, script: Script) -> None:
    run = start("--local", "3", "--keep-going", script(RECOVERS))
    run.await_event("process exited", process_id=1, code=1)
    for number in (2, 0):
        (run.folder / f"go-{number}").touch()
        run.await_event("process exited", process_id=number, code=0)
    assert run.wait() == 1, run.stderr
    assert run.result["exits"] == {"0": 0, "1": 1, "2": 0} and run.result["process_id"] == 1
    assert run.result["detail"][0] == "ValueError: no data" and "2 other processes succeeded." in run.result["detail"]
    assert all(b"computed 3.0" in run.log(k) for k in (0, 2))
    assert "launch: process 1 on localhost exited with 1; the others go on" in run.stderr


def test_the_processes_of_a_lost_host_count_as_failed_and_the_others_go_on(
    start: Start, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [a, b]\nkeep_going: true\n")
    run = start("--hosts", "c.yaml", script(ONE_FAILS.replace("sys.exit(7)", "time.sleep(1000)")))
    run.await_event("process started", count=2)
    os.kill(run.await_event("host connected", host="b")["agent_pid"], signal.SIGKILL)
    run.await_event("host lost", host="b")
    (tmp_path / "go").touch()
    assert run.wait() == 69 and run.result["message"] == "the run failed: b lost its agent"
    told = ["1 process was lost with it.", "1 other process succeeded."]
    assert [line for line in run.result["detail"] if line in told] == told and run.result["exits"] == {"0": 0}
    assert "launch: b lost its agent; the others go on" in run.stderr
    assert not processes_of(run.id)


def test_ctrl_c_stops_a_run_that_keeps_going_and_who_failed_is_told(start: Start, script: Script) -> None:
    run = start("--local", "2", "--keep-going", "--grace", "60", "--cold", script(ONE_FAILS))
    run.await_event("process exited", process_id=1, code=7)
    run.await_event("process started", process_id=0)
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130 and run.result["message"] == "stopped by Ctrl-C"
    assert run.result["detail"][0] == "process 1 on localhost exited with 7" and not processes_of(run.id)
