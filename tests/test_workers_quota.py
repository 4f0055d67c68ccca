"""The cores that a container grants decide how many workers read, not those of its host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hostmesh.worker.identity import LOCAL_PROCESSES
from hostmesh.worker.reading import cpu_quota
from hostmesh.worker.reading.choice import WorkerChoice, choose_workers
from hostmesh.worker.reading.cpu_quota import find_quota, list_folders, parse_quota


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "200000 100000\n"}, 2.0),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "max\n"}, None),
        ({"cpu.max": "100000\n"}, None),
        ({"cpu.max": "a b\n"}, None),
        ({"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.cfs_quota_us": "400000\n"}, None),
        ({"cpu.cfs_quota_us": "400000\n", "cpu.cfs_period_us": "0\n"}, None),
        ({}, None),
    ],
)
def test_a_quota_is_read_from_the_files_of_a_group(files: dict[str, str], cores: float | None) -> None:
    assert parse_quota(files) == cores


@pytest.mark.parametrize(
    ("groups", "folders"),
    [
        ("0::/\n", ["/m", "/m/unified"]),
        ("0::/a/b\n", ["/m/a/b", "/m/a", "/m", "/m/unified/a/b", "/m/unified/a", "/m/unified"]),
        ("5:memory:/x\n4:cpu,cpuacct:/x\n3:cpuset:/x\n", ["/m/cpu,cpuacct/x", "/m/cpu,cpuacct", "/m/cpu/x", "/m/cpu"]),
        ("1:name=systemd:/a\nnonsense\n", ["/m", "/m/unified"]),
        ("", []),
    ],
)
def test_the_groups_of_a_process_are_those_above_it_too(groups: str, folders: list[str]) -> None:
    assert list_folders(groups, "/m") == folders


def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "groups").write_text("0::/a/b/c\n")
    assert find_quota(tmp_path / "groups", str(tmp_path)) is None
    (tmp_path / "a" / "b" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    (tmp_path / "cpu.max").write_text("800000 100000\n")
    assert find_quota(tmp_path / "groups", str(tmp_path)) == 2.5
    assert find_quota(tmp_path / "missing", str(tmp_path)) is None


def test_a_container_gets_as_many_workers_as_it_may_use_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(cpu_quota, "find_quota", lambda: 2.5)
    assert choose_workers(None, 0) == WorkerChoice(threads=3)
    assert choose_workers("processes", 0) == WorkerChoice(processes=3)
    assert choose_workers(64, 0) == WorkerChoice(threads=64, is_asked=True)
    monkeypatch.setenv(LOCAL_PROCESSES, "2")
    assert choose_workers(None, 0) == WorkerChoice()
    monkeypatch.setattr(cpu_quota, "find_quota", lambda: 1000.0)
    assert choose_workers(None, 0) == WorkerChoice(threads=32)
