"""A real agent, spoken to directly: what it reserves, refuses and cleans up."""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from conftest import await_true, busyness, is_alive
from hung_disk import hung_disk

from hostmesh.launcher.agent.children import process_tree
from hostmesh.launcher.bundle import pack_agent
from hostmesh.launcher.output.run_folder import new_run_id
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel, Ended, Heard
from hostmesh.launcher.transports.local import LocalStream

Event = TypeVar("Event")


class Talk:
    """A channel to an agent on this machine, and what came back."""

    def __init__(
        self,
        python: str | None = None,
        lease: float = 10.0,
        run_id: str | None = None,
        stream: type[LocalStream] = LocalStream,
    ) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.mark = f"{run_id or new_run_id()}.0"
        self.channel = Channel(0, stream(python, {process_tree.MARK: self.mark}), pack_agent(), lease, self.inbox)

    def hear(self, kind: type[Event], timeout: float = 20) -> Event:
        deadline = time.monotonic() + timeout
        while True:
            entry = self.inbox.get(timeout=max(0.01, deadline - time.monotonic()))
            if isinstance(entry, Heard):
                self.channel.handled(entry.event)
                if isinstance(entry.event, kind):
                    return entry.event
            if isinstance(entry, kind):
                return entry
            assert not isinstance(entry, Ended), entry

    def prepare(self, **changes: Any) -> None:
        settings = {"python": sys.executable, "workdir": None, "env": {}, "warm": False, "preload": []}
        self.channel.send(wire.PrepareWorkers(**{**settings, **changes}))


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    talks: list[Talk] = []

    def begin(**options: Any) -> Talk:
        talks.append(Talk(**options))
        return talks[-1]

    yield begin
    for one in talks:
        one.channel.close()


def test_a_reserved_port_can_be_bound_by_jax_and_is_given_to_nobody_else(talk: Callable[..., Talk]) -> None:
    agent = talk()
    ports = set()
    for _ in range(20):
        agent.channel.send(wire.Reserve(["127.0.0.1"], listen=False))
        ports.add(agent.hear(wire.Reserved).ports["127.0.0.1"])
    assert len(ports) == 20
    for port in ports:
        with socket.socket() as plain, pytest.raises(OSError):
            plain.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass


def test_an_address_of_another_machine_is_refused(talk: Callable[..., Talk]) -> None:
    agent = talk()
    agent.channel.send(wire.Reserve(["192.0.2.1"], listen=False))
    assert "cannot bind 192.0.2.1" in agent.hear(wire.Refused).problem


def test_a_python_or_folder_that_is_not_there_is_refused(talk: Callable[..., Talk]) -> None:
    agent = talk()
    agent.prepare(python="~/no/such/python")
    assert agent.hear(wire.Refused).problem == "python: found no executable ~/no/such/python"
    agent.prepare(workdir="/no/such/folder")
    assert agent.hear(wire.Refused).problem == "workdir: found no folder /no/such/folder"


def test_a_program_that_cannot_be_executed_is_told_like_a_shell_tells(
    talk: Callable[..., Talk], tmp_path: Path
) -> None:
    agent = talk()
    agent.prepare()
    agent.hear(wire.Ready)
    (tmp_path / "plain").write_text("no program")
    for process_id, (program, code) in enumerate([("/no/such", 127), (str(tmp_path / "plain"), 126)]):
        agent.channel.send(wire.Spawn(process_id, {}, [program], False))
        ended = agent.hear(wire.Exited)
        assert ended.code == code and b"cannot start" in ended.data


def test_an_agent_runs_on_the_oldest_python_hosts_may_have(talk: Callable[..., Talk]) -> None:
    python = next((p for p in map(Path, oldest_pythons()) if p.exists()), None)
    if python is None:
        pytest.skip("no Python 3.9 or 3.10 here")
    agent = talk(python=str(python))
    assert agent.hear(wire.Hello).python.startswith(("3.9", "3.10"))
    agent.prepare()
    agent.hear(wire.Ready)
    agent.channel.send(wire.Spawn(0, {}, ["sh", "-c", "echo hi; exit 3"], False))
    assert agent.hear(wire.Exited).code == 3
    agent.channel.send(wire.Stop(stacks=True))
    assert agent.hear(wire.Bye).survivors == []


def oldest_pythons() -> list[str]:
    import shutil

    pyenv = sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9"))
    return [*pyenv, *filter(None, (shutil.which("python3.9"), shutil.which("python3.10")))]


def test_an_agent_that_is_not_heard_from_stops(talk: Callable[..., Talk]) -> None:
    """The stream stays open and nothing comes: only the lease can tell."""
    agent = talk(lease=1000.0)
    pid = agent.hear(wire.Hello).pid
    agent.channel.send(wire.Lease(1.0))
    agent.prepare()
    agent.hear(wire.Ready)
    agent.channel.send(wire.Spawn(0, {}, ["sleep", "1000"], False))
    worker = agent.hear(wire.Started).pid
    agent.hear(Ended)
    await_true(lambda: not is_alive(worker) and not is_alive(pid), 5, "worker and agent gone")


def test_a_stopped_agent_is_ended_by_its_guardian(talk: Callable[..., Talk]) -> None:
    """Nobody closes the stream and the agent can do nothing: the guardian's own lease is all there is."""
    agent = talk(lease=2.0)
    hello = agent.hear(wire.Hello)
    agent.channel.send(wire.Lease(2.0))
    agent.prepare()
    agent.hear(wire.Ready)
    agent.channel.send(wire.Spawn(0, {}, ["sleep", "1000"], False))
    worker = agent.hear(wire.Started).pid
    agent.hear(wire.Beat)  # with it the guardian has heard of the lease
    os.kill(hello.pid, signal.SIGSTOP)
    gone = [worker, hello.pid, hello.guardian_pid]
    await_true(lambda: not any(map(is_alive, gone)), 2.0 + 10, "worker, agent and guardian gone")


@pytest.mark.slow
def test_a_guardian_that_is_stopped_for_a_moment_ends_nobody(talk: Callable[..., Talk]) -> None:
    """What a suspended machine looks like to it: it was away itself."""
    agent = talk(lease=2.0)
    hello = agent.hear(wire.Hello)
    agent.channel.send(wire.Lease(2.0))
    agent.hear(wire.Beat)
    os.kill(hello.guardian_pid, signal.SIGSTOP)
    for _ in range(5):
        agent.hear(wire.Beat)
    os.kill(hello.guardian_pid, signal.SIGCONT)
    for _ in range(3):
        agent.hear(wire.Beat)
    assert is_alive(hello.pid) and is_alive(hello.guardian_pid)


def test_noise_before_the_agent_does_no_harm(talk: Callable[..., Talk], tmp_path: Path) -> None:
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho "Welcome to this host"\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    assert talk(python=str(noisy)).hear(wire.Hello).pid > 0


def test_a_worker_that_talks_nonsense_to_its_agent_does_no_harm(talk: Callable[..., Talk]) -> None:
    agent = talk()
    agent.prepare()
    agent.hear(wire.Ready)
    nonsense = (
        "import os, socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "for m in (b'', b'x', b'[]', b'{}', b'\\xff', b'{\"process_id\": 99}', b'{\"process_id\": 0}', b'null'):\n"
        "    s.sendto(m, os.environ['HOSTMESH_FACTS_SOCKET'])\n"
    )
    agent.channel.send(wire.Spawn(0, {}, [sys.executable, "-c", nonsense], False))
    assert agent.hear(wire.Exited).code == 0


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_fact_nested_too_deep_ends_nobody(talk: Callable[..., Talk], depth: int) -> None:
    agent = talk()
    agent.prepare()
    agent.hear(wire.Ready)
    text = (
        "import os, socket\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\ns.setblocking(True)\n"
        f"deep = '[' * {depth} + ']' * {depth}\n"
        'fact = \'{"name": "x", "process_id": 0, "pid": %d, "detail": {"y": %s}}\'\n'
        "for y in (deep, '1'):\n"
        "    s.sendto((fact % (os.getpid(), y)).encode(), os.environ['HOSTMESH_FACTS_SOCKET'])\n"
    )
    agent.channel.send(wire.Spawn(0, {}, [sys.executable, "-c", text], False))
    if depth == 100:
        assert "nested" in agent.hear(wire.Fact).detail["problem"]
    assert agent.hear(wire.Fact).detail == {"y": 1}
    assert agent.hear(wire.Exited).code == 0


def test_a_workdir_on_a_hung_disk_is_told_and_does_not_silence_the_agent(
    talk: Callable[..., Talk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hung_disk(tmp_path / "work") as workdir:
        agent = talk()
        agent.prepare(workdir=str(workdir))
        for _ in range(4):
            agent.hear(wire.Beat)
        agent.channel.send(wire.Stop(stacks=False))
        assert agent.hear(wire.Bye).survivors == []


def test_a_process_that_waits_for_a_hung_disk_does_not_silence_the_agent(
    talk: Callable[..., Talk], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    agent = talk()
    agent.prepare(workdir=str(tmp_path / "work"))
    agent.hear(wire.Ready)
    with hung_disk(tmp_path / "work"):
        agent.channel.send(wire.Spawn(0, {}, ["true"], False))
        for _ in range(3):
            agent.hear(wire.Beat)
        agent.channel.send(wire.Stop(stacks=True))
        assert agent.hear(wire.Exited).code == -signal.SIGKILL
        assert agent.hear(wire.Bye).survivors == []


SLOW_LINK = 125_000  # bytes a second, as 1 Mbit/s has


class SlowStream(LocalStream):
    """What the agent sends comes over a slow link."""

    def read(self) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        data = os.read(pipe.fileno(), 4096)
        time.sleep(len(data) / SLOW_LINK)
        if not data:
            pipe.close()
        return data


@pytest.mark.parametrize("source", ["a process", "setup"])
def test_what_matters_overtakes_a_backlog_of_output(
    talk: Callable[..., Talk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    agent = talk(stream=SlowStream)
    agent.prepare()
    agent.hear(wire.Ready)
    flood = f"yes 0123456789 | head -c 20000000; touch {tmp_path}/printed; sleep 1000"
    if source == "setup":
        agent.channel.send(wire.RunSetup([flood], "key", str(tmp_path), {}))
    else:
        agent.channel.send(wire.Spawn(0, {}, ["sh", "-c", flood], False))
    await_true((tmp_path / "printed").exists, 20, "the flood not to wait for the link")
    for _ in range(3):
        agent.hear(wire.Beat)  # the window has adapted by now
    asked = time.monotonic()
    agent.channel.send(wire.Spawn(1, {}, ["sh", "-c", "exit 3"], False))
    assert agent.hear(wire.Exited).code == 3
    assert time.monotonic() - asked < 10 * busyness()


def test_facts_beyond_what_the_agent_takes_are_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hostmesh.worker.process import facts

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "facts"))
        monkeypatch.setenv("HOSTMESH_FACTS_SOCKET", str(tmp_path / "facts"))
        monkeypatch.setenv("HOSTMESH_PROCESS_ID", "0")
        monkeypatch.setattr(facts, "dropped_facts", 0)
        began = time.monotonic()
        for k in range(2000):
            facts.send_fact("metric", step=k)
        # One pause for each fact that is dropped would take 17 s; a busy machine takes two for the sending alone.
        assert time.monotonic() - began < 10 * busyness()
        assert facts.dropped_facts > 0


def test_the_process_id_of_the_caller_is_never_hunted() -> None:
    assert os.getpid() not in process_tree.find_all("no-such-run.0", os.getppid())
