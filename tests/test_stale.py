"""What a host that lost its power keeps of a run is removed by the next agent there, and nothing else is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import await_true
from test_agent import Talk, talk  # noqa: F401  (a fixture)

from hostmesh.launcher.agent import guardian
from hostmesh.launcher.agent.files import remove_tree
from hostmesh.launcher.agent.leftovers import stale_folders
from hostmesh.launcher.protocol import wire

OLD = time.time() - 3600


def make(base: Path, name: str = "hostmesh-1116-k7m2xq.0", lock: bool = True, age: float = 3600.0) -> Path:
    folder = base / name
    (folder / "code" / "hostmesh").mkdir(parents=True)
    (folder / "code" / "hostmesh" / "__init__.py").touch()
    (folder / "output-0").write_text("last words")
    (folder / "link").symlink_to(base / "precious")
    if lock:
        (folder / "lock").touch()
    os.utime(folder, (time.time() - age,) * 2)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").touch()
    return tmp_path


@pytest.fixture
def short() -> Iterator[Path]:
    """Agents do not use a temporary folder with a long name, as pytest's own are."""
    with tempfile.TemporaryDirectory(prefix="hosts-", dir="/tmp") as folder:
        yield Path(folder)


def stale_in(base: Path) -> list[str]:
    return [path for path in stale_folders.list_folders(str(base / "hostmesh-own.1")) if stale_folders.is_stale(path)]


def test_a_folder_that_nobody_holds_is_stale_and_goes_without_what_it_links_to(base: Path) -> None:
    folder = make(base)
    assert stale_in(base) == [str(folder)]
    stale_folders.remove_stale(str(folder))
    assert not folder.exists() and (base / "precious" / "data").exists()


def test_one_that_is_held_is_left_alone_even_by_another_process(base: Path) -> None:
    folder = make(base)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert stale_in(base) == []
    assert stale_in(base) == [str(folder)]


def test_what_is_young_or_has_another_owner_or_is_a_link_is_left_alone(base: Path) -> None:
    folder = make(base)
    (base / "hostmesh-1116-aaaaaa.0").symlink_to(folder)
    (base / "hostmesh-1116-bbbbbb.0").touch()
    make(base, "hostmesh-mine")
    make(base, "hostmesh-1116-cccccc.0", lock=False)
    assert stale_in(base) == [str(folder)]
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        assert stale_in(base) == []
        os.chown(folder, 0, 0)
    os.utime(folder)
    assert stale_in(base) == []


def test_one_whose_agent_lives_is_left_alone(base: Path) -> None:
    folder = make(base)
    env = {**os.environ, "HOSTMESH_AGENT": "1116-k7m2xq.0"}
    with subprocess.Popen(["sleep", "1000"], env=env) as process:
        stale_folders.remove_stale(str(folder))
        process.kill()
    assert folder.exists()


def test_an_agent_holds_its_folder_and_removes_what_is_stale_beside_it(
    talk: Callable[..., Talk],  # noqa: F811
    short: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    first = talk()
    first.hear(wire.Hello)
    (own,) = short.glob("hostmesh-*")
    os.utime(own, (OLD, OLD))
    left, young = make(short), make(short, "hostmesh-1116-young2.0", age=0)
    second = talk()
    second.hear(wire.Hello)
    await_true(lambda: not left.exists(), 20, "what is stale is gone")
    first.channel.send(wire.Reserve(["127.0.0.1"], listen=False))
    first.hear(wire.Reserved)
    assert young.exists() and (own / "lock").exists() and len(list(short.glob("hostmesh-*"))) == 3


def test_an_agent_that_is_killed_with_its_guardian_holds_nothing_any_more(
    talk: Callable[..., Talk],  # noqa: F811
    short: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As far as a power loss can be had here."""
    monkeypatch.setenv("TMPDIR", str(short))
    agent = talk()
    hello = agent.hear(wire.Hello)
    (own,) = short.glob("hostmesh-*")
    assert not stale_folders.is_free(str(own), 0.0)
    for pid in (hello.guardian_pid, hello.pid):
        os.kill(pid, signal.SIGSTOP)
    for pid in (hello.guardian_pid, hello.pid):
        os.kill(pid, signal.SIGKILL)
    await_true(lambda: stale_folders.is_free(str(own), 0.0), 20, "nobody holds the folder")
    assert (own / "lock").exists()


def test_a_removal_that_is_interrupted_leaves_a_folder_that_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "agent").mkdir()
    for name in ("lock", "output-0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(guardian, "remove_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        guardian.remove(str(tmp_path))
    assert (tmp_path / "lock").exists()


def test_a_folder_is_removed_with_all_that_is_in_it_and_nothing_beyond_its_links(tmp_path: Path) -> None:
    folder, other = tmp_path / "agent", tmp_path / "other"
    for path in (folder / "code" / "deep", other):
        path.mkdir(parents=True)
        (path / "file").touch()
    (folder / "to a folder").symlink_to(other)
    (folder / "to nothing").symlink_to(tmp_path / "gone")
    remove_tree(str(folder))
    assert not folder.exists() and (other / "file").exists()
    remove_tree(str(folder))  # it is gone already
