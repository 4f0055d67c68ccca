"""Whole runs over real SSH: two hosts that are both this machine, behind one sshd."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Launch, Script, Start, await_true, busyness, processes_of
from sshd import Sshd, free_port, needs_sshd

from hostmesh.launcher.output.run_folder import Run

pytestmark = needs_sshd

SECRET = "tops3cret-4711"
HELLO = """
import jax
jax.distributed.initialize()
print("process", jax.process_index(), "of", jax.process_count())
"""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd") / "server")
    yield server
    server.close()


Cluster = Callable[..., str]


@pytest.fixture
def cluster(sshd: Sshd, tmp_path: Path) -> Cluster:
    """Write a cluster file with hosts a and b, and what is given; returns its name."""
    hosts = "\n".join(f"Host {name}\n  HostName 127.0.0.1\n  Port {sshd.port}" for name in ("a", "b"))
    unreachable = f"Host closed\n  HostName 127.0.0.1\n  Port {free_port()}"
    everywhere = f"Host *\n  IdentityFile {sshd.identity}\n  UserKnownHostsFile {sshd.known_hosts}"
    (tmp_path / "ssh_config").write_text(f"{hosts}\n{unreachable}\n{everywhere}\n  IdentitiesOnly yes\n")

    def write(**settings: Any) -> str:
        full = {
            "hosts": [{"address": "a", "internal_address": "127.0.0.1"}, "b"],
            "ssh": {"config": "ssh_config"},
            "python": sys.executable,
            "workdir": str(tmp_path / "work"),
            "sync": {"from": "."},
            "env": {"JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path / "cache")},
            **settings,
        }
        text = json.dumps({key: value for key, value in full.items() if value is not None})
        (tmp_path / "c.yaml").write_text(text)
        (tmp_path / ".gitignore").write_text("/work\n/cache\n/stderr-*\n")
        return "c.yaml"

    return write


def test_an_unmodified_script_runs_on_hosts_reached_by_ssh(cluster: Cluster, launch: Launch, script: Script) -> None:
    done = launch("--hosts", cluster(), script(HELLO))
    assert done.returncode == 0, done.stderr
    assert {"[0 a] process 0 of 2", "[1 b] process 1 of 2"} <= set(done.stdout.splitlines())


@pytest.mark.slow
def test_what_was_changed_and_deleted_here_is_so_there(
    cluster: Cluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    listing = 'import os; print(sorted(os.listdir(".")), open("a\'; echo foo").read())'
    script("1", "a'; echo foo")
    script("x", "old.txt")
    assert "['.gitignore', '.hostmesh', \"a'; echo foo\", 'c.yaml', 'old.txt'" in (
        launch("--hosts", cluster(), script(listing)).stdout
    )
    (tmp_path / "work" / "made-by-a-job").touch()
    (tmp_path / "old.txt").unlink()
    script("2", "a'; echo foo")
    said = launch("--hosts", cluster(), script(listing)).stdout
    assert "old.txt" not in said and "'made-by-a-job'" in said and "] 2\n" in said


@pytest.mark.slow
def test_a_setup_runs_once_for_each_content_and_its_output_is_kept(
    cluster: Cluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    file = cluster(setup=["echo setting up | tee -a trace"])
    for text in ("1", "1", "2"):
        done = launch("--hosts", file, script(f"x = {text}"))
        assert done.returncode == 0, done.stderr
    # Both hosts are one machine with one workdir, so the second finds it done.
    assert (tmp_path / "work" / "trace").read_text() == "setting up\n" * 2
    logs = sorted(tmp_path.glob("runs/*/logs/setup-*.log"))
    assert [log.read_text() for log in logs] == ["$ echo setting up | tee -a trace\nsetting up\n"] * 2


def test_a_setup_that_fails_stops_the_run_and_names_the_host(cluster: Cluster, launch: Launch, script: Script) -> None:
    done = launch("--hosts", cluster(setup=["echo no such package >&2; exit 4"]), script("print('ran')"))
    assert done.returncode == 2 and "ran" not in done.stdout
    assert "a: setup: `echo no such package >&2; exit 4` exited with 4" in done.stderr
    assert "no such package\n" in done.stderr


def test_every_host_that_cannot_be_used_is_told(cluster: Cluster, launch: Launch, script: Script) -> None:
    hosts = ["a", "closed", {"address": "b", "user": "nobody-of-that-name"}]
    began = time.monotonic()
    done = launch("--hosts", cluster(hosts=hosts), script("print('ran')"))
    assert done.returncode == 69 and "ran" not in done.stdout
    assert "launch: nothing was started: 2 of 3 hosts cannot be used\n" in done.stderr
    assert re.search(r"^  closed: .*onnection refused", done.stderr, re.MULTILINE)
    assert re.search(r"^  b: login as nobody-of-that-name was refused", done.stderr, re.MULTILINE)
    assert time.monotonic() - began < 30 * busyness()


@pytest.mark.slow
def test_a_python_that_is_missing_on_one_host_is_told_with_its_name(
    cluster: Cluster, launch: Launch, script: Script
) -> None:
    hosts = [{"address": "a", "internal_address": "127.0.0.1"}, {"address": "b", "python": "~/no/such/python"}]
    done = launch("--hosts", cluster(hosts=hosts), script("pass"))
    assert done.returncode == 2
    assert "  b: python: found no executable ~/no/such/python" in done.stderr and "  a: " not in done.stderr


def test_a_host_without_python_for_the_agent_is_told(cluster: Cluster, launch: Launch, script: Script) -> None:
    done = launch("--hosts", cluster(agent_python="python3.77"), script("pass"))
    assert done.returncode == 69
    for host in ("a", "b"):
        assert f"  {host}: found no python3.77 for the agent; install Python 3.9 or newer there" in done.stderr


def test_an_address_the_coordinator_cannot_have_is_told(cluster: Cluster, launch: Launch, script: Script) -> None:
    hosts = [{"address": "a", "internal_address": "192.0.2.1"}, "b"]
    done = launch("--hosts", cluster(hosts=hosts), script("pass"))
    assert done.returncode == 2 and "  a: cannot bind 192.0.2.1 for the coordinator" in done.stderr


def test_a_killed_launcher_leaves_no_process_behind_ssh(cluster: Cluster, start: Start, script: Script) -> None:
    run = start("--hosts", cluster(), script("import time; print('up', flush=True); time.sleep(1000)"))
    run.await_event("process started", count=2)
    assert len(processes_of(run.id)) >= 6
    run.launcher.send_signal(signal.SIGKILL)
    assert await_true(lambda: not processes_of(run.id), 10, "everything of the run is gone") < 10


def test_ctrl_c_while_hosts_are_set_up_leaves_nothing(cluster: Cluster, start: Start, script: Script) -> None:
    run = start("--hosts", cluster(setup=["sleep 1000"]), script("pass"))
    run.await_event("host synced", count=2)
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    assert processes_of(run.id) == set()


def test_no_secret_is_on_a_command_line_or_in_a_file_of_the_run(cluster: Cluster, start: Start, script: Script) -> None:
    text = "import os, time; print('got', os.environ['TOKEN'], flush=True); open('go').read(); time.sleep(1000)"
    file = cluster(secrets=["TOKEN"], setup=['test -n "$TOKEN" && echo "token $TOKEN" && touch go'])
    run = start("--hosts", file, script(text), env={"TOKEN": SECRET})
    run.await_event("process started", count=2)
    await_true(lambda: b"got" in run.log(0) and b"got" in run.log(1), 30, "both processes have seen the secret")
    lines = [read_bytes(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert any(b"hostmesh" in line or b"-I" in line for line in lines)
    assert not [line for line in lines if SECRET.encode() in line]
    run.launcher.send_signal(signal.SIGINT)
    run.wait(20)
    files = [path for path in Run(run.run_folder).folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"plan.json", "events.jsonl", "process-000.log", "result.json"} <= names
    assert names & {"setup-000.log", "setup-001.log"}  # one machine: whichever came first was set up
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    assert SECRET not in run.stderr and SECRET not in json.dumps(run.seen)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_check_draws_a_table_and_starts_nothing(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--hosts", cluster())
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[:4] == ["host", "up", "python", "jax"] and "port" in head
    assert "ok" in rows[0] and not (tmp_path / "runs").exists() and not (tmp_path / "work").exists()


def test_check_tells_of_every_host(cluster: Cluster, launch: Launch) -> None:
    hosts = [{"address": "a", "internal_address": "127.0.0.1"}, "closed", {"address": "b", "python": "/no/python"}]
    done = launch("check", "--hosts", cluster(hosts=hosts), "--json")
    assert done.returncode == 69
    found = {(row["host"], row["check"]): row["level"] for row in json.loads(done.stdout)}
    assert found["closed", "reachable"] == "failure" and found["b", "python"] == "failure"
    assert found["a", "jax"] == "ok" and ("closed", "jax") not in found


def test_check_on_this_machine(launch: Launch) -> None:
    done = launch("check", "--local", "2")
    assert done.returncode == 0 and "localhost" in done.stdout


def test_check_without_hosts_is_told(launch: Launch) -> None:
    done = launch("check")
    assert done.returncode == 2 and "wanted --hosts FILE or --local N" in done.stderr


FAULT = """
import jax, os
from jax.experimental import multihost_utils
jax.distributed.initialize()
for k in range(10**9):
    if k == 20 and jax.process_index() == 0: {fault}
    multihost_utils.sync_global_devices(str(k))
"""


@pytest.mark.parametrize(
    ("fault", "code", "told"),
    [
        ("os.abort()", 134, "process 0 on a was killed by signal 6 (SIGABRT)"),
        ("os._exit(0)", 1, "process 0 on a left with exit code 0 while others were still working"),
    ],
    ids=["abort", "leave"],
)
@pytest.mark.slow
def test_the_end_of_the_coordinator_is_told_and_not_what_it_did_to_others(
    cluster: Cluster, start: Start, script: Script, fault: str, code: int, told: str
) -> None:
    hosts = [{"address": "a", "internal_address": "127.0.0.1"}, "b"]
    run = start("--hosts", cluster(hosts=hosts, processes_per_host=2), script(FAULT.format(fault=fault)))
    assert run.wait() == code, run.stderr
    assert run.result["message"] == f"the run failed: {told}" and run.result["process_id"] == 0
