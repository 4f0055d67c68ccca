"""Asked to stop: processes that can save get the time for it, and the same command goes on from there."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from conftest import Launch, LiveRun, Script, Start, await_true, busyness, processes_of

WARM_AND_COLD = pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
PROCESSES = 2

# Each process waits for SIGTERM, tells that it begins to save, saves in its own way, and leaves.
SAVES = """
import atexit, os, signal, sys, threading, time
from hostmesh.worker.process.facts import send_fact
process_id = int(os.environ["HOSTMESH_PROCESS_ID"])
# The system itself writes to the pipe: Python runs a handler only between two instructions, never inside a read that
# the signal came just before.
asked, ask = os.pipe()
os.set_blocking(ask, False)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.set_wakeup_fd(ask)
atexit.register(lambda: print("left in order"))
send_fact("saves_when_stopped", must_arrive=True, seconds={seconds})
os.read(asked, 1)
send_fact("saving", must_arrive=True)
{save}
send_fact("saved", must_arrive=True, step=120)
sys.exit(75)
"""
FOR_EVER = "threading.Event().wait()"
MESSAGE = "preempted; saved at step 120: the same command goes on from there"


@pytest.fixture
def saving(start: Start, script: Script) -> Any:
    """Start processes that save as told; returns when all of them are ready to be asked."""

    def begin(save: str = "pass", *args: str, seconds: float = 60) -> LiveRun:
        run = start("--local", str(PROCESSES), *args, script(SAVES.format(save=save, seconds=seconds)))
        run.await_event("saves_when_stopped", count=PROCESSES)
        return run

    return begin


def pids(run: LiveRun) -> list[int]:
    return [run.await_event("process started", process_id=k)["pid"] for k in range(PROCESSES)]


def assert_all_left_in_order(run: LiveRun) -> None:
    assert run.result["exits"] == {str(k): 75 for k in range(PROCESSES)}
    assert [run.log(k) for k in range(PROCESSES)] == [b"left in order\n"] * PROCESSES
    assert run.result["saved_step"] == 120
    assert '"crash"' not in (run.run_folder / "events.jsonl").read_text()
    assert not processes_of(run.id)


@pytest.mark.slow
def test_a_save_that_takes_longer_than_a_stop_is_waited_for(saving: Any) -> None:
    run = saving("time.sleep(4)", "--cold")
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.result["outcome"] == "stopped" and run.result["message"] == "stopped by Ctrl-C; saved at step 120"
    assert "Ctrl-C: asked the processes to save and stop; up to 60 s (again: at once)" in run.stderr
    assert_all_left_in_order(run)


def test_ctrl_c_leaves_the_children_of_a_saving_process_to_it(start: Start, script: Script) -> None:
    """Such as a data loader's, which it still reads from: Ctrl-C would end them."""
    child = "import subprocess; child = subprocess.Popen(['sleep', '1000'])\nos.read(asked, 1)"
    save = "time.sleep(0.5); assert child.poll() is None"
    run = start(
        "--local", "2", "--cold", script(SAVES.format(save=save, seconds=60).replace("os.read(asked, 1)", child))
    )
    run.await_event("saves_when_stopped", count=PROCESSES)
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130 and run.result["message"] == "stopped by Ctrl-C; saved at step 120", run.stderr
    assert_all_left_in_order(run)


@WARM_AND_COLD
def test_a_launcher_that_gets_sigterm_is_preempted(saving: Any, how: list[str]) -> None:
    run = saving("pass", *how)
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait() == 75
    assert run.result["outcome"] == "preempted" and run.result["message"] == MESSAGE
    assert_all_left_in_order(run)


def test_processes_that_get_sigterm_themselves_are_preempted(saving: Any) -> None:
    run = saving("pass", "--cold")
    for pid in pids(run):
        os.kill(pid, signal.SIGTERM)
    assert run.wait() == 75
    assert run.result["message"] == MESSAGE
    assert_all_left_in_order(run)


@pytest.mark.slow
def test_who_leaves_early_does_not_end_the_others(saving: Any) -> None:
    run = saving("while process_id == 1 and not os.path.exists('go'): time.sleep(0.01)")
    for pid in pids(run):
        os.kill(pid, signal.SIGTERM)
    run.await_event("process exited", process_id=0, code=75)
    (run.folder / "go").touch()
    assert run.wait() == 75
    assert_all_left_in_order(run)


def test_who_fails_while_another_has_left_is_the_culprit(saving: Any) -> None:
    wait = "while process_id == 1 and not os.path.exists('go'): time.sleep(0.01)"
    run = saving(wait + "\nif process_id == 1: raise OSError('disk full')", "--cold")
    for pid in pids(run):
        os.kill(pid, signal.SIGTERM)
    run.await_event("process exited", process_id=0, code=75)
    (run.folder / "go").touch()
    assert run.wait() == 1
    assert run.result["process_id"] == 1 and run.result["detail"][0] == "OSError: disk full"
    assert not processes_of(run.id)


def test_a_second_interrupt_ends_a_save_at_once(saving: Any) -> None:
    run = saving(FOR_EVER, "--cold")
    run.launcher.send_signal(signal.SIGINT)
    run.await_event("saving", count=PROCESSES)
    began = time.monotonic()
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert time.monotonic() - began < 30 * busyness()  # and not the 60 s that it asked for
    assert run.result["message"] == "stopped by Ctrl-C" and run.result["saved_step"] is None
    assert not processes_of(run.id)


def test_a_save_that_never_ends_gets_the_time_it_asked_for(saving: Any) -> None:
    run = saving(FOR_EVER, "--cold", "--grace", "0.1", seconds=1)
    run.launcher.send_signal(signal.SIGINT)
    began = run.await_event("interrupted")["time"]
    assert run.wait() == 130
    assert 1 <= run.await_event("run ended")["time"] - began < 20  # not the tenth that others get, nor for ever
    assert run.result["exits"] == {str(k): -signal.SIGKILL for k in range(PROCESSES)}
    assert not processes_of(run.id)


@pytest.mark.slow
def test_a_save_that_fails_is_the_verdict_and_nobody_waits_for_the_rest(saving: Any) -> None:
    run = saving(f"if process_id == 1: raise OSError('disk full')\n{FOR_EVER}")
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait(timeout=30) == 1
    assert run.result["process_id"] == 1 and run.result["detail"][0] == "OSError: disk full"
    assert not processes_of(run.id)


@pytest.mark.slow
def test_a_host_lost_while_saving_is_the_verdict(saving: Any) -> None:
    run = saving(FOR_EVER)
    run.launcher.send_signal(signal.SIGINT)
    run.await_event("saving", count=PROCESSES)
    os.kill(run.await_event("host connected")["agent_pid"], signal.SIGKILL)
    assert run.wait(timeout=30) == 69
    await_true(lambda: not processes_of(run.id), 5, "everything gone")


@pytest.mark.slow
def test_a_killed_launcher_leaves_no_process_that_saves(saving: Any) -> None:
    run = saving(FOR_EVER)
    run.launcher.send_signal(signal.SIGINT)
    run.await_event("saving", count=PROCESSES)
    run.launcher.kill()
    await_true(lambda: not processes_of(run.id), 5, "everything gone")


def test_a_command_can_be_preempted_too(launch: Launch) -> None:
    done = launch("--local", "2", "--", "sh", "-c", "exit 75")
    assert done.returncode == 75
    assert done.stderr.splitlines()[-1] == "launch: preempted"


# jax carries the news of a SIGTERM from one process to all, who then stop at the same step.
TRAIN = """
import sys
import jax
from jax.experimental import multihost_utils
from hostmesh.worker.process.facts import send_fact
jax.distributed.initialize()
send_fact("saves_when_stopped", must_arrive=True, seconds=60)
for step in range(10**9):
    multihost_utils.sync_global_devices(str(step))
    if step == 3:
        send_fact("up", must_arrive=True)
    if multihost_utils.reached_preemption_sync_point(step):
        send_fact("saved", must_arrive=True, step=step)
        sys.exit(75)
"""


@WARM_AND_COLD
@pytest.mark.parametrize("target", ["one process", "the launcher"])
@pytest.mark.quick("one process-warm")
def test_jax_processes_stop_at_one_step_and_leave_through_its_barrier(
    start: Start, script: Script, how: list[str], target: str
) -> None:
    run = start("--local", str(PROCESSES), *how, script(TRAIN))
    run.await_event("up", count=PROCESSES)
    os.kill(pids(run)[1] if target == "one process" else run.launcher.pid, signal.SIGTERM)
    assert run.wait() == 75, run.stderr
    steps = [run.await_event("saved", count=k + 1)["detail"]["step"] for k in range(PROCESSES)]
    assert len(set(steps)) == 1 and run.result["saved_step"] == steps[0]
    assert "Traceback" not in run.stderr and "ABORT" not in run.stderr.upper()
    assert not processes_of(run.id)


# The same in a script that knows nothing of a launcher, and whose save takes longer than others get.
TRAIN_ALONE = """
import sys, time
import jax
from jax.experimental import multihost_utils
jax.distributed.initialize()
for step in range(10**9):
    multihost_utils.sync_global_devices(str(step))
    if step == 3:
        print("up", flush=True)
    if multihost_utils.reached_preemption_sync_point(step):
        time.sleep(3.5)
        print("saved", step, flush=True)
        sys.exit({code})
"""


@pytest.mark.parametrize(("code", "exit_code", "message"), [(0, 143, "stopped by SIGTERM"), (75, 75, "preempted")])
@pytest.mark.slow
def test_grace_is_the_time_of_a_script_that_saves_by_itself(
    start: Start, script: Script, code: int, exit_code: int, message: str
) -> None:
    run = start("--local", str(PROCESSES), "--grace", "60", script(TRAIN_ALONE.format(code=code)))
    await_true(lambda: run.stderr.count("up\n") == PROCESSES, 60, "processes")
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait() == exit_code and run.result["message"] == message, run.stderr
    assert run.result["exits"] == {str(k): code for k in range(PROCESSES)}
    assert len({run.log(k).splitlines()[-1] for k in range(PROCESSES)}) == 1 and b"saved" in run.log(0)
    assert "SIGTERM: asked the processes to stop; up to 60 s (again: at once)" in run.stderr


FAILS_TO_SAVE = """
import os, signal, sys, time
def save(*_):
    if os.environ["HOSTMESH_PROCESS_ID"] == "1":
        raise OSError("disk full")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True: time.sleep(0.05)
"""


def test_who_fails_while_it_stops_is_told(start: Start, script: Script) -> None:
    run = start("--local", str(PROCESSES), "--cold", "--grace", "60", script(FAILS_TO_SAVE))
    await_true(lambda: run.stderr.count("up\n") == PROCESSES, 60, "processes")
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait() == 143 and run.result["message"] == "stopped by SIGTERM"
    assert run.result["detail"][:2] == ["process 1 on localhost exited with 1", "  OSError: disk full"]


# Asked before its first step, and long enough before for jax, which looks for the signal once a second, to know it.
RESUMED = """
import os, sys, time, hostmesh
hostmesh.join()
hostmesh.handle_preemption()
while not os.path.exists("asked"):
    time.sleep(0.05)
time.sleep(3)
for step in range(101, 1000):
    time.sleep(0.05)
    if hostmesh.preemption_requested(step):
        print("stopped at", step)
        sys.exit(75)
"""


@pytest.mark.slow
def test_a_resumed_run_that_is_asked_before_its_first_step_stops(start: Start, script: Script) -> None:
    run = start("--local", "2", script(RESUMED))
    run.await_event("saves_when_stopped", count=PROCESSES)
    run.launcher.send_signal(signal.SIGTERM)
    run.await_event("interrupted")
    (run.folder / "asked").touch()
    assert run.wait(100) == 75, run.stderr
    said = {run.log(k).splitlines()[-1] for k in range(PROCESSES)}  # jax itself says something before
    assert len(said) == 1 and said.pop().startswith(b"stopped at 1")
