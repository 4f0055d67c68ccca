"""Real Slurm: training in an allocation and from a login node, and what is said and left when something breaks."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from conftest import REPO, Start, await_true
from slurm_cluster import NODES, SlurmCluster, assert_nothing_left, lend_slurm, start_slurm  # noqa: F401

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

INSIDE = "salloc --quiet --nodes=3 --exclusive"
# Ignores requests to stop, as one that is stuck does, and has a child in a session of its own.
STUBBORN = """
import signal, subprocess
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", flush=True)
while True: signal.pause()  # a request for stacks ends one
"""
JOB = ("--batch-size", "96", "--seed", "7")
LONG = (*JOB, "--steps", "100000", "--checkpoint-dir", "saved")


# What works.


def test_the_built_in_job_ends_with_the_loss_of_local_processes(
    slurm: SlurmCluster, start: Start, tmp_path: Path
) -> None:
    slurm.write_file()
    far = slurm.start(*JOB, "--steps", "40")
    assert far.wait() == 0, far.said
    near = start("--local", "3", "--devices", "2", *JOB, "--steps", "40")
    assert near.wait(120) == 0, near.stderr
    there = json.loads(slurm.read(f"{far.run_folder}summary.json"))
    here = json.loads((near.run_folder / "summary.json").read_text())
    assert there["mesh"] == here["mesh"] == {"data": 3, "model": 2} and there["steps"] == 40
    assert there["loss"] == pytest.approx(here["loss"], abs=1e-5)
    assert json.loads(slurm.read(f"{far.run_folder}engine.json")) == {"engine": "slurm", "job": far.job}
    assert_nothing_left(slurm, time.monotonic())


@pytest.mark.parametrize("below", [INSIDE, ""], ids=["inside", "from the login node"])
def test_an_unmodified_script_that_calls_initialize_runs(slurm: SlurmCluster, below: str) -> None:
    slurm.write_file()
    slurm.write("hello.py", (REPO / "examples" / "hello.py").read_text())
    run = slurm.start("--show", "all", "hello.py", below=below)
    assert run.wait() == 0, run.said
    for process in range(3):
        assert f"process {process} of 3: the sum over 6 devices is 15" in run.said


def test_a_step_has_all_cpus_and_the_jobs_exit_code_is_that_of_the_run(slurm: SlurmCluster) -> None:
    slurm.write_file(secrets=["TOKEN"])
    run = slurm.start(
        "--", "sh", "-c", "echo $SLURM_CPUS_ON_NODE CPUs, ${#TOKEN} letters; exit 7", env="TOKEN=abcdefghi"
    )
    assert run.wait() == 7, run.said
    assert "4 CPUs, 9 letters" in run.said and "abcdefghi" not in run.said
    assert "abcdefghi" not in slurm.shell("grep -r abcdefghi runs || true")


# Faults.


def test_a_killed_worker_is_named_and_nothing_is_left(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.write("script.py", STUBBORN)
    run = slurm.start("--show", "all", "script.py")
    run.await_text("] up", 3)
    at = time.monotonic()
    slurm.shell("kill -9 $(pgrep -f '^/opt/venv/bin/python.*script.py' | head -n 1)", "node-1")
    assert run.wait(30) == 137, run.said
    assert_nothing_left(slurm, at)
    assert "process 1 on node-1" in run.said and run.result["host"] == "node-1"


@pytest.mark.parametrize("below", [INSIDE + " --no-kill", ""], ids=["inside", "from the login node"])
def test_a_node_that_vanishes_is_named(slurm: SlurmCluster, below: str) -> None:
    slurm.write_file()
    slurm.write("script.py", STUBBORN)
    run = slurm.start("--show", "all", "script.py", below=below)
    run.await_text("] up", 3)
    at = time.monotonic()
    slurm.kill("node-2")
    assert run.wait(60) == 69, run.said
    assert (run.result["outcome"], run.result["host"]) == ("host lost", "node-2")
    await_true(lambda: not slurm.left(), 10 - (time.monotonic() - at) + 5, f"left: {slurm.left()}")


def test_a_lost_node_is_told_in_slurms_words_and_done_without(slurm: SlurmCluster) -> None:
    """Slurm's own reason comes when it has noticed, too."""
    slurm.write_file(min_hosts=2, rejoin=1, processes_per_host=1)
    slurm.write("script.py", "import os\nprint('up', os.environ['HOSTMESH_NUM_PROCESSES'], flush=True)\n" + STUBBORN)
    run = slurm.start("--show", "all", "script.py")
    run.await_text("up 3", 3)
    slurm.kill("node-2")
    run.await_text("up 2", 2)
    run.signal("INT")
    assert run.wait(60) == 130, run.said


def test_a_node_that_slurm_sets_down_is_explained(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.write("script.py", STUBBORN)
    run = slurm.start("--show", "all", "script.py", below=INSIDE + " --no-kill")
    run.await_text("] up", 3)
    at = time.monotonic()
    slurm.break_with("node-2", "kill -9 $(pidof slurmd)")
    slurm.exec("node-0", "scontrol", "update", "NodeName=node-2", "State=DOWN", "Reason=fan broke")
    slurm.break_with("node-2", "for pid in $(pgrep slurmstepd); do kill -9 $pid; done")
    assert run.wait(40) == 69, run.said
    assert "node-2" in run.result["message"] and "DOWN" in run.said and "fan broke" in run.said
    assert_nothing_left(slurm, at, 15)


def test_scancel_is_told_and_leaves_nothing(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.write("script.py", STUBBORN)
    run = slurm.start("--show", "all", "script.py")
    run.await_text("] up", 3)
    at = time.monotonic()
    slurm.shell(f"scancel {run.job}")
    assert_nothing_left(slurm, at)
    assert run.wait(30) == 143, run.said
    assert "CANCELLED" in run.said


# Slurm warns up to a minute earlier than asked to: the processes must have begun by then.
LIMIT = {"time": "0:03:00", "warning": 60}


@pytest.mark.timeout(500)
def test_a_time_limit_saves_and_the_job_that_is_requeued_goes_on(slurm: SlurmCluster) -> None:
    slurm.write_file({**LIMIT, "requeue": True}, lease=10)
    run = slurm.start(*LONG)
    run.await_text("is queued again", timeout=200)
    assert run.result["exit_code"] == 75 and "saved at step" in run.said
    run.await_text("going on after step", timeout=150)
    run.signal("INT")
    assert run.wait(60) == 130, run.said
    assert_nothing_left(slurm, time.monotonic())


@pytest.mark.parametrize("below", [INSIDE, ""], ids=["inside", "in the batch job"])
def test_a_launcher_killed_in_the_allocation_leaves_nothing(slurm: SlurmCluster, below: str) -> None:
    slurm.write_file()
    slurm.write("script.py", STUBBORN)
    run = slurm.start("--show", "all", "script.py", below=below)
    run.await_text("] up", 3)
    at = time.monotonic()
    slurm.shell("kill -9 $(pgrep -n -f '^/opt/venv/bin/python -P -m hostmesh.launcher')")
    assert_nothing_left(slurm, at)
    code = run.wait(30)  # salloc keeps to itself what became of its command
    assert below or code == 137, run.said


def test_a_killed_follower_leaves_the_job_to_slurm(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.write("script.py", STUBBORN)
    run = slurm.start("--show", "all", "script.py")
    run.await_text("] up", 3)
    job = run.job
    run.signal("KILL")
    assert run.wait(10) == 137
    assert f"{job} RUNNING" in slurm.jobs()
    at = time.monotonic()
    slurm.shell(f"scancel {job}")
    assert_nothing_left(slurm, at)


def test_ctrl_c_stops_the_job_in_order(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.write("script.py", "import time\nprint('up', flush=True)\ntime.sleep(1000)")
    run = slurm.start("--show", "all", "script.py")
    run.await_text("] up", 3)
    at = time.monotonic()
    run.signal("INT")
    assert run.wait(30) == 130, run.said
    assert_nothing_left(slurm, at, 12)
    assert "Ctrl-C" in run.said


# Runs without a terminal.


def test_a_detached_run_answers_on_the_login_node(slurm: SlurmCluster) -> None:
    """Its launcher is on another node than the one that asks."""
    slurm.exec("node-0", "scontrol", "update", "NodeName=node-0", "State=DRAIN", "Reason=test")
    slurm.write_file({"nodes": 2})
    slurm.write("script.py", STUBBORN)
    assert slurm.start("--detach", "script.py").wait() == 0
    run = slurm.read("out").strip()
    await_true(lambda: slurm.launch("stacks", run).count("script.py") >= 2, 60, "both processes are up")
    told = json.loads(slurm.launch("status", run, "--json"))
    assert told["state"] == "running" and [each["host"] for each in told["hosts"]] == ["node-1", "node-2"]
    assert sorted(slurm.launch("exec", run, "--", "hostname").splitlines()) == ["[node-1] node-1", "[node-2] node-2"]
    at = time.monotonic()
    assert "has ended: stopped by SIGTERM" in slurm.launch("stop", run, "--now")
    assert_nothing_left(slurm, at)


def test_a_run_in_the_queue_is_listed_and_stopped(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.shell("sbatch --nodes=3 --exclusive --time=5 --wrap 'sleep 300'")
    await_true(lambda: "RUNNING" in slurm.jobs(), 20, "a full partition")
    assert slurm.start("--detach", "--", "true").wait() == 0
    run = slurm.read("out").strip()
    assert f"{run}" in slurm.launch("runs") and "PENDING" in slurm.launch("status", run)
    assert "before the run began: CANCELLED" in slurm.launch("stop", run)
    assert "PENDING" not in slurm.jobs()


# Jobs that do not start.


def test_a_job_that_waits_says_why_and_ctrl_c_cancels_it(slurm: SlurmCluster) -> None:
    slurm.write_file()
    slurm.shell("sbatch --nodes=3 --exclusive --time=5 --wrap 'sleep 300'")
    await_true(lambda: "RUNNING" in slurm.jobs(), 20, "a full partition")
    run = slurm.start("--", "true")
    run.await_text("is waiting: ", timeout=30)
    assert "Resources" in run.said or "Priority" in run.said
    run.signal("INT")
    assert run.wait(20) == 130, run.said
    assert run.job not in slurm.jobs()


def test_a_job_that_would_wait_for_ever_is_told_the_limit_and_given_up(slurm: SlurmCluster) -> None:
    slurm.write_file({"partition": "short", "time": "0:30:00", "wait": 3})
    run = slurm.start("--", "true")
    assert run.wait(30) == 143, run.said
    assert "PartitionTimeLimit" in run.said and "MaxTime=00:05:00" in run.said and "has waited for 3 s" in run.said
    assert not slurm.jobs()


def test_a_partition_that_is_not_there_is_refused_in_sbatchs_words(slurm: SlurmCluster) -> None:
    slurm.write_file({"partition": "gpus"})
    run = slurm.start("--", "true")
    assert run.wait(30) == 2, run.said
    assert "invalid partition specified: gpus" in run.said and not slurm.jobs()


def test_check_looks_at_every_node_of_an_allocation(slurm: SlurmCluster) -> None:
    slurm.write_file()
    said = slurm.shell(
        f"PYTHONPATH=/repo/src PYTHONDONTWRITEBYTECODE=1 {INSIDE} "
        "/opt/venv/bin/python -P -m hostmesh.launcher check --hosts cluster.yaml"
    )
    assert f"all {len(NODES)} hosts" in said
