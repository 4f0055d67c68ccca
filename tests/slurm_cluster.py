"""A real Slurm of containers for tests: start launchers on its login node, look into it, break it, bring it back."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from conftest import REPO, await_true
from docker_cluster import docker

NODES = ("node-0", "node-1", "node-2")
SCRIPT = REPO / "docker" / "slurm.sh"
LAUNCH = "/opt/venv/bin/python -P -m hostmesh.launcher"
SETTINGS: dict[str, Any] = {"env": {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": 2}, "lease": 5}


class SlurmCluster:
    """The first node is the login node; each test has a folder of its own on the disk that all of them share."""

    def __init__(self) -> None:
        self.name = f"hostmesh-test-slurm-{os.getpid()}"
        self._damaged: set[str] = set()
        self.folder = "/shared"

    def up(self) -> None:
        self._run_script("up")

    def stop(self) -> None:
        self._run_script("stop")

    def _run_script(self, what: str) -> None:
        env = {**os.environ, "CLUSTER": self.name}
        done = subprocess.run([SCRIPT, what], env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr

    # Looking.

    def exec(self, node: str, *argv: str, user: str = "root") -> str:
        return docker("exec", "--user", user, f"{self.name}-{node}", *argv)

    def shell(self, text: str, node: str = "node-0", user: str = "trainer") -> str:
        return self.exec(node, "bash", "-c", f"cd {self.folder}; {text}", user=user)

    def read(self, name: str) -> str:
        return self.shell(f"cat {name} 2> /dev/null || true")

    def jobs(self) -> str:
        return self.exec("node-0", "squeue", "--noheader", "--format=%i %T %r")

    def left(self) -> dict[str, str]:
        """Processes of agents, workers and steps, on nodes that can be looked into."""
        look = (
            "ps -eo pid=,stat=,args= | grep -v ' Z' | grep -E 'HOSTMESH_RUN_ID|hostmesh|slurmstepd|srun|sleep 1000' | "
        )
        look += "grep -vE 'grep|mypy' || true"
        found = {node: self.exec(node, "sh", "-c", look).strip() for node in NODES if self.is_running(node)}
        return {node: lines for node, lines in found.items() if lines}

    def is_running(self, node: str) -> bool:
        state = docker("container", "inspect", "--format", "{{.State.Status}}", f"{self.name}-{node}")
        return state.strip() == "running"

    # Launchers.

    def begin_test(self, name: str) -> None:
        self.folder = f"/shared/{name}"
        self.exec("node-0", "install", "-d", "-o", "trainer", "-g", "trainer", self.folder)

    def write(self, name: str, text: str) -> None:
        self.shell(f"printf %s {shlex.quote(text)} > {name}")

    def write_file(self, slurm: dict[str, Any] | None = None, **changes: Any) -> None:
        hosts = {"slurm": {"nodes": 3, "time": "0:10:00", **(slurm or {})}}
        self.write("cluster.yaml", yaml.safe_dump({"hosts": hosts, **SETTINGS, **changes}))

    def launch(self, *args: str) -> str:
        """A command for a run, such as status, to its end."""
        return self.shell(f"PYTHONPATH=/repo/src PYTHONDONTWRITEBYTECODE=1 {LAUNCH} {shlex.join(args)} 2>&1 || true")

    def start(self, *args: str, below: str = "", env: str = "") -> Launcher:
        return Launcher(self, *args, below=below, env=env)

    # Breaking.

    def kill(self, node: str) -> None:
        self._damaged.add(node)
        docker("kill", f"{self.name}-{node}")

    def break_with(self, node: str, text: str) -> None:
        self._damaged.add(node)
        self.exec(node, "sh", "-euc", text)

    def restore(self) -> None:
        """No job is left, and every damaged node is made anew."""
        self.exec("node-0", "sh", "-c", "scancel --user=trainer; scancel --user=root")
        if self._damaged:
            docker("rm", "--force", *(f"{self.name}-{node}" for node in sorted(self._damaged)))
            self._damaged.clear()
        self._run_script("start")
        await_true(lambda: not self.jobs(), 30, "the end of all jobs")


class Launcher:
    """`launch` on the login node: what it says is in files on the shared disk."""

    def __init__(self, cluster: SlurmCluster, *args: str, below: str, env: str) -> None:
        self._cluster = cluster
        command = f"{below} {LAUNCH} --hosts cluster.yaml {shlex.join(args)}"
        whole = f"rm -f code; {env} {command} > out 2> err < /dev/null & echo $! > pid; wait $!; echo $? > code"
        inside = ("--env", "PYTHONPATH=/repo/src", "--env", "PYTHONDONTWRITEBYTECODE=1", "--env", "HOME=/home/trainer")
        docker(
            *("exec", "--detach", "--user", "trainer", "--workdir", cluster.folder, *inside),
            *(f"{cluster.name}-node-0", "bash", "-c", f"set -m; {whole}"),
        )

    @property
    def said(self) -> str:
        return self._cluster.read("out") + self._cluster.read("err")

    def await_text(self, text: str, count: int = 1, timeout: float = 90) -> None:
        def is_there() -> bool:
            assert self.said.count(text) >= count or not self._cluster.read("code"), f"ended: {self.said}"
            return self.said.count(text) >= count

        await_true(is_there, timeout, f"{count} x {text!r}")

    def wait(self, timeout: float = 120) -> int:
        await_true(lambda: self._cluster.read("code").strip(), timeout, f"the launcher's end: {self.said}")
        return int(self._cluster.read("code"))

    def signal(self, name: str) -> None:
        self._cluster.shell(f"kill -{name} $(cat pid)")

    @property
    def job(self) -> str:
        return self.said.partition("launch: job ")[2].split()[0]

    @property
    def run_folder(self) -> str:
        """Of the run that began last."""
        return self._cluster.shell("ls -td runs/*/ | head -n 1").strip()

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._cluster.read(f"{self.run_folder}result.json"))
        return found


def assert_nothing_left(cluster: SlurmCluster, fault: float, within: float = 10.0) -> None:
    """Neither a process nor a job, soon after the time of the fault; a look itself takes a while."""
    while left := (cluster.left() or cluster.jobs()):
        assert time.monotonic() - fault < within, f"left {within:g} s after the fault: {left}"


def find_reason_to_skip() -> str | None:
    """None in `make test-slurm`, where a missing engine is a failure."""
    if os.environ.get("HOSTMESH_SLURM") == "required":
        return None
    try:
        subprocess.run(["docker", "version"], capture_output=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "no Docker engine answers"
    return "make test-slurm runs these"


@pytest.fixture(scope="session", name="running_slurm")
def start_slurm() -> Iterator[SlurmCluster]:
    if reason := find_reason_to_skip():
        pytest.skip(reason)
    cluster = SlurmCluster()
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(name="slurm")
def lend_slurm(running_slurm: SlurmCluster, request: pytest.FixtureRequest) -> Iterator[SlurmCluster]:
    """The cluster, whole and idle; what a test breaks is fixed after it."""
    running_slurm.begin_test("".join(c if c.isalnum() else "-" for c in request.node.name))
    yield running_slurm
    running_slurm.restore()
