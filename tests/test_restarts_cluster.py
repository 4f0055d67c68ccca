"""Attempts on real hosts: agents stay connected, processes start again on the hosts where they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import HANGS, LiveRun, Script, Start
from docker_cluster import HOSTS, DockerCluster, lend_cluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

STEPS = """
import os, signal, socket
import jax, jax.numpy as jnp
from jax.experimental import multihost_utils
import hostmesh
hostmesh.join()
attempt = int(os.environ["HOSTMESH_ATTEMPT"])
for step in range(1, 9):
    multihost_utils.process_allgather(jnp.ones(3))
    hostmesh.report(step, loss=1.0)
    if (attempt, step, jax.process_index()) in {(1, 5, 2), (2, 3, 0)}:
        os.kill(os.getpid(), signal.SIGKILL)
print("attempt", attempt, "process", jax.process_index(), "of", jax.process_count(), flush=True)
"""


def test_processes_that_are_killed_start_again_on_their_hosts(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path
) -> None:
    """Process 0 as well, which is the coordinator."""
    run: LiveRun = start("--hosts", cluster.write_file(tmp_path), "--restarts", "3", script(STEPS))
    assert run.wait(HANGS) == 0, run.stderr
    culprits = [attempt["verdict"]["culprit"] for attempt in run.result["attempts"]]
    assert culprits == [{"process_id": 2, "host": "host-2"}, {"process_id": 0, "host": "host-0"}, None]
    assert run.stderr.count("] attempt 3 process") == len(HOSTS)
    events = [json.loads(line) for line in (run.run_folder / "events.jsonl").read_text().splitlines()]
    assert sum(event["event"] == "host connected" for event in events) == len(HOSTS)
    started = [(event["process_id"], event["host"]) for event in events if event["event"] == "process started"]
    assert sorted(started) == sorted([(number, host) for number, host in enumerate(HOSTS)] * 3)
    assert not cluster.left_of(run.id)
