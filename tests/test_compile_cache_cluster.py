"""Compiled programs on real hosts, which share no disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import HANGS, LiveRun, Script, Start, await_true
from docker_cluster import HOSTS, DockerCluster, lend_cluster, start_cluster  # noqa: F401
from test_compile_cache import TRAIN, TWO_TRAIN

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

# An entry's name and content, and nothing of a file that is being written.
LIST = "cd ~/.cache/hostmesh/compiled/jax-*/ 2>/dev/null && ls | grep -x '[0-9a-f]*' | xargs -r sha256sum || true"


def forget_all(cluster: DockerCluster) -> None:
    for host in HOSTS:
        shell(cluster, host, "rm -rf ~/.cache/hostmesh/compiled")


def shell(cluster: DockerCluster, host: str, command: str) -> str:
    return cluster.exec(host, "su", "trainer", "-c", command)


def count_compiled(run: LiveRun) -> list[int]:
    assert run.wait(HANGS) == 0, run.stderr
    return [int(count) for count in re.findall(r"\] compiled (\d+) of", run.stderr)]


def test_a_second_start_compiles_nothing_on_any_host(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path
) -> None:
    forget_all(cluster)
    args = ("--hosts", cluster.write_file(tmp_path), script(TRAIN))
    first = count_compiled(start(*args))
    assert len(first) == len(HOSTS) and min(first) > 5
    assert count_compiled(start(*args)) == [0] * len(HOSTS)


def test_hosts_that_compile_nothing_are_carried_the_programs(
    cluster: DockerCluster, start: Start, script: Script, tmp_path: Path
) -> None:
    forget_all(cluster)
    run = start("--hosts", cluster.write_file(tmp_path), script(TWO_TRAIN))
    await_true(lambda: run.stderr.count("] compiled ") == 2, 120, "two processes train")
    kept = shell(cluster, HOSTS[0], LIST)
    await_true(lambda: shell(cluster, HOSTS[3], LIST) == kept, 60, "all programs are carried")
    run.close()
    assert kept.count("\n") > 5 and shell(cluster, HOSTS[2], LIST) == kept
    again = start("--hosts", cluster.write_file(tmp_path, hosts=list(HOSTS[2:])), script(TRAIN))
    assert count_compiled(again) == [0, 0]
