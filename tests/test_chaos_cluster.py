"""Rehearsed faults on real hosts: a dropped network comes back with the end of the run, and faults cross SSH."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Launch, Script, Start, await_true
from docker_cluster import HOSTS, TALKING, DockerCluster, lend_cluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

STEPS = """
import hostmesh
for step in range(1, 6):
    hostmesh.report(step)
"""


def write_faults(folder: Path, *faults: str) -> str:
    (folder / "faults.yaml").write_text("faults:\n" + "".join(f"- {{{each}}}\n" for each in faults))
    return "faults.yaml"


def test_a_dropped_network_is_silent_and_comes_back(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path
) -> None:
    """Through `docker exec`, which needs no network: the launcher still hears what the host says."""
    hosts = [{"address": cluster.container(host), "user": "root"} for host in HOSTS]
    faults = write_faults(tmp_path, f"kind: drop network, host: {cluster.container('host-2')}, after: 15")
    file = cluster.write_file(tmp_path, "docker", hosts=hosts)
    run = start("--hosts", file, "--chaos", faults, script(TALKING))
    routes = cluster.exec("host-2", "ip", "route", "show")
    assert "default" in routes
    run.await_event("chaos", timeout=120)
    await_true(lambda: not cluster.exec("host-2", "ip", "route", "show"), 30, "no route is left")
    run.launcher.terminate()
    run.wait(60)
    assert cluster.exec("host-2", "ip", "route", "show") == routes
    assert not cluster.left_of(run.id)


def test_who_may_not_drop_a_network_is_told_at_the_start(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    faults = write_faults(tmp_path, "kind: drop network, host: host-2, after: 1")
    done = launch("--hosts", cluster.write_file(tmp_path), "--chaos", faults, script(TALKING), timeout=90)
    assert done.returncode not in (0, 69)
    assert "--chaos: drop network: only root, who has CAP_NET_ADMIN, may take a network down" in done.stderr


def test_a_fault_on_another_host_is_done_and_told(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    faults = write_faults(tmp_path, "kind: kill, process: 3, step: 2")
    done = launch("--hosts", cluster.write_file(tmp_path), "--chaos", faults, script(STEPS), timeout=90)
    assert done.returncode == 137, done.stderr
    assert "launch: CHAOS: now at step 2: kill: process 3 on host-3" in done.stderr
    assert "process 3 on host-3 was killed by signal 9" in done.stderr
