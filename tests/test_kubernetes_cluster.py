"""Real pods: training on them, and what is said and left when one of them, or the launcher, goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Launch, LiveRun, Script, Start, await_true, busyness
from docker_cluster import TALKING
from kubernetes_cluster import LEASE, KubernetesCluster, find_cluster  # noqa: F401

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]

SOON = 10.0
PODS = 4
Begin = Callable[..., LiveRun]
EATS = """
import jax
jax.distributed.initialize()
print("up", flush=True)
import time
time.sleep(3)
if jax.process_index() == 1:
    eaten = [b"x" * (16 << 20) for _ in range(1000)]
time.sleep(600)
"""


@pytest.fixture
def begin(kubernetes: KubernetesCluster, start: Start, script: Script, tmp_path: Path) -> Begin:
    """Start a script on all pods and wait until it is up there."""

    def run(text: str, **settings: Any) -> LiveRun:
        live = start("--hosts", kubernetes.write_file(tmp_path, **settings), script(text), env=kubernetes.env)
        await_true(lambda: live.stderr.count("] up") == settings.get("pods", PODS), 90, "processes on all pods")
        return live

    return run


def assert_nothing_left(kubernetes: KubernetesCluster, run_id: str, since: float) -> None:
    """A kubelet takes up to ten seconds more to tell that a pod that was deleted, and whose containers have ended, is
    gone."""
    while left := [name_of(each) for each in kubernetes.find(run_id) if not has_ended(each)]:
        assert time.monotonic() - since < SOON * busyness(), f"left {SOON * busyness():.0f} s later: {left}"
        time.sleep(0.2)


def name_of(found: dict[str, Any]) -> str:
    return f"{found['kind']} {found['metadata']['name']}"


def has_ended(found: dict[str, Any]) -> bool:
    """A pod that is being deleted, and runs nothing any more."""
    states = [each["state"] for each in found["status"].get("containerStatuses", ())]
    return (
        bool(found["metadata"].get("deletionTimestamp"))
        and bool(states)
        and not any("running" in each for each in states)
    )


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def summary_of(run: LiveRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.run_folder / "summary.json").read_text())
    return found


# What works.


def test_the_built_in_job_ends_with_the_loss_of_local_processes(
    kubernetes: KubernetesCluster, start: Start, tmp_path: Path
) -> None:
    job = ("--steps", "40", "--seed", "7")
    far = start("--hosts", kubernetes.write_file(tmp_path), *job, env=kubernetes.env)
    assert far.wait(180) == 0, far.stderr
    assert_nothing_left(kubernetes, far.id, time.monotonic())
    near = start("--local", "4", "--devices", "2", *job)
    assert near.wait(120) == 0, near.stderr
    assert summary_of(far)["steps"] == 40
    assert summary_of(far)["loss"] == pytest.approx(summary_of(near)["loss"], abs=1e-5)


def test_an_unmodified_script_that_calls_initialize_runs(
    kubernetes: KubernetesCluster, launch: Launch, tmp_path: Path
) -> None:
    shutil.copy(REPO / "examples" / "hello.py", tmp_path)
    done = launch("--hosts", kubernetes.write_file(tmp_path), "hello.py", env=kubernetes.env)
    assert done.returncode == 0, done.stderr
    for process in range(PODS):
        assert f"process {process} of {PODS}: the sum over 8 devices is 28" in done.stdout


def test_a_run_on_pods_answers_and_is_stopped_from_another_terminal(
    kubernetes: KubernetesCluster, begin: Begin, launch: Launch
) -> None:
    run = begin(TALKING)
    names = sorted(launch("exec", run.id, "--", "hostname", env=kubernetes.env).stdout.splitlines())
    assert names == [f"[pod-{number}] hostmesh-{run.id}-{number}" for number in range(PODS)]
    told = json.loads(launch("stacks", run.id, "--json").stdout)
    assert [each["host"] for each in told["processes"]] == [f"pod-{number}" for number in range(PODS)]
    assert launch("stop", run.id, "--now").returncode == 0
    assert_nothing_left(kubernetes, run.id, time.monotonic())


# Faults.


def test_a_killed_worker_is_the_culprit(kubernetes: KubernetesCluster, begin: Begin) -> None:
    run = begin(TALKING)
    pid = run.await_event("process started", process_id=2)["pid"]
    kubernetes.kubectl("exec", f"hostmesh-{run.id}-2", "--", "kill", "-9", str(pid))
    assert run.wait(60) == 137, run.stderr
    assert (run.result["process_id"], run.result["host"]) == (2, "pod-2")
    assert_nothing_left(kubernetes, run.id, time.monotonic())


def test_a_deleted_pod_is_a_lost_host(kubernetes: KubernetesCluster, begin: Begin) -> None:
    run = begin(TALKING)
    kubernetes.kubectl("delete", "pod", f"hostmesh-{run.id}-2", "--wait=false")
    assert run.wait(60) == 69, run.stderr
    assert run.result["host"] == "pod-2" and "Kubernetes says: the pod" in run.result["message"]
    assert "deleted" in run.result["message"]
    assert_nothing_left(kubernetes, run.id, time.monotonic())


def test_a_pod_without_memory_is_told_to_be(kubernetes: KubernetesCluster, begin: Begin) -> None:
    """The kernel ends the process, or all of the container: then the engine says so."""
    run = begin(EATS, pods=2, spec={"resources": {"limits": {"memory": "700Mi"}}})
    assert run.wait(120) in (137, 69), run.stderr
    assert run.result["host"] == "pod-1"
    assert run.result["verdict"]["kind"] == "out of memory" or "OOMKilled" in run.result["message"]
    assert_nothing_left(kubernetes, run.id, time.monotonic())


def test_a_killed_launcher_leaves_nothing(kubernetes: KubernetesCluster, begin: Begin) -> None:
    run = begin(TALKING)
    os.kill(run.launcher.pid, signal.SIGKILL)
    assert_nothing_left(kubernetes, run.id, time.monotonic())
    await_true(lambda: not kubernetes.find(run.id), 30, "no object of the run")


def test_pods_that_nothing_holds_any_more_end_by_themselves(kubernetes: KubernetesCluster, begin: Begin) -> None:
    """As when the launcher's whole machine goes. Finished pods go with their owner where the cluster keeps its
    deadline; 1.20 does not."""
    run = begin(TALKING)
    [reaper] = [pid for pid in children_of(run.launcher.pid) if "hostmesh-reaper" in command_of(pid)]
    os.kill(reaper, signal.SIGKILL)
    os.kill(run.launcher.pid, signal.SIGKILL)
    await_true(lambda: not kubernetes.running(run.id), LEASE + SOON, "no pod that runs")
    kubernetes.kubectl("delete", "jobs,pods", f"--selector=hostmesh/run={run.id}", "--wait=false")
    assert_nothing_left(kubernetes, run.id, time.monotonic())


def test_pods_that_no_node_takes_are_given_up(kubernetes: KubernetesCluster, launch: Launch, tmp_path: Path) -> None:
    file = kubernetes.write_file(tmp_path, pods=2, spec={"nodeSelector": {"nobody": "has-this"}}, start_timeout=4)
    done = launch("--hosts", file, "--", "true", env=kubernetes.env)
    assert done.returncode == 69, done.stderr
    assert "Unschedulable (0/1 nodes are available" in done.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert_nothing_left(kubernetes, run.name, time.monotonic())


def test_an_image_that_is_not_there_is_told(kubernetes: KubernetesCluster, launch: Launch, tmp_path: Path) -> None:
    done = launch("--hosts", kubernetes.write_file(tmp_path, image="no-such-image"), "--", "true", env=kubernetes.env)
    assert done.returncode == 2 and "ErrImageNeverPull" in done.stderr
    [run] = (tmp_path / "runs").iterdir()
    assert_nothing_left(kubernetes, run.name, time.monotonic())
