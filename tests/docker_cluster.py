"""A compose cluster of real hosts for tests: look into it, break it, bring it back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPO

HOSTS = ("host-0", "host-1", "host-2", "host-3")
IMAGE = "hostmesh-host"
SCRIPT = REPO / "docker" / "cluster.sh"
# Every process waits for all others, again and again.
TALKING = """
import jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
for step in range(1_000_000):
    multihost_utils.process_allgather(step)
    if step == 3:
        print("up", flush=True)
"""


class DockerCluster:
    def __init__(self, configs: Path) -> None:
        self.name = f"hostmesh-test-{os.getpid()}"
        self.folder = REPO / "docker" / ".cluster" / self.name
        self.network = f"{self.name}_mesh"
        self._configs = configs
        self._damaged: set[str] = set()
        self._launchers: list[LauncherMachine] = []

    def up(self) -> None:
        self._run_script("up")

    def stop(self) -> None:
        """The image stays: building it takes a minute."""
        self._run_script("stop")

    def _run_script(self, what: str) -> None:
        env = {**os.environ, "CLUSTER": self.name, "CONFIGS": str(self._configs), "PYTHON": sys.executable}
        done = subprocess.run([SCRIPT, what], env=env, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr

    # Cluster files.

    def write_file(self, folder: Path, transport: str = "ssh", **changes: Any) -> str:
        """The cluster's own file, changed, in a test's folder; what a running test writes there does not travel."""
        given = self._configs / ("docker.yaml" if transport == "ssh" else "docker-exec.yaml")
        settings = {**yaml.safe_load(given.read_text()), "sync": {"exclude": ["stderr-*"]}, **changes}
        path = folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(settings))
        return str(path)

    def container(self, host: str) -> str:
        return f"{self.name}-{host}"

    # Looking.

    def exec(self, host: str, *argv: str, user: str = "root") -> str:
        return docker("exec", "--user", user, self.container(host), *argv)

    def processes_of(self, host: str, run_id: str) -> set[int]:
        """Living processes with this run's id in their environment; looked up without the product's help.

        As their own user: a container's root may not read the environment of others.
        """
        look = f"grep -lzx HOSTMESH_RUN_ID={run_id} /proc/[0-9]*/environ 2>/dev/null || true"
        return {int(path.split("/")[2]) for path in self.exec(host, "sh", "-c", look, user="trainer").split()}

    def left_of(self, run_id: str, hosts: tuple[str, ...] = HOSTS) -> dict[str, set[int]]:
        found = {host: self.processes_of(host, run_id) for host in hosts if self.is_running(host)}
        return {host: pids for host, pids in found.items() if pids}

    def is_running(self, host: str) -> bool:
        state = docker("container", "inspect", "--format", "{{.State.Status}}", self.container(host))
        return state.strip() == "running"

    # A launcher of its own.

    def add_launcher(self, folder: Path, text: str) -> LauncherMachine:
        """A fifth machine on the hosts' network, where `launch` runs a script on all of them."""
        (folder / "script.py").write_text(text)
        (folder / "ssh_config").write_text(
            "Host host-*\nUser trainer\nIdentityFile /keys/client_key\nUserKnownHostsFile /keys/known_hosts\n"
        )
        self.write_file(folder, ssh={"config": "ssh_config"})
        machine = LauncherMachine(f"{self.name}-launcher", self.network, folder)
        self._launchers.append(machine)
        machine.start(self.folder)
        return machine

    # Breaking.

    def kill(self, host: str) -> None:
        self._damage(host, "kill", self.container(host))

    def pause(self, host: str) -> None:
        self._damage(host, "pause", self.container(host))

    def unpause(self, host: str) -> None:
        docker("unpause", self.container(host))

    def disconnect(self, host: str) -> None:
        self._damage(host, "network", "disconnect", self.network, self.container(host))

    def break_with(self, host: str, shell: str) -> None:
        """Do some damage from inside, as root."""
        self._damage(host, "exec", self.container(host), "sh", "-euc", shell)

    def limit_memory(self, host: str, size: str) -> None:
        self._damage(host, "update", "--memory", size, "--memory-swap", size, self.container(host))

    def _damage(self, host: str, *argv: str) -> None:
        self._damaged.add(host)
        docker(*argv)

    def restore(self) -> None:
        """Every damaged host is made anew, with the keys it had; returns when all of them answer."""
        while self._launchers:
            self._launchers.pop().remove()
        if self._damaged:
            docker("rm", "--force", *map(self.container, sorted(self._damaged)))
            self._run_script("start")
            self._damaged.clear()


class LauncherMachine:
    """Its folder is the test's own: what it writes there can be read when it has no network any more."""

    LAUNCH = (
        "cd /work && export PYTHONPATH=/repo/src PYTHONDONTWRITEBYTECODE=1 && "
        "/opt/venv/bin/python -P -c 'from hostmesh.launcher.cli import main; main()' "
        "--show all --hosts cluster.yaml script.py "
        "> stderr-said 2>&1; echo $? > stderr-code"
    )

    def __init__(self, name: str, network: str, folder: Path) -> None:
        self.name, self.network, self.folder = name, network, folder

    def start(self, keys: Path) -> None:
        mounts = [f"{REPO}:/repo:ro", f"{keys}:/keys:ro", f"{self.folder}:/work"]
        volumes = [part for mount in mounts for part in ("--volume", mount)]
        docker(
            "run",
            "--detach",
            "--init",
            "--name",
            self.name,
            "--network",
            self.network,
            *volumes,
            IMAGE,
            "sleep",
            "infinity",
        )
        docker("exec", "--detach", self.name, "sh", "-c", self.LAUNCH)

    def read(self, what: str) -> str:
        path = self.folder / f"stderr-{what}"
        return path.read_text(errors="replace") if path.exists() else ""

    def run_id(self) -> str:
        [run] = (self.folder / "runs").iterdir()
        return run.name

    def disconnect(self) -> None:
        docker("network", "disconnect", self.network, self.name)

    def remove(self) -> None:
        docker("rm", "--force", self.name)


def docker(*argv: str) -> str:
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, f"docker {' '.join(argv)}: {done.returncode} {done.stdout}{done.stderr}"
    return done.stdout


def find_reason_to_skip() -> str | None:
    """None in `make test-docker`, where a missing engine is a failure."""
    if os.environ.get("HOSTMESH_DOCKER") == "required":
        return None
    try:
        subprocess.run(["docker", "version"], capture_output=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "no Docker engine answers"
    return "make test-docker runs these"


@pytest.fixture(scope="session", name="running_cluster")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerCluster]:
    if reason := find_reason_to_skip():
        pytest.skip(reason)
    cluster = DockerCluster(tmp_path_factory.mktemp("configs"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(name="cluster")
def lend_cluster(running_cluster: DockerCluster) -> Iterator[DockerCluster]:
    """The cluster, whole; what a test breaks is fixed after it."""
    yield running_cluster
    running_cluster.restore()
