"""What hosts said about themselves, judged as a table of cases, and drawn as a table for people."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from conftest import clean_env

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.host_names import drop_domain, join_names, shorten_names
from hostmesh.launcher.cluster.model import Cluster, Host
from hostmesh.launcher.preflight.differences import find_difference
from hostmesh.launcher.preflight.proxies import except_address, find_capturing
from hostmesh.launcher.preflight.report import COLUMNS, Finding, HostReports, judge, judge_run
from hostmesh.launcher.preflight.table import draw_table

CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
HOSTS = ["gpu-a", "gpu-b", "gpu-c", "gpu-d"]
GOOD: MappingProxyType[str, Any] = MappingProxyType(
    {
        "time": 0.0,
        "platforms": "",
        "python": {
            "path": "/venv/bin/python",
            "version": "3.11.7",
            "packages": {"jax": "0.10.2", "jaxlib": "0.10.2", "numpy": "2.3.5", "libtpu": None},
        },
        "proxies": {},
        "name": {"host": "gpu", "addresses": ["10.0.0.3"]},
        "names": {},
        "temp": {"path": "/tmp", "size": 1 << 40, "free": 1 << 36},
        "workdir": {"path": "/job", "size": 1 << 40, "free": 1 << 36},
        "devices": {"tpu": 0, "cuda": 8, "rocm": 0},
        "visible": {},
        "holders": {"processes": [], "unseen": 0},
        "tpu_lock": None,
        "code": {"digest": "aa4adc852995", "synced": None, "changed": []},
        "shared_memory": {"path": "/dev/shm", "size": 1 << 34, "free": 1 << 33},
        "system": {"clock_is_kept": True},
    }
)
TPU = {"platforms": "tpu", "devices": {"tpu": 4, "cuda": 0, "rocm": 0}}
CPU = {"platforms": "cpu", "devices": {"tpu": 0, "cuda": 0, "rocm": 0}}
TRAINING = {"pid": 4121, "user": "alice", "command": "python train.py", "files": ["/dev/nvidia-uvm", "/dev/nvidia0"]}
LOCK = {"path": "/tmp/libtpu_lockfile", "owner": "bob", "can_be_opened": False}


def facts(**changes: Any) -> dict[str, Any]:
    """Of a good host, changed: `python__packages__jax="0.9.1"`."""
    found = deepcopy(dict(GOOD))
    for path, value in changes.items():
        *above, last = path.split("__")
        place = found
        for name in above:
            place = place[name]
        place[last] = deepcopy(value)
    return found


def judge_odd(odd: dict[str, Any], usual: dict[str, Any] | None = None, **more: Any) -> list[Finding]:
    """The problems of three usual hosts and gpu-b."""
    found = {0: facts(**(usual or {})), 1: facts(**odd), 2: facts(**(usual or {})), 3: facts(**(usual or {}))}
    return [finding for finding in judge(HostReports(HOSTS, found, **more)) if finding.level != "ok"]


def test_good_hosts_are_fine_in_every_column() -> None:
    reports = HostReports(
        HOSTS,
        {host: facts() for host in range(4)},
        offsets=dict.fromkeys(range(4), (0.01, 0.02)),
        ports={1: None, 2: None, 3: None},
        processes=[2] * 4,
        coordinator="10.0.0.9",
    )
    findings = judge(reports)
    assert {finding.level for finding in findings} == {"ok"}
    assert {(finding.host, finding.check) for finding in findings} == {(h, c) for h in range(4) for c in COLUMNS}


@pytest.mark.parametrize(
    ("odd", "check", "level", "words"),
    [
        ({"python__version": "3.12.1"}, "python", "failure", "python 3.12.1, the other 3 hosts have 3.11.7"),
        ({"python__version": "3.11.2"}, "python", "warning", "3.11.2"),
        (
            {"python": {"problem": "found no executable ~/py"}},
            "python",
            "failure",
            "found no executable ~/py — python:",
        ),
        (
            {"python__packages__jax": "0.9.1"},
            "jax",
            "failure",
            "jax 0.9.1, the other 3 hosts have 0.10.2 — run there: /venv/bin/python -m pip install jax==0.10.2",
        ),
        ({"python__packages__jax": "0.10.1"}, "jax", "failure", "0.10.1"),
        ({"python__packages__jaxlib": None}, "jaxlib", "failure", "no jaxlib, the other 3 hosts have 0.10.2"),
        ({"python__packages__numpy": "2.2.5"}, "numpy", "failure", "pip install numpy==2.3.5"),
        ({"python__packages__numpy": "2.3.4"}, "numpy", "warning", "2.3.4"),
        ({"python__packages__jax": None}, "jax", "failure", "no jax in /venv/bin/python — run there"),
        ({"code__digest": "bbbb"}, "code", "failure", "code bbbb, the other 3 hosts have aa4adc8"),
        ({"code__digest": None}, "code", "failure", "no Python file in workdir"),
        (
            {"temp__free": 50_000_000},
            "disk",
            "failure",
            "the temporary folder /tmp has 50 MB left — free some space or set TMPDIR",
        ),
        ({"workdir__free": 500_000_000}, "disk", "warning", "workdir /job has 500 MB left"),
        ({"workdir": {"problem": "no answer within 6 s"}}, "disk", "failure", "workdir: no answer within 6 s"),
        ({"shared_memory__free": 64 << 20}, "memory", "warning", "/dev/shm"),
        ({"devices__cuda": 7}, "devices", "failure", "7 GPUs, the other 3 hosts have 8 GPUs"),
        ({"devices__cuda": 0}, "devices", "failure", "no TPU or GPU, the other 3 hosts have 8 GPUs"),
        ({"names": {"gpu-z": [], "gpu-a": ["10.0.0.1"]}}, "names", "failure", "cannot resolve gpu-z"),
        ({"names": {"gpu-z": None}}, "names", "warning", "its name server did not answer when asked for gpu-z"),
        ({"name": {"problem": "no answer within 6 s"}}, "names", "warning", "resolving its own name"),
        (
            {"holders__processes": [TRAINING]},
            "devices",
            "failure",
            "held by process 4121 (alice: python train.py) — wait until it ends, or run there: kill 4121",
        ),
        ({"holders__processes": [TRAINING], "visible": {CUDA: "0,1"}}, "devices", "warning", "4121"),
        ({"holders__processes": [TRAINING], "visible": {HIP: "0,1"}}, "devices", "failure", "4121"),
        (
            {"python": {"problem": "/p is there, but has not answered within 60 s", "cause": "slow"}},
            *("python", "failure", "60 s — it is slow, not missing"),
        ),
        (
            {"python": {"problem": "/p cannot be started: its environment is too large", "cause": "environment"}},
            *("python", "failure", "too large — make env: in the cluster file smaller"),
        ),
        (
            {"workdir__is_there": False, "workdir__unwritable": None},
            *("disk", "failure", "found no folder /job for workdir — copy the code there, let sync: bring it"),
        ),
        (
            {"workdir__is_there": True, "workdir__unwritable": "Read-only file system"},
            *("disk", "warning", "workdir /job cannot be written: Read-only file system"),
        ),
    ],
)
def test_the_odd_host_out_is_named(odd: dict[str, Any], check: str, level: str, words: str) -> None:
    (finding,) = judge_odd(odd)
    assert (finding.host, finding.check, finding.level) == (1, check, level)
    assert words in finding.text and finding.cell + finding.message


@pytest.mark.parametrize(
    ("odd", "usual"),
    [
        ({"holders__processes": [{**TRAINING, "files": ["/dev/nvidia0"]}]}, {}),  # nvidia-persistenced and the like
        ({"holders__processes": [TRAINING], **CPU}, CPU),
        ({**CPU, "devices__cuda": 7}, CPU),
        ({**TPU, "tpu_lock": {**LOCK, "can_be_opened": True}}, TPU),
        ({"tpu_lock": LOCK}, {}),
        ({**CPU, "name__addresses": None}, CPU),
        ({"name__addresses": ["127.0.1.1"]}, {}),
        ({"proxies": {"http_proxy": "http://proxy:3128"}}, {}),
    ],
)
def test_what_does_no_harm_is_not_told(odd: dict[str, Any], usual: dict[str, Any]) -> None:
    assert judge_odd(odd, usual) == []


def test_without_jax_its_companions_are_not_asked_for_and_the_extra_fits_the_devices() -> None:
    packages = {"jax": None, "jaxlib": None, "numpy": None, "libtpu": None}
    (finding,) = judge_odd({"python__packages": packages})
    assert finding.fix.endswith("pip install 'jax[cuda12]==0.10.2'")
    (finding,) = judge_odd({"python__packages": packages, **TPU}, TPU)
    assert finding.fix.endswith("pip install 'jax[tpu]==0.10.2'")
    (finding,) = judge_odd({"python__packages": packages, **CPU}, CPU)
    assert finding.fix.endswith("pip install jax==0.10.2")


def test_what_serves_accelerators_is_compared_where_they_are() -> None:
    (finding,) = judge_odd({**TPU, "python__packages__libtpu": "0.0.30"}, TPU)
    assert (finding.host, finding.check, finding.level) == (1, "jaxlib", "failure")
    assert finding.text == (
        "libtpu 0.0.30, the other 3 hosts have none — run there: /venv/bin/python -m pip uninstall libtpu"
    )
    (finding,) = judge_odd(TPU, {**TPU, "python__packages__libtpu": "0.0.30"})
    assert finding.text.startswith("no libtpu, the other 3 hosts have 0.0.30 — run there")
    assert judge_odd({**CPU, "python__packages__libtpu": "0.0.30"}, CPU) == []
    assert judge_odd({"python__packages__libtpu": "0.0.30"}) == []


@pytest.mark.parametrize(
    ("values", "majority", "odd", "is_tie"),
    [
        ([], None, (), False),
        (["1.0", "1.0"], "1.0", (), False),
        (["1.0", "2.0", "1.0"], "1.0", (1,), False),
        ([None, None, "2.0"], None, (2,), False),
        (["0.9.1", "0.10.2"], "0.10.2", (0,), True),
        (["1.0", None], "1.0", (1,), True),
    ],
)
def test_a_difference_has_a_majority_and_odd_hosts(
    values: list[str | None], majority: str | None, odd: tuple[int, ...], is_tie: bool
) -> None:
    difference = find_difference(dict(enumerate(values)))
    assert (difference.majority, difference.odd, difference.is_tie) == (majority, odd, is_tie)
    assert difference.concerned == (tuple(range(len(values))) if is_tie else odd)


def test_a_tie_names_both_groups_and_where_to_fix() -> None:
    found = {host: facts(**({"python__packages__jax": "0.9.1"} if host < 2 else {})) for host in range(4)}
    findings = [finding for finding in judge(HostReports(HOSTS, found)) if finding.level != "ok"]
    assert [finding.host for finding in findings] == [0, 1, 2, 3]
    (text,) = {finding.text for finding in findings}
    assert text == (
        "the hosts differ: jax 0.9.1 on gpu-a, gpu-b, jax 0.10.2 on gpu-c, gpu-d — "
        "run on gpu-a, gpu-b: /venv/bin/python -m pip install jax==0.10.2"
    )


def test_three_versions_name_the_hosts_that_are_not_like_most() -> None:
    versions = ["0.10.2", "0.9.1", "0.10.2", "0.8.0"]
    found = {host: facts(python__packages__jax=version) for host, version in enumerate(versions)}
    odd = {finding.host: finding.message for finding in judge(HostReports(HOSTS, found)) if finding.level == "failure"}
    assert odd == {1: "jax 0.9.1, 2 of 4 hosts have 0.10.2", 3: "jax 0.8.0, 2 of 4 hosts have 0.10.2"}


def test_a_platform_without_its_device_is_a_failure_told_once() -> None:
    for platform in ("tpu", "rocm", "tpu,cpu"):
        findings = judge_odd({"platforms": platform})
        assert [(finding.host, finding.check, finding.level) for finding in findings] == [(1, "devices", "failure")]
        assert f"JAX_PLATFORMS is {platform}, and there is no" in findings[0].message
    (finding,) = judge_odd({**TPU, "devices__tpu": 0}, TPU)
    assert finding.message == "JAX_PLATFORMS is tpu, and there is no TPU"
    assert judge_odd({"platforms": "cuda"}) == judge_odd({"platforms": "gpu"}) == []


def test_a_lock_that_libtpu_cannot_open_is_a_failure_unless_somebody_holds_the_tpu() -> None:
    (finding,) = judge_odd({**TPU, "tpu_lock": LOCK}, TPU)
    assert finding.text == (
        "bob left /tmp/libtpu_lockfile behind, and nobody holds the TPU — run there: sudo rm /tmp/libtpu_lockfile"
    )
    (finding,) = judge_odd({**TPU, "tpu_lock": LOCK, "holders__unseen": 9}, TPU)
    assert "(9 cannot)" in finding.message
    holder = {**TRAINING, "files": ["/dev/vfio/0"]}
    (finding,) = judge_odd({**TPU, "tpu_lock": LOCK, "holders__processes": [holder]}, TPU)
    assert "held by process 4121" in finding.message


def test_gpus_must_divide_evenly_between_processes() -> None:
    (finding,) = (each for each in judge_odd({"devices__cuda": 6}, {"devices__cuda": 6}, processes=[4] * 4)[:1])
    assert finding.message == "found 6 GPUs for 4 processes"
    wanted = "wanted processes_per_host to be one of 1, 2, 3, 6, or local_devices to list the GPUs of each process"
    assert finding.fix == wanted
    assert judge_odd({}, processes=[4] * 4) == []
    assert judge_odd(CPU, CPU, processes=[3] * 4) == []


@pytest.mark.parametrize(
    ("offsets", "levels"),
    [
        ([0.0, 0.4, -0.3, 0.0], {}),
        ([0.0, 2.5, 0.0, 0.0], {1: "warning"}),
        ([0.0, -31.5, 0.0, 0.0], {1: "failure"}),
        ([40.0, 40.0, 40.0, 40.0], {}),  # this machine's own clock is the wrong one
        ([40.0, 40.0, 40.0, 0.0], {3: "failure"}),
        ([40.0, 0.0], {0: "failure"}),
        ([40.0], {0: "failure"}),
        ([-40.0], {0: "failure"}),
    ],
)
def test_a_clock_is_compared_with_what_most_clocks_say(offsets: list[float], levels: dict[int, str]) -> None:
    hosts = HOSTS[: len(offsets)]
    given = {host: (offset, 0.1) for host, offset in enumerate(offsets)}
    findings = judge(HostReports(hosts, {host: facts() for host in range(len(hosts))}, offsets=given))
    assert {f.host: f.level for f in findings if f.check == "clock" and f.level != "ok"} == levels


def test_hosts_that_answer_late_are_not_told_to_fix_their_clocks() -> None:
    """All of them have the right time, and looked at their clocks at the beginning or at the end of a long wait."""
    late = {0: (-14.0, 15.0), 1: (-13.0, 14.0), 2: (-12.0, 14.0), 3: (15.0, 15.0)}
    reports = HostReports(HOSTS, dict.fromkeys(range(4), {"time": 1.0}), offsets=late)
    assert {finding.level for finding in judge(reports) if finding.check == "clock"} == {"ok"}


def test_an_offset_that_the_way_there_may_explain_is_none() -> None:
    assert judge_odd({}, offsets={1: (3.0, 2.5)}) == []
    (finding,) = judge_odd({"system__clock_is_kept": False}, offsets={1: (-3.0, 0.5)})
    assert finding.message == "its clock is 3.0 s behind" and "none keeps its clock now" in finding.fix


def test_a_workdir_that_a_sync_cannot_write_is_a_failure() -> None:
    odd = {"workdir__is_there": False, "workdir__unwritable": "Permission denied"}
    (finding,) = judge_odd(odd, syncs=True)
    assert (finding.check, finding.level) == ("disk", "failure") and "Permission denied" in finding.message
    assert judge_odd({"workdir__is_there": False, "workdir__unwritable": None}, syncs=True) == []


def test_amd_gpus_that_a_host_shares_are_told_by_their_own_variable() -> None:
    rocm = {"devices": {"tpu": 0, "cuda": 0, "rocm": 4}, "platforms": "rocm"}
    held = {**rocm, "holders__processes": [{**TRAINING, "files": ["/dev/kfd"]}]}
    levels = {name: judge_odd({**held, "visible": {name: "0"} if name else {}}, rocm)[0].level for name in ("", HIP)}
    assert levels == {"": "failure", HIP: "warning"}


def test_a_host_of_a_cpu_cluster_that_knows_itself_only_as_loopback_is_refused() -> None:
    odd = {**CPU, "name": {"host": "gpu-b", "addresses": ["127.0.1.1"]}}
    (finding,) = judge_odd(odd, CPU)
    assert (finding.host, finding.check, finding.level) == (1, "names", "failure")
    assert "gpu-b resolves to 127.0.1.1 alone" in finding.message and "/etc/hosts" in finding.fix
    assert judge_odd(odd, CPU, coordinator="127.0.0.1") == []
    (finding,) = judge_odd({**CPU, "name": {"host": "gpu-b", "addresses": []}}, CPU)
    assert "gpu-b does not resolve" in finding.message
    assert judge_odd({**odd, "collectives": "mpi"}, CPU) == []


def test_hosts_that_are_one_machine_may_know_themselves_as_loopback() -> None:
    name = {"host": "gpu", "addresses": ["127.0.1.1"], "network": "boot-1 4026531840"}
    assert judge_odd({**CPU, "name": name}, {**CPU, "name": name}, coordinator="10.0.0.9") == []
    other = {**name, "network": "boot-1 4026532001"}
    assert len(judge_odd({**CPU, "name": other}, {**CPU, "name": name}, coordinator="10.0.0.9")) == 4


def test_with_sync_other_code_is_no_problem_but_edits_on_a_host_are_told() -> None:
    reports = HostReports(
        HOSTS,
        {
            0: facts(code={"digest": "1", "synced": "abcdef123", "changed": []}),
            1: facts(code={"digest": "2", "synced": "other", "changed": []}),
            2: facts(code={"digest": None, "synced": None, "changed": []}),
            3: facts(code={"digest": "1", "synced": "abcdef123", "changed": ["a.py", "b.py", "c.py", "d.py"]}),
        },
        syncs=True,
        code="abcdef123",
    )
    code = [finding for finding in judge(reports) if finding.check == "code"]
    assert [(each.level, each.cell) for each in code] == [
        *(("ok", "abcdef1"), ("ok", "to sync"), ("ok", "to sync")),
        ("warning", "changed"),
    ]
    assert "a.py, b.py, c.py and 1 more in workdir changed" in code[-1].message


def test_a_port_that_cannot_be_reached_is_told_with_its_problem() -> None:
    (finding,) = judge_odd({}, ports={1: "cannot reach gpu-a", 2: None, 3: None})
    assert (finding.host, finding.check, finding.level) == (1, "port", "failure")
    assert "cannot reach gpu-a" in finding.message and "firewall" in finding.fix


def test_a_proxy_in_the_way_is_fine_since_a_run_goes_past_it() -> None:
    reports = HostReports(HOSTS[:1], {0: facts(proxies={"https_proxy": "http://proxy:3128"})}, coordinator="10.0.0.9")
    (finding,) = (each for each in judge(reports) if each.check == "proxy")
    assert finding.level == "ok" and "https_proxy=http://proxy:3128 would take connections" in finding.message
    assert finding.message.endswith("a run adds that to no_proxy of its processes")


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, {"no_proxy": "10.0.0.9"}),
        ({"no_proxy": "localhost"}, {"no_proxy": "localhost,10.0.0.9"}),
        ({"no_grpc_proxy": "a", "no_proxy": "b"}, {"no_grpc_proxy": "a,10.0.0.9"}),
        ({"NO_PROXY": ".corp"}, {"no_proxy": ".corp,10.0.0.9"}),
        ({"NO_PROXY": ".corp", "no_proxy": "b"}, {"no_proxy": "b,10.0.0.9"}),
    ],
)
def test_what_was_excepted_from_a_proxy_before_stays_so(env: dict[str, str], wanted: dict[str, str]) -> None:
    assert except_address(env, "10.0.0.9") == wanted
    assert find_capturing({"http_proxy": PROXY, **env, **wanted}, "10.0.0.9") is None


def test_of_an_unreachable_host_nothing_else_is_said() -> None:
    reports = HostReports(HOSTS, {0: facts()}, unreachable={1: "connection refused"}, offsets={1: (99.0, 0.0)})
    assert [finding.check for finding in judge(reports) if finding.host == 1] == ["reachable"]


def test_facts_that_are_absent_give_no_finding() -> None:
    reports = HostReports(HOSTS[:2], {0: {}, 1: {"time": 0.0, "platforms": "tpu"}})
    assert {finding.check for finding in judge(reports)} == {"reachable"}


def test_before_a_run_only_problems_are_told() -> None:
    cluster = Cluster(tuple(Host(name, 1) for name in HOSTS))
    found = {0: facts(), 1: facts(python__packages__jax="0.9.1"), 2: facts(), 3: facts(temp__free=500_000_000)}
    told = judge_run(cluster, found, {}, "10.0.0.9")
    assert [(finding.host, finding.check, finding.level) for finding in told] == [
        (1, "jax", "failure"),
        (3, "disk", "warning"),
    ]


# gRPC's rule. Every case was tried with jaxlib 0.10.2.

PROXY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("env", "address", "captured"),
    [
        ({}, "127.0.0.1", None),
        ({"http_proxy": PROXY}, "127.0.0.1", "http_proxy"),
        ({"HTTP_PROXY": PROXY}, "127.0.0.1", None),
        ({"all_proxy": PROXY}, "127.0.0.1", None),
        ({"grpc_proxy": PROXY}, "127.0.0.1", "grpc_proxy"),
        ({"https_proxy": "https://127.0.0.1:1"}, "127.0.0.1", None),
        ({"https_proxy": "", "http_proxy": PROXY}, "127.0.0.1", None),
        ({"https_proxy": "https://x:1", "http_proxy": PROXY}, "127.0.0.1", None),
        ({"http_proxy": "127.0.0.1:1"}, "127.0.0.1", None),
        ({"http_proxy": "HTTP://127.0.0.1:1"}, "127.0.0.1", "http_proxy"),
        ({"http_proxy": "socks5://127.0.0.1:1"}, "127.0.0.1", None),
        ({"http_proxy": PROXY, "no_proxy": "127.0.0.0/8"}, "127.0.0.1", None),
        ({"http_proxy": PROXY, "no_proxy": "0.0.1"}, "127.0.0.1", None),
        ({"http_proxy": PROXY, "NO_PROXY": "127.0.0.1"}, "127.0.0.1", "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": "*"}, "127.0.0.1", "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": "10.0.0.1, 127.0.0.1"}, "127.0.0.1", None),
        ({"http_proxy": PROXY, "no_proxy": "10.0.0.1, ,x"}, "127.0.0.1", None),
        ({"http_proxy": PROXY, "no_proxy": ""}, "127.0.0.1", "http_proxy"),
        ({"http_proxy": PROXY, "no_grpc_proxy": "x", "no_proxy": "127.0.0.1"}, "127.0.0.1", "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": "LOCALHOST"}, "localhost", None),
        ({"http_proxy": PROXY, "no_proxy": "127.0.0.1"}, "localhost", "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": ".localhost"}, "localhost", "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": "127.0.0.1:80"}, "127.0.0.1", "http_proxy"),
        ({"http_proxy": PROXY, "no_proxy": "10.0.0.0/8"}, "127.0.0.1", "http_proxy"),
    ],
)
def test_a_proxy_captures_what_grpc_would_send_to_it(env: dict[str, str], address: str, captured: str | None) -> None:
    assert find_capturing(env, address) == captured


JOIN = """
import socket, jax, os
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0, initialization_timeout=1)
os._exit(7)
"""


@pytest.mark.parametrize("env", [{"http_proxy": PROXY}, {"http_proxy": PROXY, "no_proxy": "127.0.0.0/8"}])
@pytest.mark.slow
def test_jax_follows_that_rule(env: dict[str, str], tmp_path: Path) -> None:
    kept = {name: value for name, value in clean_env().items() if "_proxy" not in name.lower()}
    program = subprocess.run(
        [sys.executable, "-c", JOIN], env={**kept, "JAX_PLATFORMS": "cpu", **env}, capture_output=True, timeout=60
    )
    assert (program.returncode == 7) == (find_capturing(env, "127.0.0.1") is None), program.stderr.decode()[-500:]


# Names in few words.


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], ""),
        (["gpu-a"], "gpu-a"),
        (["gpu-7"], "gpu-7"),
        (["gpu-0", "gpu-1", "gpu-2", "gpu-5"], "gpu-[0-2,5]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n9", "n10"], "n[9-10]"),
        (["n9", "n010", "n011"], "n[9,010-011]"),
        (["10.0.0.1", "10.0.0.2", "10.0.1.9"], "10.0.0.[1-2], 10.0.1.9"),
        (["tpu-0.zone1.example", "tpu-1.zone1.example"], "tpu-[0-1].zone1.example"),
        (["a", "b", "gpu-3", "gpu-2"], "a, b, gpu-[2-3]"),
    ],
)
def test_names_are_joined_as_a_cluster_file_spells_them(names: list[str], wanted: str) -> None:
    assert join_names(names) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_joined_names_read_back_as_the_same_hosts(seed: int, tmp_path: Path) -> None:
    pick = random.Random(seed)
    form = pick.choice(["n{}", "n{:02}", "n{:03}.rack7", "10.0.0.{}", "r{0}n{0}"])
    names = sorted({form.format(pick.randrange(120)) for _ in range(pick.randrange(1, 40))} | {"login", "db"})
    quoted = ", ".join(f'"{name}"' for name in join_names(names).split(", "))
    (tmp_path / "hosts.yaml").write_text(f"hosts: [{quoted}]")
    assert sorted(host.address for host in read_cluster(tmp_path / "hosts.yaml").hosts) == names


def test_names_that_do_not_fit_are_counted() -> None:
    assert shorten_names(["a-1", "b-1", "c-1"], 20) == "a-1, b-1, c-1"
    assert shorten_names(["a-1", "b-1", "c-1"], 8) == "a-1 +2"
    assert shorten_names(["a-very-long-name", "b"], 10) == "a-very… +1"


def test_only_a_domain_that_all_share_is_dropped() -> None:
    assert drop_domain(["a.example", "b.example"]) == ["a", "b"]
    for names in (["a.example", "b.other"], ["10.0.0.1", "11.0.0.1"], ["a.example", "b"], ["a", "b"], []):
        assert drop_domain(names) == names


# The table.


def draw(reports: HostReports) -> str:
    return draw_table(reports.hosts, judge(reports))


def test_hosts_that_are_all_fine_are_one_row() -> None:
    names = [f"tpu-{number}.us.example" for number in range(64)]
    found = {host: facts(**TPU, temp__free=(1 << 36) + host) for host in range(64)}
    assert draw(HostReports(names, found, offsets={host: (host / 1000, 0.1) for host in found})) == (
        "host          up  python  jax     jaxlib  numpy  code     clock  disk  shm  devices  names\n"
        "all 64 hosts  ok  3.11.7  0.10.2  0.10.2  2.3.5  aa4adc8  ok     ok    ok   4 TPUs   ok\n"
        "\n"
        "all 64 hosts are fine"
    )


def test_one_bad_host_among_many_stands_out() -> None:
    names = [f"tpu-{number}.us.example" for number in range(64)]
    found = {host: facts(**TPU, **({"python__packages__jax": "0.9.1"} if host == 63 else {})) for host in range(64)}
    assert draw(HostReports(names, found)) == (
        "host        up  python  jax      jaxlib  numpy  code     disk  shm  devices  names\n"
        "tpu-[0-62]  ok  3.11.7  0.10.2   0.10.2  2.3.5  aa4adc8  ok    ok   4 TPUs   ok\n"
        "tpu-63      ok  3.11.7  ✗ 0.9.1  0.10.2  2.3.5  aa4adc8  ok    ok   4 TPUs   ok\n"
        "\n"
        "✗ tpu-63.us.example: jax 0.9.1, the other 63 hosts have 0.10.2\n"
        "  run there: /venv/bin/python -m pip install jax==0.10.2\n"
        "\n"
        "1 host cannot train, 63 hosts fine"
    )


def test_failures_come_before_warnings_and_every_host_has_its_row() -> None:
    found = {0: facts(), 1: facts(shared_memory__free=1_000_000), 2: facts(devices__cuda=7)}
    reports = HostReports(HOSTS, found, unreachable={3: "cannot connect\nPermission denied (publickey)"})
    assert draw(reports) == (
        "host   up    python  jax     jaxlib  numpy  code     disk  shm     devices   names\n"
        "gpu-a  ok    3.11.7  0.10.2  0.10.2  2.3.5  aa4adc8  ok    ok      8 GPUs    ok\n"
        "gpu-b  ok    3.11.7  0.10.2  0.10.2  2.3.5  aa4adc8  ok    ! 1 MB  8 GPUs    ok\n"
        "gpu-c  ok    3.11.7  0.10.2  0.10.2  2.3.5  aa4adc8  ok    ok      ✗ 7 GPUs  ok\n"
        "gpu-d  ✗ no  –       –       –       –      –        –     –       –         –\n"
        "\n"
        "✗ gpu-d: cannot connect\n"
        "  Permission denied (publickey)\n"
        "\n"
        "✗ gpu-c: 7 GPUs, the other 2 hosts have 8 GPUs\n"
        "  look there with nvidia-smi or ls /dev (one may have failed), or take the host out of hosts:\n"
        "\n"
        "! gpu-b: /dev/shm, which data loaders and collectives use, has 1 MB left\n"
        "  give it more: shm_size: 1gb in a compose file, --shm-size with docker run, or a larger tmpfs\n"
        "\n"
        "2 hosts cannot train, 1 host with warnings, 1 host fine"
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_table_fits_100_columns_whatever_is_wrong(seed: int) -> None:
    pick = random.Random(seed)
    form = pick.choice(["gpu-{}", "a-host-with-a-long-name-{}.of.some.example", "{}.rack.example", "10.20.{}.7"])
    count = pick.choice([1, 4, 64])
    names = [form.format(number * pick.choice([1, 7])) + "x" * (number % 3) for number in range(count)]
    odd = [
        *(
            {"python__packages__jax": "0.9.1.dev20260101"},
            {"devices__cuda": 7},
            {"temp__free": 3},
            {"names": {"z": []}},
        ),
        *(
            {"python": {"problem": "none"}},
            {"code__digest": "b"},
            {"proxies": {"http_proxy": "http://p:1"}},
            {},
            {},
            {},
        ),
    ]
    found = {host: facts(**pick.choice(odd)) for host in range(count) if pick.random() < 0.95}
    offsets = {host: (pick.choice([0.0, 0.0, 99.0]), 0.0) for host in found}
    ports = {host: pick.choice([None, None, "no answer"]) for host in found}
    unreachable = {host: "connection refused" for host in range(count) if host not in found}
    reports = HostReports(names, found, unreachable, offsets, ports, coordinator="10.0.0.9")
    table = draw(reports).split("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 100 and len(table) >= 2


def test_a_cell_shows_the_worst_of_what_was_found_there() -> None:
    for free, other in ((500_000_000, 50_000_000), (50_000_000, 500_000_000), (50_000_000, 1 << 36)):
        row = draw(HostReports(["one"], {0: facts(temp__free=free, workdir__free=other)})).splitlines()[1]
        assert "✗ 50 MB" in row and "500" not in row


def test_the_same_problem_of_several_hosts_is_told_once() -> None:
    names = [f"gpu-{number}" for number in range(8)]
    found = {host: facts(**({"python__packages__jax": "0.9.1"} if host in (3, 5, 6) else {})) for host in range(8)}
    text = draw(HostReports(names, found))
    assert text.count("jax 0.9.1, 5 of 8 hosts have 0.10.2") == 1 and "✗ gpu-[3,5-6]: jax" in text


def test_two_thousand_hosts_are_judged_and_drawn_in_seconds() -> None:
    """In processor time; also where half of them differ from the other half, or each from each."""
    names = [f"node-{number}" for number in range(2000)]
    before = os.times()
    for of_host in (lambda host: "7", lambda host: str(host % 2), str):
        draw(HostReports(names, {host: facts(python__packages__jax=of_host(host)) for host in range(2000)}))
    after = os.times()
    assert after.user - before.user < 30
