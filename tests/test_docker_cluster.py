"""Real hosts, over SSH: training on them, and what is said and left when one of them, or the way to it, breaks."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Launch, LiveRun, Script, Start, await_true
from docker_cluster import HOSTS, TALKING, DockerCluster, lend_cluster, start_cluster  # noqa: F401

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

SOON = 10.0

# Ignores requests to stop, as one that is stuck does, and has a child in a session of its own.
STUBBORN = """
import signal, subprocess
for number in (signal.SIGTERM, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", flush=True)
signal.pause()
"""

Begin = Callable[..., LiveRun]


@pytest.fixture
def begin(cluster: DockerCluster, start: Start, script: Script, tmp_path: Path) -> Begin:
    """Start a script on all hosts and wait until it is up there."""

    def run(text: str, transport: str = "ssh", secrets: Sequence[str] = ()) -> LiveRun:
        live = start("--hosts", cluster.write_file(tmp_path, transport, secrets=list(secrets)), script(text))
        await_true(lambda: live.stderr.count("] up") == len(HOSTS), 90, "processes on all hosts")
        assert set(cluster.left_of(live.id)) == set(HOSTS)
        return live

    return run


def assert_nothing_left(cluster: DockerCluster, run_id: str, fault: float) -> None:
    """On every host that can still be looked into, soon after the time of the fault; a look itself takes a while."""
    while left := cluster.left_of(run_id):
        assert time.monotonic() - fault < SOON, f"left {SOON:g} s after the fault: {left}"
    assert time.monotonic() - fault < SOON, "nothing is left, but it took too long"


def assert_lost(run: LiveRun, host: str) -> None:
    assert run.wait(30) == 69, run.stderr
    assert run.result["outcome"] == "host lost" and run.result["host"] == host
    assert host in run.result["message"]


def summary_of(run: LiveRun) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.run_folder / "summary.json").read_text())
    return found


def run_to_its_end(launch: Launch, *args: str) -> tuple[int, str]:
    done = launch(*args, timeout=90)
    return done.returncode, done.stdout + done.stderr


def run_id_in(folder: Path) -> str:
    [run] = (folder / "runs").iterdir()
    return run.name


# One of them, that of a connection, may end by itself meanwhile.
KILL_SSHD = "for pid in $(pidof sshd); do kill -9 $pid || true; done"


# What works.


def test_the_built_in_job_ends_with_the_loss_of_local_processes(
    cluster: DockerCluster, start: Start, tmp_path: Path
) -> None:
    job = ("--steps", "40", "--seed", "7")
    far = start("--hosts", cluster.write_file(tmp_path), *job, "--checkpoint-dir", "/shared/same-loss")
    assert far.wait(120) == 0, far.stderr
    near = start("--local", "4", "--devices", "2", *job)
    assert near.wait(120) == 0, near.stderr
    assert summary_of(far)["mesh"] == summary_of(near)["mesh"] == {"data": 4, "model": 2}
    assert summary_of(far)["steps"] == 40
    assert summary_of(far)["loss"] == pytest.approx(summary_of(near)["loss"], abs=1e-5)
    saved = [cluster.exec(host, "ls", "/shared/same-loss") for host in HOSTS]
    assert saved[0].split() and len(set(saved)) == 1


@pytest.mark.parametrize("transport", ["ssh", "docker"])
def test_an_unmodified_script_that_calls_initialize_runs(
    cluster: DockerCluster, launch: Launch, tmp_path: Path, transport: str
) -> None:
    shutil.copy(REPO / "examples" / "hello.py", tmp_path)
    code, said = run_to_its_end(launch, "--hosts", cluster.write_file(tmp_path, transport), "hello.py")
    assert code == 0, said
    for process in range(4):
        assert f"process {process} of 4: the sum over 8 devices is 28" in said


def test_code_changed_here_is_what_runs_there(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    file = cluster.write_file(tmp_path)
    script("from package.word import WORD\nimport glob\nprint(WORD, sorted(glob.glob('package/*.py')))")
    for word, extra in [("first", "package/gone.py"), ("second", "package/new.py")]:
        script(f"WORD = {word!r}", "package/word.py")
        script("", extra)
        code, said = run_to_its_end(launch, "--hosts", file, "script.py")
        assert code == 0, said
        files = sorted(["package/word.py", extra])
        assert said.count(f"{word} {files}") == len(HOSTS), said
        (tmp_path / extra).unlink()


def test_the_gpus_of_a_host_are_split_between_its_processes(
    cluster: DockerCluster, launch: Launch, tmp_path: Path
) -> None:
    """Counted by their device files, which is all that a host without GPUs can have of them."""
    for host in HOSTS:
        cluster.break_with(host, "touch /dev/nvidia0 /dev/nvidia1 /dev/nvidia2 /dev/nvidia3")
    settings = {"processes_per_host": 2, "env": {"JAX_PLATFORMS": "cuda"}}
    shown = ("--", "sh", "-c", "echo $HOSTMESH_PROCESS_ID sees $CUDA_VISIBLE_DEVICES")
    code, said = run_to_its_end(launch, "--hosts", cluster.write_file(tmp_path, **settings), *shown)
    assert code == 0, said
    for process in range(8):
        assert f"{process} sees {'0,1' if process % 2 == 0 else '2,3'}\n" in said
    settings["processes_per_host"] = 3
    code, said = run_to_its_end(launch, "--hosts", cluster.write_file(tmp_path, **settings), *shown)
    assert code == 2 and "found 4 GPUs for 3 processes" in said and "sees" not in said


# A login shell that writes down what sshd has it run, which is gone too soon to be seen in /proc.
RECORD = """
printf '#!/bin/sh\\necho "$@" >> /recorded\\nexec /bin/bash "$@"\\n' > /bin/recorder
chmod 755 /bin/recorder
install -m 666 /dev/null /recorded
usermod --shell /bin/recorder trainer
"""


@pytest.mark.parametrize("transport", ["ssh", "docker"])
def test_no_secret_is_in_an_argument_a_log_an_event_or_a_plan(
    cluster: DockerCluster, begin: Begin, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    secret = "correct-horse-battery-staple"
    monkeypatch.setenv("API_TOKEN", secret)
    for host in HOSTS:
        cluster.break_with(host, RECORD)
    with ArgumentWatch(cluster) as arguments:
        run = begin(f"import os\nprint(os.environ['API_TOKEN'], os.environ)\n{STUBBORN}", transport, ["API_TOKEN"])
        run.launcher.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
    arguments.add_recorded()
    assert f"HOSTMESH_RUN_ID={run.id}" in arguments.text and "sleep\0001000" in arguments.text
    assert secret not in arguments.text and secret not in run.stderr and secret not in json.dumps(run.seen)
    files = [path for path in run.run_folder.rglob("*") if path.is_file()]
    assert {"plan.json", "events.jsonl", "result.json", "process-000.log"} <= {path.name for path in files}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert b"API_TOKEN" in run.log(0)
    for host in HOSTS:
        assert cluster.exec(host, "sh", "-c", f"grep -rl {secret} /tmp /home /shared /var/log || true") == ""


class ArgumentWatch:
    """The command lines of all processes on all hosts and of this machine's, looked at again and again."""

    def __init__(self, cluster: DockerCluster) -> None:
        self._cluster, self._over, self.text = cluster, threading.Event(), ""
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> ArgumentWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _look(self) -> None:
        while not self._over.is_set():
            for host in HOSTS:
                self.text += self._cluster.exec(host, "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null || true")
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                self.text += read_if_there(path)

    def add_recorded(self) -> None:
        self.text += "".join(self._cluster.exec(host, "cat", "/recorded") for host in HOSTS)


def read_if_there(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# Faults while a program trains.


@pytest.mark.parametrize("host", ["host-2", "host-0"])
@pytest.mark.parametrize("fault", ["kill", "pause", "disconnect"])
def test_a_host_that_vanishes_is_named_and_leaves_nothing(
    cluster: DockerCluster, begin: Begin, fault: str, host: str
) -> None:
    """Its peers fail too, and faster: they are victims. host-0 has the coordinator."""
    run = begin(TALKING)
    at = time.monotonic()
    getattr(cluster, fault)(host)
    assert_nothing_left(cluster, run.id, at)
    assert_lost(run, host)
    if fault == "pause":
        cluster.unpause(host)
        assert_nothing_left(cluster, run.id, time.monotonic())


def test_a_host_whose_sshd_is_killed_is_named_and_leaves_nothing(cluster: DockerCluster, begin: Begin) -> None:
    run = begin(STUBBORN)
    at = time.monotonic()
    cluster.break_with("host-1", KILL_SSHD)
    assert_nothing_left(cluster, run.id, at)
    assert_lost(run, "host-1")


@pytest.mark.parametrize("transport", ["ssh", "docker"])
def test_a_killed_launcher_leaves_nothing(cluster: DockerCluster, begin: Begin, transport: str) -> None:
    run = begin(STUBBORN, transport)
    at = time.monotonic()
    run.launcher.kill()
    assert_nothing_left(cluster, run.id, at)


def test_a_launcher_that_loses_its_network_leaves_nothing(cluster: DockerCluster, tmp_path: Path) -> None:
    """It runs on a machine of its own beside the hosts; neither end of any connection hears that it is over."""
    machine = cluster.add_launcher(tmp_path, STUBBORN)
    await_true(lambda: machine.read("said").count("] up") == len(HOSTS), 90, "processes on all hosts")
    run_id = machine.run_id()
    assert set(cluster.left_of(run_id)) == set(HOSTS)
    at = time.monotonic()
    machine.disconnect()
    assert_nothing_left(cluster, run_id, at)
    await_true(lambda: machine.read("code"), 30, "the launcher's end")
    assert machine.read("code").strip() == "69"
    assert "has been silent for 5 s" in machine.read("said")


@pytest.mark.parametrize("host", ["host-2", "host-0"])
def test_a_host_cut_off_in_silence_is_named_and_leaves_nothing(
    cluster: DockerCluster, tmp_path: Path, host: str
) -> None:
    """The launcher is on the hosts' own network: through a published port the host would hear of the end at once."""
    machine = cluster.add_launcher(tmp_path, TALKING)
    await_true(lambda: machine.read("said").count("] up") == len(HOSTS), 90, "processes on all hosts")
    run_id = machine.run_id()
    assert set(cluster.left_of(run_id)) == set(HOSTS)
    at = time.monotonic()
    cluster.disconnect(host)
    assert_nothing_left(cluster, run_id, at)
    await_true(lambda: machine.read("code"), 30, "the launcher's end")
    assert machine.read("code").strip() == "69", machine.read("said")
    result = json.loads((tmp_path / "runs" / run_id / "result.json").read_text())
    assert (result["outcome"], result["host"]) == ("host lost", host), machine.read("said")


def test_a_container_that_vanishes_under_docker_exec_is_named(cluster: DockerCluster, begin: Begin) -> None:
    run = begin(STUBBORN, "docker")
    at = time.monotonic()
    cluster.kill("host-3")
    assert_nothing_left(cluster, run.id, at)
    assert_lost(run, cluster.container("host-3"))


# Hosts that are not fit to start with.

OTHER_JAX = """
cd /opt/venv/lib/python3*/site-packages
mv jax-[0-9]*.dist-info jax-0.9.1.dist-info
sed -i 's/^Version: .*/Version: 0.9.1/' jax-0.9.1.dist-info/METADATA
"""
OTHER_KEY = """
rm /etc/ssh/keys/host_key
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/keys/host_key
kill -HUP $(pidof -s sshd)
"""
# The shared memory is the one small disk a container has.
FULL_DISK = """
install -d -o trainer /dev/shm/job
ln -s /dev/shm/job /home/trainer/job
head -c 1G /dev/zero > /dev/shm/ballast || true
"""

UNFIT = [
    ("other jax", OTHER_JAX, 2, ["jax 0.9.1", "0.10.2"]),
    ("no Python", "rm $(readlink -f /usr/bin/python3)", 69, ["python3"]),
    ("full disk", FULL_DISK, 2, ["No space left on device"]),
    ("other host key", OTHER_KEY, 69, ["key", "SHA256:", "-R 'host-2'"]),
    ("no sshd", KILL_SSHD, 69, ["sshd"]),
]


@pytest.mark.parametrize("damage, code, says", [case[1:] for case in UNFIT], ids=[case[0] for case in UNFIT])
def test_an_unfit_host_is_named_and_nothing_starts(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path, damage: str, code: int, says: list[str]
) -> None:
    script("open('/shared/started', 'w')")
    script("x" * 200_000, "ballast.txt")
    cluster.break_with("host-2", damage)
    assert_refused(cluster, launch, tmp_path, "host-2", code, says, cluster.write_file(tmp_path))


def test_an_unknown_user_is_named_and_nothing_starts(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    script("open('/shared/started', 'w')")
    hosts = ["host-0", "host-1", {"address": "host-2", "user": "stranger"}, "host-3"]
    file = cluster.write_file(tmp_path, hosts=hosts)
    assert_refused(cluster, launch, tmp_path, "host-2", 69, ["stranger"], file)


def test_a_host_that_accepts_and_never_answers_is_named_and_nothing_starts(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    script("open('/shared/started', 'w')")
    given = {"config": str(cluster.folder / "ssh_config"), "connect_timeout": 4}
    cluster.pause("host-2")
    assert_refused(cluster, launch, tmp_path, "host-2", 69, ["4 s"], cluster.write_file(tmp_path, ssh=given))
    cluster.unpause("host-2")
    assert_nothing_left(cluster, run_id_in(tmp_path), time.monotonic())


def assert_refused(
    cluster: DockerCluster, launch: Launch, folder: Path, host: str, code: int, says: list[str], file: str
) -> None:
    began = time.monotonic()
    found, said = run_to_its_end(launch, "--hosts", file, "script.py")
    assert found == code, said
    assert [word for word in [host, *says] if word not in said] == [], said
    assert "Traceback" not in said
    assert [other for other in HOSTS if f"{other}:" in said and other != host] == [], said
    assert time.monotonic() - began < 30
    assert_nothing_left(cluster, run_id_in(folder), time.monotonic())
    assert "started" not in cluster.exec("host-0", "ls", "/shared")


OTHER_ROWS = """
import time
import jax, numpy as np
from jax.sharding import PartitionSpec as P
import hostmesh
from hostmesh.worker.loading import tampering
hostmesh.join()
def swap(step, arrays):
    if jax.process_index() == 2 and step >= 6:
        rows = arrays[0][0]
        rows[[2, 5]] = rows[[5, 2]]
tampering.change_rows = swap
source = {"x": np.arange(3200, dtype=np.float32).reshape(400, 8)}
for batch in hostmesh.Loader(source, hostmesh.make_mesh(data=-1), 32, spec=P(), steps=400):
    time.sleep(0.05)
"""


def test_a_host_that_holds_other_rows_is_named(
    cluster: DockerCluster, launch: Launch, script: Script, tmp_path: Path
) -> None:
    code, said = run_to_its_end(launch, "--hosts", cluster.write_file(tmp_path), "--guard", "every", script(OTHER_ROWS))
    assert code == 1 and "process 2 on host-2 gave other rows than processes 0, 1 and 3 in step 6 of" in said, said
    assert "x, rows 2 to 5 (records " in said
