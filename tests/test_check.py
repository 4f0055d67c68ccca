"""`launch check` as a command: its limits, what it counts as code, folders it must write, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import LAUNCH, Launch, Script, await_true, clean_env
from sshd import needs_sshd
from test_remote import Cluster, cluster, sshd  # noqa: F401  (fixtures)

pytestmark = needs_sshd


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    def write(text: str, name: str = "python") -> str:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    return write


def findings(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, Any]]:
    rows = json.loads(done.stdout)
    gravity = ["ok", "warning", "failure"]
    return {(row["host"], row["check"]): row for row in sorted(rows, key=lambda row: gravity.index(row["level"]))}


@pytest.mark.slow
def test_a_host_that_is_connected_and_never_finishes_has_its_time(
    cluster: Cluster,  # noqa: F811
    launch: Launch,
    program: Callable[..., str],
) -> None:
    hosts = [{"address": "a", "internal_address": "127.0.0.1"}, {"address": "b", "python": program("sleep 1000")}]
    done = launch("check", "--hosts", cluster(hosts=hosts), "--timeout", "10", "--json", timeout=240)
    assert done.returncode == 69
    found = findings(done)
    assert "it is connected, but has not finished looking around within 10 s" in found["b", "reachable"]["message"]
    assert found["a", "python"]["level"] == "ok" and "--timeout" in found["b", "reachable"]["message"]


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_a_time_limit_that_is_none_is_told(launch: Launch, text: str) -> None:
    done = launch("check", "--local", "1", "--timeout", text)
    assert done.returncode == 2 and f"found {text}, wanted a number of seconds above 0" in done.stderr


@pytest.mark.slow
def test_run_folders_are_no_code(cluster: Cluster, launch: Launch, script: Script) -> None:  # noqa: F811
    file = cluster()
    assert launch("--hosts", file, "--runs", "elsewhere", script("pass")).returncode == 0
    done = launch("check", "--hosts", file, "--runs", "elsewhere", "--json")
    assert findings(done)["a", "code"]["message"] == "the code is there"


@pytest.mark.parametrize("is_synced", [True, False])
@pytest.mark.quick("True")
def test_a_workdir_that_cannot_be_made_is_no_fine_host(
    cluster: Cluster,  # noqa: F811
    launch: Launch,
    tmp_path: Path,
    is_synced: bool,
) -> None:
    (tmp_path / "file").touch()
    settings = {} if is_synced else {"sync": None}
    done = launch("check", "--hosts", cluster(workdir=str(tmp_path / "file" / "work"), **settings), "--json")
    assert done.returncode == 1
    found = findings(done)["a", "disk"]
    assert found["level"] == "failure"
    assert ("cannot be written: Not a directory" if is_synced else "found no folder") in found["message"]


def test_ctrl_c_leaves_nothing_behind(
    cluster: Cluster,  # noqa: F811
    program: Callable[..., str],
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    python = program(f"echo $$ >> {pids}; exec sleep 1000")
    before = set(Path("/tmp").glob("hostmesh-*"))
    checking = subprocess.Popen(
        [*LAUNCH, "check", "--hosts", cluster(python=python)],
        cwd=tmp_path,
        env=clean_env({"TMPDIR": "/tmp"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        await_true(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60, "both hosts look around")
        made = set(Path("/tmp").glob("hostmesh-*")) - before
        checking.send_signal(signal.SIGINT)
        said, _ = checking.communicate(timeout=240)
    finally:
        checking.kill()
        checking.wait()
    assert checking.returncode == 130 and "Traceback" not in said
    started = [int(pid) for pid in pids.read_text().split()]
    await_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), 10, "what was started is gone")
    assert made
    await_true(lambda: not any(path.exists() for path in made), 10, "the agents' folders are gone")


def run_limited(limit: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *LAUNCH, *args]
    return subprocess.run(command, cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=240)


def test_more_hosts_than_open_files_are_told_before_any_is_touched(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps({"transport": "local", "hosts": ["x"], "processes_per_host": 400}))
    done = run_limited("-n 512", tmp_path, "check", "--hosts", "c.yaml")
    assert done.returncode == 2 and "512 are allowed here; raise ulimit -Hn" in done.stderr


# Before a run.


@pytest.mark.slow
def test_a_slow_python_is_waited_for_and_the_screen_says_so(
    cluster: Cluster,  # noqa: F811
    launch: Launch,
    script: Script,
    program: Callable[..., str],
) -> None:
    """Only when it is asked what it is: the worker itself starts at once."""
    slow = program(f'case "$*" in *importlib.metadata*) sleep 11;; esac; exec {sys.executable} "$@"')
    done = launch("--hosts", cluster(python=slow), script("print('ran')"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ran") == 2
    assert f"waiting for a, b to answer: its Python {slow} has yet to start" in done.stderr


def test_a_variable_that_no_linux_takes_is_told_before_any_host_is_touched(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    settings = {"transport": "local", "hosts": ["x"], "env": {"BIG": "v4lue" * 40_000}}
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    for command in (["--hosts", "c.yaml", script("pass")], ["check", "--hosts", "c.yaml"]):
        done = launch(*command)
        assert done.returncode == 2 and "v4lue" not in done.stderr + done.stdout
        assert "found BIG with 200,005 bytes, and Linux takes 131,072" in done.stderr and "python:" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("how", [[], ["--cold"]])
def test_an_environment_that_is_too_large_in_all_blames_no_python(
    script: Script, tmp_path: Path, how: list[str]
) -> None:
    """Linux takes a quarter of the stack's limit for all variables together."""
    many = {f"PART_{number}": "x" * 100_000 for number in range(3)}
    settings = {"transport": "local", "hosts": ["x"], "processes_per_host": 2, "env": many}
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    done = run_limited("-s 1024", tmp_path, "--hosts", "c.yaml", *how, script("pass"))
    assert done.returncode == 127 and "is too large for Linux; the largest are PART_0 with 100,008 bytes" in done.stderr


PROXY = {"http_proxy": "http://127.0.0.1:9"}  # nobody listens there
JOIN = """
import os, jax
jax.distributed.initialize()
print("joined", jax.process_index(), os.environ["no_proxy"])
"""


@pytest.mark.parametrize("how", [[], ["--cold"]])
@pytest.mark.slow
def test_a_proxy_of_this_machine_does_not_get_the_coordinator(launch: Launch, script: Script, how: list[str]) -> None:
    done = launch("--local", "2", *how, script(JOIN), env={**PROXY, "no_proxy": ".corp"})
    assert done.returncode == 0, done.stderr
    assert {"[0 localhost] joined 0 .corp,127.0.0.1", "[1 localhost] joined 1 .corp,127.0.0.1"} <= set(
        done.stdout.splitlines()
    )


@pytest.mark.slow
def test_a_proxy_of_the_hosts_does_not_get_the_coordinator(
    cluster: Cluster,  # noqa: F811
    launch: Launch,
    script: Script,
    tmp_path: Path,
) -> None:
    env = {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache"), **PROXY, "NO_PROXY": ".corp"}
    file = cluster(env=env)
    done = launch("--hosts", file, script(JOIN))
    assert done.returncode == 0, done.stderr
    assert {"[0 a] joined 0 .corp,127.0.0.1", "[1 b] joined 1 .corp,127.0.0.1"} <= set(done.stdout.splitlines())
    (events,) = tmp_path.glob("runs/*/events.jsonl")
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert {each["host"] for each in told if each["event"] == "proxy bypassed"} == {"a", "b"}
    done = launch("check", "--hosts", file, "--json")
    assert done.returncode == 0 and "a run adds that to no_proxy" in findings(done)["a", "proxy"]["message"]
    assert os.path.exists(tmp_path / "work")
