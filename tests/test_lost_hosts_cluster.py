"""Hosts that are lost for real: killed for good, silent for a while, cut off; the run goes on, and nothing is left."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, LiveRun, Start
from docker_cluster import HOSTS, DockerCluster, lend_cluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
JOB = ("--batch-size", "48", "--checkpoint-every", "20", "--steps", "240")


def begin(cluster: DockerCluster, start: Start, folder: Path, **settings: Any) -> LiveRun:
    """The built-in job, which has saved once."""
    saved = f"/shared/{uuid.uuid4().hex}"
    run = start("--hosts", cluster.write_file(folder, lease=4, **settings), *JOB, "--checkpoint-dir", saved)
    run.await_event("saved", timeout=HANGS)
    return run


def assert_all_went_well(run: LiveRun, cluster: DockerCluster, hosts: tuple[str, ...]) -> None:
    assert run.wait(HANGS) == 0, run.stderr
    assert run.result["audit"]["exact"] is True, run.result["audit"]
    assert not cluster.left_of(run.id, hosts)


def seated(run: LiveRun) -> list[list[str]]:
    """The hosts that took part, each time that they changed."""
    events = map(json.loads, (run.run_folder / "events.jsonl").read_text().splitlines())
    return [event["hosts"] for event in events if event["event"] == "hosts seated"]


@pytest.mark.parametrize("victim", ["host-0", "host-1"])
def test_a_spare_takes_the_place_of_a_host_that_is_gone_for_good(
    cluster: DockerCluster, start: Start, tmp_path: Path, victim: str
) -> None:
    run = begin(cluster, start, tmp_path, spares=1)
    cluster.kill(victim)
    left = tuple(host for host in HOSTS if host != victim)
    assert_all_went_well(run, cluster, left)
    assert seated(run) == [["host-3" if host == victim else host for host in HOSTS[:3]]]
    assert f"launch: host-3 takes the place of {victim}" in run.stderr


def test_a_run_shrinks_without_a_host_that_is_gone_for_good(
    cluster: DockerCluster, start: Start, tmp_path: Path
) -> None:
    run = begin(cluster, start, tmp_path, min_hosts=3, rejoin=0)
    cluster.kill("host-0")
    assert_all_went_well(run, cluster, HOSTS[1:])
    assert seated(run) == [list(HOSTS[1:])]


def test_a_host_that_was_silent_takes_part_again(cluster: DockerCluster, start: Start, tmp_path: Path) -> None:
    run = begin(cluster, start, tmp_path, min_hosts=3, rejoin=0)
    cluster.pause("host-2")
    run.await_event("hosts seated", timeout=HANGS)
    cluster.unpause("host-2")
    assert_all_went_well(run, cluster, HOSTS)
    assert seated(run) == [["host-0", "host-1", "host-3"], list(HOSTS)]


def test_a_host_that_is_waited_for_comes_back(cluster: DockerCluster, start: Start, tmp_path: Path) -> None:
    run = begin(cluster, start, tmp_path, restarts=1)
    cluster.pause("host-2")
    run.await_event("host lost", timeout=HANGS)
    cluster.unpause("host-2")
    assert_all_went_well(run, cluster, HOSTS)
    assert [each["outcome"] for each in run.result["attempts"]] == ["host lost", "succeeded"]
