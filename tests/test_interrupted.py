"""Ctrl-C of a run that does not stop: where the stuck processes were is kept."""

from __future__ import annotations

import signal

import pytest
from conftest import Script, Start, await_true

# Process 0 is stuck and hears no request; process 1 leaves when asked to.
HALF_STUCK = """
import os, signal, sys, time
is_stuck = os.environ["HOSTMESH_PROCESS_ID"] == "0"
signal.signal(signal.SIGTERM, signal.SIG_IGN if is_stuck else lambda *_: sys.exit(0))
def stuck_here():
    print("up", flush=True)
    while True: time.sleep(1000)
stuck_here()
"""


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stuck_process_leaves_its_stack_at_the_end(start: Start, script: Script, how: list[str], number: int) -> None:
    run = start("--local", "2", *how, script(HALF_STUCK))
    await_true(lambda: run.stderr.count("up\n") == 2, 30, "workers")
    run.launcher.send_signal(number)
    assert run.wait() == 128 + number
    assert "in stuck_here" in (run.run_folder / "stacks" / "process-000.txt").read_text()
    assert not (run.run_folder / "stacks" / "process-001.txt").exists()
    where = f"1 process did not stop in time; stacks: runs/{run.id}/stacks/"
    assert where in run.result["detail"] and where in run.stderr


def test_a_second_ctrl_c_waits_for_no_stacks(start: Start, script: Script) -> None:
    run = start("--local", "2", script(HALF_STUCK))
    await_true(lambda: run.stderr.count("up\n") == 2, 30, "workers")
    for count in (1, 2):
        run.launcher.send_signal(signal.SIGINT)
        run.await_event("interrupted", count)
    assert run.wait() == 130
    assert not (run.run_folder / "stacks").exists() and run.result["detail"] == []
