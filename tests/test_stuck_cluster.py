"""Runs that stand still on real hosts: a stuck process is named, and two hosts that cannot reach each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import HANGS, LiveRun, Script, Start, await_true
from docker_cluster import HOSTS, TALKING, DockerCluster, docker, lend_cluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("kind", "text"), [("stop", "is stopped (SIGSTOP, or a debugger)"), ("lock", "sleeps or waits for a lock at")]
)
def test_a_stuck_process_is_named(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path, kind: str, text: str
) -> None:
    (tmp_path / "faults.yaml").write_text(f"faults: [{{kind: {kind}, process: 2, after: 8}}]\n")
    file = cluster.write_file(tmp_path)
    run: LiveRun = start("--hosts", file, "--hang-timeout", "8", "--chaos", "faults.yaml", script(TALKING))
    assert run.wait(HANGS) == 124, run.stderr
    assert f"the run hangs: process 2 on host-2 {text}" in run.result["message"]
    assert run.result["verdict"]["kind"] == "hang" and not cluster.left_of(run.id)


def test_two_hosts_that_cannot_reach_each_other(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path
) -> None:
    run: LiveRun = start("--hosts", cluster.write_file(tmp_path), "--hang-timeout", "12", script(TALKING))
    await_true(lambda: run.stderr.count("] up") == len(HOSTS), 90, "processes on all hosts")
    format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = docker("inspect", "--format", format, cluster.container("host-2")).strip()
    cluster.break_with("host-1", f"ip route add blackhole {address}")
    assert run.wait(HANGS) == 124, run.stderr
    assert "the run hangs: host-1 and host-2 cannot reach each other" in run.result["message"]
    assert run.result["process_id"] is None and not cluster.left_of(run.id)
