"""Every stream ends: whatever goes wrong on the way to a host is an answer with its reason, never a wait."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Launch, Script, clean_env
from fake_agent import FakeAgent

from hostmesh.launcher.cluster.model import Host
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel, Ended
from hostmesh.launcher.transports.docker import DockerStream
from hostmesh.launcher.transports.local import LocalStream


class BrokenStream:
    """Raises what it is told to in one of its methods; the others wait for the end."""

    is_open = True

    def __init__(self, method: str, error: BaseException) -> None:
        self._method, self._error = method, error
        self._closed: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def _act(self, method: str) -> bytes:
        if method == self._method:
            raise self._error
        return self._closed.get(timeout=240)

    def read(self) -> bytes:
        return self._act("read")

    def read_errors(self) -> bytes:
        return self._act("read_errors")

    def write(self, data: bytes) -> None:
        self._act("write")

    def close(self, timeout: float = 0.0) -> None:
        for _ in range(3):
            self._closed.put(b"")


@pytest.mark.parametrize("method", ["read", "read_errors", "write"])
@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found"), SystemExit(3), MemoryError()])
def test_an_unforeseen_error_in_any_thread_of_a_stream_is_its_end_with_the_reason(
    method: str, error: BaseException
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    stream = BrokenStream(method, error)
    channel = Channel(7, stream, b"", 10.0, inbox)
    try:
        end = inbox.get(timeout=240)
        assert isinstance(end, Ended) and end.host == 7
        assert type(error).__name__ in end.text and str(error) in end.text
    finally:
        channel.close()


def test_a_stream_that_cannot_be_had_says_why_from_any_thread() -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    channel = Channel(0, BrokenStream("read", Unreachable("no way there")), b"", 10.0, inbox)
    try:
        assert inbox.get(timeout=240).unreachable == "no way there"
    finally:
        channel.close()


def test_a_program_that_cannot_be_started_is_an_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text("no program")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    stream = DockerStream(Host("c-1", 1), ["true"])
    with pytest.raises(Unreachable, match="cannot start docker on this machine: Exec format error"):
        stream.read()
    local = LocalStream("/no/such/python", {"HOSTMESH_AGENT": "x.0"})
    with pytest.raises(Unreachable, match="found no /no/such/python for the agent"):
        local.read()
    local.close()


def test_an_agents_python_that_is_missing_here_is_told_without_a_traceback(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [x]\nagent_python: /no/such/python\n")
    for command in (["--hosts", "c.yaml", script("pass")], ["check", "--hosts", "c.yaml"]):
        done = launch(*command)
        said = done.stdout + done.stderr
        assert done.returncode == 69 and "found no /no/such/python for the agent" in said and "Traceback" not in said


@pytest.fixture
def ssh_cluster(tmp_path: Path) -> str:
    hosts = [f"127.0.0.{number}" for number in range(1, 4)]
    settings = {"transport": "ssh", "hosts": hosts, "workdir": "/nowhere", "python": sys.executable}
    (tmp_path / "c.yaml").write_text(json.dumps(settings))
    return "c.yaml"


@pytest.mark.parametrize("command", [["--hosts"], ["check", "--hosts"]])
def test_without_fabric_every_host_says_what_to_install(
    launch: Launch, tmp_path: Path, ssh_cluster: str, command: list[str]
) -> None:
    (tmp_path / "fakes").mkdir()
    (tmp_path / "fakes" / "fabric.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'fabric'\", name='fabric')"
    )
    done = launch(*command, ssh_cluster, env={"PYTHONPATH": f"{tmp_path / 'fakes'}:{REPO / 'src'}"}, timeout=240)
    said = done.stdout + done.stderr
    assert done.returncode == 69 and "cannot import fabric, which SSH needs" in said
    assert "pip install 'hostmesh'" in said and "Traceback" not in said


@pytest.mark.parametrize("command", [["--hosts"], ["check", "--hosts"]])
def test_a_user_without_a_home_is_told_instead_of_waiting(tmp_path: Path, ssh_cluster: str, command: list[str]) -> None:
    """As a uid that /etc/passwd does not know is, in a container that was given one."""
    env = {name: value for name, value in clean_env().items() if name not in ("HOME", "USER", "LOGNAME")}
    nobody = (
        "import pwd\ndef unknown(uid): raise KeyError(f'getpwuid(): uid not found: {uid}')\npwd.getpwuid = unknown\n"
    )
    line = [
        sys.executable,
        "-P",
        "-c",
        f"{nobody}from hostmesh.launcher.cli import main; main()",
        *command,
        ssh_cluster,
    ]
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 69 and "HOME is not set" in said and "Traceback" not in said


def test_a_channel_that_nobody_handles_any_more_ends_at_once_and_costs_nothing() -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    agent = FakeAgent()
    channel = Channel(0, agent, b"agent", 1000.0, inbox)
    agent.say(*(wire.Output(0, b"more") for _ in range(200)))  # its reader waits for somebody to handle them
    began = time.process_time()
    channel.close()
    while not isinstance(inbox.get(timeout=240), Ended):
        pass
    assert time.process_time() - began < 0.1  # it was half a second of processor time for each host
