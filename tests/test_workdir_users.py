"""A workdir belongs to one code at a time: what a run imports is what was synced for it, whatever else starts."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import conftest
import pytest
from conftest import LAUNCH, LiveRun, await_true, is_alive, processes_of
from sshd import Sshd, needs_sshd
from test_agent import Talk, talk  # noqa: F401  (a fixture)
from test_remote import Cluster, cluster, sshd  # noqa: F401  (fixtures)

from hostmesh.launcher.agent.sync.users import GRACE, STARTING, User, Users, wait_for
from hostmesh.launcher.output.run_folder import new_run_id
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.sync.tree import Tree, read_tree

Talking = Callable[..., Talk]


@pytest.fixture
def code(tmp_path: Path) -> Callable[[str], Tree]:
    """A tree with one file that has this text."""

    def make(text: str) -> Tree:
        folder = tmp_path / "code" / text
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text(text)
        return read_tree(folder)

    return make


def ids() -> tuple[str, str]:
    """Of two runs, in the order in which they yield: the second to the first."""
    first, second = sorted((new_run_id(), new_run_id()))
    return first, second


def bring(agent: Talk, tree: Tree, workdir: Path) -> Any:
    """What the agent said last: Synced or Refused."""
    agent.channel.send(wire.Sync(str(workdir), tree.encode()))
    return go_on(agent, tree)


def go_on(agent: Talk, tree: Tree) -> Any:
    answer: Any = agent.hear((wire.FilesNeeded, wire.Refused))  # type: ignore[arg-type]
    if isinstance(answer, wire.Refused):
        return answer
    agent.channel.send_pieces(piece for number in answer.numbers for piece in tree.pieces(number))
    return agent.hear((wire.Synced, wire.Refused))  # type: ignore[arg-type]


def registered(workdir: Path) -> list[str]:
    return sorted(os.listdir(workdir / ".hostmesh" / "users"))


# Agents.


def test_runs_with_the_same_code_share_a_workdir(talk: Talking, code: Any, tmp_path: Path) -> None:  # noqa: F811
    one, two = talk(), talk()
    assert bring(one, code("x = 1"), tmp_path / "work") == wire.Synced(1, 0)
    assert bring(two, code("x = 1"), tmp_path / "work") == wire.Synced(0, 0)
    assert registered(tmp_path / "work") == sorted([one.mark, two.mark])


def test_other_code_is_refused_by_name_before_anything_changes(
    talk: Talking,  # noqa: F811
    code: Any,
    tmp_path: Path,
) -> None:
    smaller, larger = ids()
    one, two, work = talk(run_id=smaller), talk(run_id=larger), tmp_path / "work"
    bring(one, code("x = 1"), work)
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.name != "lock"}
    refused = bring(two, code("x = 2"), work)
    assert f"workdir {work} is in use with other code (train.py differs), by run {smaller} of " in refused.problem
    assert refused.problem.endswith("; wait until that has ended, stop it, or give this run another workdir")
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.name != "lock"} == before
    one.channel.close()
    assert bring(two, code("x = 2"), work) == wire.Synced(1, 0)
    assert registered(work) == [two.mark], "what the first left is deleted"


def test_a_killed_agent_leaves_the_workdir_to_others(talk: Talking, code: Any, tmp_path: Path) -> None:  # noqa: F811
    one, two = talk(), talk()
    pid = one.hear(wire.Hello).pid
    bring(one, code("x = 1"), tmp_path / "work")
    os.kill(pid, signal.SIGKILL)
    assert bring(two, code("x = 2"), tmp_path / "work") == wire.Synced(1, 0)


def test_workers_do_not_hold_the_workdir(talk: Talking, code: Any, tmp_path: Path) -> None:  # noqa: F811
    agent = talk()
    bring(agent, code("x = 1"), tmp_path / "work")
    agent.prepare()
    agent.hear(wire.Ready)
    agent.channel.send(wire.Spawn(0, {}, ["sh", "-c", "ls -l /proc/self/fd"], False))
    said = agent.hear(wire.Exited).data
    assert b"/dev/null" in said and b"users" not in said


def test_of_two_runs_that_are_each_first_on_a_host_one_goes_on(
    talk: Talking,  # noqa: F811
    code: Any,
    tmp_path: Path,
) -> None:
    smaller, larger = ids()
    goes, yields = talk(run_id=smaller), talk(run_id=larger)
    bring(goes, code("x = 1"), tmp_path / "host-1")
    bring(yields, code("x = 2"), tmp_path / "host-2")
    # The same agents stand for their runs' other hosts, on which they come second.
    goes.channel.send(wire.Sync(str(tmp_path / "host-2"), code("x = 1").encode()))
    refused = bring(yields, code("x = 2"), tmp_path / "host-1")
    assert isinstance(refused, wire.Refused) and smaller in refused.problem
    yields.channel.close()  # as its launcher does
    assert go_on(goes, code("x = 1")) == wire.Synced(1, 0)


def user(run: str, since: float = 1000.0) -> User:
    return User(run, "0", "digest", "machine", "name", since)


@pytest.mark.parametrize(
    "me, other, now, seconds",
    [
        ("b", "a", 1000, GRACE),
        ("b", "a", 9999, GRACE),
        ("a", "b", 1000, STARTING),
        ("a", "b", 1004, STARTING - 4),
        ("a", "b", 9999, GRACE),
        ("a", "b", 1, STARTING),  # its clock is ahead of ours
    ],
)
def test_who_waits_for_whom(me: str, other: str, now: float, seconds: float) -> None:
    assert wait_for(user(other), user(me), now) == seconds


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Users]:
    state = os.open(tmp_path, os.O_RDONLY)
    registry = Users(state)
    yield registry
    registry.close()
    os.close(state)


def test_a_file_that_nobody_holds_counts_for_nothing(registry: Users, tmp_path: Path) -> None:
    os.close(registry.add(user("dead")))
    (tmp_path / "users" / "rubbish").write_text("{half")
    os.symlink("/etc/passwd", tmp_path / "users" / "link")
    assert registry.find_others(user("me")._replace(code="other")) == []
    assert sorted(os.listdir(tmp_path / "users")) == ["link"]


def test_whoever_holds_a_file_that_cannot_be_understood_is_named_by_it(registry: Users, tmp_path: Path) -> None:
    with (tmp_path / "users" / "1117-abc.0").open("w") as file:
        file.write("[1, 2]")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        (other,) = registry.find_others(user("me"))
    assert other.run == "1117-abc"


def test_agents_of_one_run_register_under_different_names(registry: Users) -> None:
    held = [registry.add(user("run")._replace(host=host)) for host in ("0", "1")]
    assert registry.find_others(user("run")._replace(code="other")) == []
    assert [other.run for other in registry.find_others(user("me")._replace(code="other"))] == ["run"]
    os.close(held.pop(0))
    assert [other.host for other in registry.find_others(user("me")._replace(code="other"))] == ["1"]
    for fd in held:
        os.close(fd)


def test_a_user_says_who_and_since_when() -> None:
    text = str(User("1117-abc", "0", "digest", "gpu-7", "bob", time.mktime((2026, 11, 17, 1, 2, 3, 0, 0, -1))))
    assert text == "run 1117-abc of bob, since 2026-11-17 01:02:03 on gpu-7"
    assert User.of("1117-abc.12", "digest")[:3] == ("1117-abc", "12", "digest")


# Whole runs.

SCRIPT = """
import pathlib, time
print("runs", "{name}", flush=True)
while not pathlib.Path("{go}").exists():
    time.sleep(0.02)
import late
print("imported", late.NAME, flush=True)
"""


# `launch` with an id that is given, so that it is known who yields to whom.
NAMED = (
    "import hostmesh.launcher.output.run_folder as f; f.new_run_id = lambda: {id!r}; "
    "from hostmesh.launcher.cli import main; main()"
)


class Folders:
    """Folders with code of their own, and launches in them into one workdir, each of which yields to those before."""

    def __init__(self, top: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top, self.file, self.go = top, top / file, top / "go"
        self.monkeypatch, self.ids = monkeypatch, sorted(new_run_id() for _ in range(3))
        self.runs: list[LiveRun] = []

    def start(self, folder: str, name: str | None = None) -> LiveRun:
        command = [*LAUNCH[:-1], NAMED.format(id=self.ids.pop(0))]
        self.monkeypatch.setattr(conftest, "LAUNCH", command)
        place = self.top / folder
        place.mkdir(exist_ok=True)
        (place / "late.py").write_text(f"NAME = {name or folder!r}\n")
        (place / "script.py").write_text(SCRIPT.format(name=name or folder, go=self.go))
        self.runs.append(LiveRun(place, "--hosts", str(self.file), "script.py"))
        return self.runs[-1]


@pytest.fixture
def folders(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:  # noqa: F811
    made = Folders(tmp_path, cluster(), monkeypatch)
    yield made
    for run in made.runs:
        run.close()


def assert_refused(run: LiveRun, other: LiveRun) -> None:
    assert run.wait(60) == 2
    assert f"is in use with other code (late.py, script.py differ), by run {other.id} of " in run.stderr
    assert processes_of(run.id) == set()


def assert_ran(run: LiveRun, name: str) -> None:
    assert run.wait(60) == 0, run.stderr
    for process_id in (0, 1):
        assert run.log(process_id).decode().splitlines() == [f"runs {name}", f"imported {name}"]


@needs_sshd
def test_two_runs_with_different_code_at_once_never_mix(folders: Folders) -> None:
    one, two = folders.start("one"), folders.start("two")
    await_true(lambda: one.launcher.poll() or two.launcher.poll(), 60, "one of them is refused")
    goes, name, refused = (two, "two", one) if one.launcher.poll() else (one, "one", two)
    assert_refused(refused, goes)
    folders.go.touch()
    assert_ran(goes, name)


@needs_sshd
@pytest.mark.slow
def test_a_late_import_finds_the_runs_own_code(folders: Folders) -> None:
    one = folders.start("one")
    one.await_event("process started", count=2)
    assert_refused(folders.start("two"), one)
    folders.go.touch()
    assert_ran(one, "one")
    assert_ran(folders.start("two"), "two")


@needs_sshd
@pytest.mark.slow
def test_the_same_code_may_run_twice_at_once(folders: Folders) -> None:
    one, two = folders.start("one", name="same"), folders.start("two", name="same")
    for run in (one, two):
        run.await_event("process started", count=2)
    folders.go.touch()
    assert_ran(one, "same")
    assert_ran(two, "same")


@needs_sshd
@pytest.mark.slow
def test_after_a_killed_launcher_other_code_can_run(folders: Folders) -> None:
    one = folders.start("one")
    one.await_event("process started", count=2)
    workers = [one.await_event("process started", process_id=number)["pid"] for number in (0, 1)]
    one.launcher.kill()
    one.launcher.wait()
    folders.go.touch()
    await_true(lambda: not any(map(is_alive, workers)), 20, "the first run's workers are gone")
    assert_ran(folders.start("two"), "two")


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Path]:
    """Hosts a and b with homes of their own; cluster files that name them in one order and in the other."""
    servers = []
    for name in ("a", "b"):
        (tmp_path / f"home-{name}").mkdir()
        servers.append(Sshd(tmp_path / f"sshd-{name}", f"SetEnv HOME={tmp_path}/home-{name}"))
    hosts = "\n".join(
        f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n  IdentityFile {server.identity}\n"
        f"  UserKnownHostsFile {server.known_hosts}\n  IdentitiesOnly yes"
        for name, server in zip("ab", servers, strict=True)
    )
    (tmp_path / "ssh_config").write_text(hosts)
    for order in ("ab", "ba"):
        settings = {
            "hosts": [{"address": name, "internal_address": "127.0.0.1"} for name in order],
            "ssh": {"config": "ssh_config"},
            "python": sys.executable,
            "workdir": "~/job",
            "sync": {"from": "."},
            "env": {"JAX_PLATFORMS": "cpu"},
        }
        (tmp_path / f"{order}.yaml").write_text(json.dumps(settings))
    yield tmp_path
    for server in servers:
        server.close()


@needs_sshd
@pytest.mark.slow
def test_two_launches_at_once_over_several_hosts_do_not_refuse_each_other(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins with another host; whatever the order of events, one of them goes on, on both hosts."""
    folders = Folders(homes, "ab.yaml", monkeypatch)
    try:
        one = folders.start("one")
        folders.file = homes / "ba.yaml"
        two = folders.start("two")
        await_true(lambda: one.launcher.poll() or two.launcher.poll(), 60, "one of them is refused")
        goes, name, refused = (two, "two", one) if one.launcher.poll() else (one, "one", two)
        assert refused.wait(10) == 2 and f"by run {goes.id} of " in refused.stderr
        folders.go.touch()
        assert_ran(goes, name)
        for host in ("a", "b"):
            assert (homes / f"home-{host}" / "job" / "late.py").read_text() == f"NAME = {name!r}\n"
    finally:
        for run in folders.runs:
            run.close()
