"""What an agent does before processes start: setup once for each content, ports that others can try."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import await_true, is_alive
from test_agent import Talk, talk  # noqa: F401  (a fixture)

from hostmesh.launcher.agent.startup import code_folder, ports, setup
from hostmesh.launcher.agent.startup.code_folder import make_code_folder
from hostmesh.launcher.protocol import wire

Talking = Callable[..., Talk]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the host keeps what it knows about its setups."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    return tmp_path


def ask_for_setup(agent: Talk, home: Path, *commands: str, key: str = "a", **env: str) -> None:
    agent.channel.send(wire.RunSetup(list(commands), key, str(home / "work"), env))


def test_setup_runs_once_for_each_content(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    ran = []
    for key in ("a", "a", "b", "b", "a"):
        ask_for_setup(agent, home, "echo x >> trace", key=key)
        ran.append(agent.hear(wire.SetupDone).ran)
    assert ran == [True, False, True, False, True]
    assert (home / "work" / "trace").read_text() == "x\n" * 3


def test_a_relative_cache_folder_does_not_count(
    talk: Talking,  # noqa: F811
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(home))
    assert set_up(talk(), home, "true")
    assert [path.name[:6] for path in (home / ".cache" / "hostmesh").iterdir()][:1] == ["setup-"]


def test_setup_commands_run_in_the_workdir_with_the_runs_environment(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    ask_for_setup(agent, home, 'echo "$PWD says $WORD"; exec 0<&- ', WORD="hello")
    said = b""
    while said.count(b"\n") < 2:
        said += agent.hear(wire.SetupOutput).data
    assert said == f'$ echo "$PWD says $WORD"; exec 0<&- \n{home / "work"} says hello\n'.encode()


def set_up(agent: Talk, home: Path, *commands: str, key: str = "a") -> bool:
    """Whether it ran."""
    ask_for_setup(agent, home, *commands, key=key)
    return agent.hear(wire.SetupDone).ran


def test_setup_runs_again_when_its_workdir_was_deleted(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    assert [set_up(agent, home, "true") for _ in range(2)] == [True, False]
    shutil.rmtree(home / "work")
    (home / "work").mkdir()
    assert [set_up(agent, home, "true") for _ in range(2)] == [True, False]


def test_setup_runs_again_when_what_it_made_was_deleted(talk: Talking, home: Path) -> None:  # noqa: F811
    agent, commands = talk(), ("mkdir -p venv", "touch tool")
    (home / "work" / "venv").mkdir()
    assert [set_up(agent, home, *commands) for _ in range(2)] == [True, False]
    (home / "work" / "tool").unlink()
    assert [set_up(agent, home, *commands) for _ in range(2)] == [True, False]
    assert set_up(agent, home, *commands, key="b"), "which finds all of it there"
    (home / "work" / "tool").unlink()
    (home / "work" / "data").touch()
    assert [set_up(agent, home, *commands, key="b") for _ in range(2)] == [True, False]
    (home / "work" / "data").unlink()
    assert not set_up(agent, home, *commands, key="b"), "since it was no product of setup"


def test_hosts_that_share_a_workdir_do_not_make_each_other_set_up_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran_on(host: str) -> bool:
        monkeypatch.setattr(socket, "gethostname", lambda: host)
        return setup.set_up(["touch made"], "a", str(home / "work"), dict(os.environ), str(home / "output")) > 0

    assert [ran_on(host) for host in ("one", "two", "one", "two")] == [True, True, False, False]
    shutil.rmtree(home / "work" / ".hostmesh")
    assert [ran_on(host) for host in ("one", "two", "one", "two")] == [True, True, False, False]


def test_a_setup_that_failed_half_way_counts_for_none(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    assert set_up(agent, home, "true")
    ask_for_setup(agent, home, "false", key="b")
    agent.hear(wire.Refused)
    assert set_up(agent, home, "true"), "which the other may have spoilt"


def test_what_a_setup_made_before_it_failed_is_its_product_too(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    ask_for_setup(agent, home, "mkdir venv", "false")
    agent.hear(wire.Refused)
    assert set_up(agent, home, "test -d venv || mkdir venv")
    (home / "work" / "venv").rmdir()
    assert set_up(agent, home, "test -d venv || mkdir venv")
    assert (home / "work" / "venv").is_dir()


def test_a_setup_without_a_workdir_keeps_to_its_stamp(
    talk: Talking,  # noqa: F811
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(home))
    agent, ran = talk(), []
    for _ in range(2):
        agent.channel.send(wire.RunSetup(["touch made"], "a", None, {}))
        ran.append(agent.hear(wire.SetupDone).ran)
        (home / "made").unlink(missing_ok=True)
    assert ran == [True, False] and not (home / ".hostmesh").exists()


def test_a_setup_whose_workdir_is_missing_is_told(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    agent.channel.send(wire.RunSetup(["true"], "a", str(home / "none"), {}))
    assert agent.hear(wire.Refused).problem.startswith(f"setup: found no folder {home}/none to run its commands in")


def test_a_setup_that_fails_is_told_with_its_last_lines_and_tried_again(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    for _ in range(2):
        ask_for_setup(agent, home, "echo fine", "echo no such package; exit 3", "touch never")
        refused = agent.hear(wire.Refused)
        assert refused.problem == "setup: `echo no such package; exit 3` exited with 3"
        assert refused.said == "no such package\n"
    assert not (home / "work" / "never").exists()


def test_a_stop_ends_a_setup_that_is_under_way(talk: Talking, home: Path) -> None:  # noqa: F811
    agent = talk()
    ask_for_setup(agent, home, "echo $$; exec sleep 1000")
    said = b""
    while said.count(b"\n") < 2:  # the command and the pid may come in several pieces
        said += agent.hear(wire.SetupOutput).data
    pid = int(said.split()[-1])
    assert is_alive(pid)
    agent.channel.send(wire.Stop(stacks=False))
    agent.hear(wire.Bye)
    await_true(lambda: not is_alive(pid), 5, "the setup's command is gone")


def test_two_agents_do_not_set_up_one_host_at_the_same_time(talk: Talking, home: Path) -> None:  # noqa: F811
    agents = [talk(), talk()]
    for agent in agents:
        ask_for_setup(agent, home, "test ! -e busy && touch busy && sleep 0.3 && rm busy && echo x >> trace")
    ran = sorted(agent.hear(wire.SetupDone).ran for agent in agents)
    assert ran == [False, True] and (home / "work" / "trace").read_text() == "x\n"


def test_a_reserved_port_answers_other_agents_until_processes_start(talk: Talking) -> None:  # noqa: F811
    first, other = talk(), talk()
    first.channel.send(wire.Reserve(["127.0.0.1", "192.0.2.1"], listen=True))
    held = first.hear(wire.Reserved).ports
    assert list(held) == ["127.0.0.1"]
    other.channel.send(wire.Reach(list(held.items())))
    assert other.hear(wire.Reached).problems == {"127.0.0.1": None}
    first.prepare()
    first.hear(wire.Ready)
    first.channel.send(wire.Spawn(0, {}, ["true"], False))
    first.hear(wire.Exited)
    other.channel.send(wire.Reach(list(held.items())))
    assert other.hear(wire.Reached).problems == {"127.0.0.1": "Connection refused"}


def test_something_else_on_the_port_is_not_taken_for_the_coordinator(talk: Talking) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        agent = talk()
        agent.channel.send(wire.Reach([("127.0.0.1", stranger.getsockname()[1])]))
        caller, _ = stranger.accept()
        with caller:
            caller.send(b"220 mail.example ESMTP\r\n")
            assert agent.hear(wire.Reached).problems == {"127.0.0.1": "something else listens there"}


def test_a_port_that_never_answers_is_given_up(talk: Talking) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent = talk()
        agent.channel.send(wire.Reach([("127.0.0.1", silent.getsockname()[1])]))
        assert agent.hear(wire.Reached).problems == {"127.0.0.1": "no answer within 5 s"}


def test_a_name_that_does_not_resolve_is_told(talk: Talking) -> None:  # noqa: F811
    agent = talk()
    agent.channel.send(wire.Reach([("no-such-host.invalid", 80)]))
    (problem,) = agent.hear(wire.Reached).problems.values()
    assert problem and "ame" in problem  # "Name or service not known", or "Temporary failure in name resolution"


def test_a_hosts_addresses_are_those_of_its_interfaces() -> None:
    found = ports.list_addresses()
    assert all(not address.startswith("127.") and socket.inet_aton(address) for address in found)
    for address in found:
        with socket.socket() as bound:
            bound.bind((address, 0))


def test_looking_at_a_host_does_not_hold_up_its_agent(talk: Talking, tmp_path: Path) -> None:  # noqa: F811
    """A Python that is slow to answer is looked at aside, while beats go on."""
    slow = tmp_path / "python"
    slow.write_text(f'#!/bin/sh\nsleep 4\nexec {sys.executable} "$@"\n')
    os.chmod(slow, 0o755)
    agent = talk()
    agent.channel.send(wire.Inspect(str(slow), None, {}, [], thorough=False))
    beats = 0
    while not isinstance(event := next_event(agent), wire.Inspected):
        beats += isinstance(event, wire.Beat)
    assert beats >= 3 and event.found["python"]["version"] == sys.version.split()[0]


def next_event(agent: Talk) -> Any:
    return agent.inbox.get(timeout=240).event


def test_an_agent_looks_at_its_host(talk: Talking) -> None:  # noqa: F811
    agent = talk()
    agent.channel.send(wire.Inspect(sys.executable, None, {}, [], thorough=True))
    found = agent.hear(wire.Inspected).found
    assert found["python"]["packages"]["jax"] and found["time"] > 0


def test_the_workers_code_lies_in_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    for agent in ("first", "second", "third", "fourth"):
        (tmp_path / agent).mkdir()
    assert os.path.realpath(make_code_folder(str(tmp_path / "first"), str(memory))) == str(memory / "code")
    assert (tmp_path / "first" / "code").is_dir()
    for agent, where in (("second", str(memory)), ("third", None)):  # it has one already; a host without
        assert os.path.realpath(make_code_folder(str(tmp_path / agent), where)) == str(tmp_path / agent / "code")
    monkeypatch.setattr(code_folder, "MIN_FREE", 1 << 60)
    (tmp_path / "full").mkdir()
    assert os.path.realpath(make_code_folder(str(tmp_path / "fourth"), str(tmp_path / "full"))).startswith(
        str(tmp_path / "fourth")
    )
