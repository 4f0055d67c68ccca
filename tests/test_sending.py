"""Files that change while they are sent: every host gets what was listed, or none does, or the run does not start."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LAUNCH, clean_env
from sshd import needs_sshd
from test_remote import Cluster, cluster, sshd  # noqa: F401  (fixtures)

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.sync import tree as tree_module
from hostmesh.launcher.sync.sending import LeftOut, Sending, Unsendable
from hostmesh.launcher.sync.tree import read_tree

CHANGES = "it changes while it is being sent"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are all too large to be kept in memory."""
    monkeypatch.setattr(tree_module, "KEPT_SIZE", -1)
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("listed")
    return folder


def send(sending: Sending, numbers: list[int]) -> tuple[list[Any], list[Any]]:
    """What one host gets, and what is reported."""
    reported: list[Any] = []
    assert sending.note_wanted(numbers) is None
    return list(sending.pieces(numbers, reported.append)), reported


def test_a_file_that_changed_is_left_out_on_every_host_and_told_once(source: Path) -> None:
    sending = Sending(read_tree(source))
    (source / "a.txt").write_text("other")
    sent, reported = send(sending, [0, 1])
    assert sent[0] == wire.SkipFile(0) and sent[1].number == 1 and sent[1].last
    assert reported == [LeftOut("a.txt", CHANGES)]
    (source / "a.txt").write_text("listed")  # it is what it was, but some host is without it
    sent, reported = send(sending, [0])
    assert sent == [wire.SkipFile(0)] and reported == []


def test_a_file_that_some_host_got_cannot_be_left_out_on_another(source: Path) -> None:
    sending = Sending(read_tree(source))
    assert send(sending, [0])[1] == []
    (source / "a.txt").unlink()
    sent, reported = send(sending, [0, 1])
    why = "it has been deleted since it was listed; start again, or exclude it from sync"
    assert reported == [Unsendable(f"{source}/a.txt on this machine cannot be sent: {why}")]
    assert sent == [], "nothing more, since the run ends"


@pytest.mark.parametrize("has_it_answers_first", [True, False])
def test_a_file_that_some_host_has_cannot_be_left_out_on_another(source: Path, has_it_answers_first: bool) -> None:
    sending = Sending(read_tree(source))
    (source / "a.txt").write_text("other")
    if has_it_answers_first:
        assert send(sending, [1])[1] == []
        _, (problem,) = send(sending, [0, 1])
    else:
        assert isinstance(send(sending, [0, 1])[1][0], LeftOut)
        problem = sending.note_wanted([1])
    assert isinstance(problem, Unsendable) and "a.txt on this machine cannot be sent" in problem.problem


@pytest.mark.parametrize("name, mode", [("c.py", 0o644), ("run.sh", 0o755), ("config.json", 0o644)])
def test_code_is_never_left_out(source: Path, name: str, mode: int) -> None:
    (source / name).write_text("listed")
    (source / name).chmod(mode)
    tree = read_tree(source)
    number = [entry.path for entry in tree.entries].index(name)
    sending = Sending(tree, needed=["config.json"])
    (source / name).write_text("other")
    sent, (problem,) = send(sending, [number])
    assert sent == [] and isinstance(problem, Unsendable)
    assert problem.problem.startswith(f"{source}/{name} on this machine cannot be sent: {CHANGES}; start again")


def test_two_hosts_at_once_never_differ(source: Path) -> None:
    """One has got all but the last piece when another finds the file changed."""
    (source / "a.txt").write_bytes(bytes(3 << 20))
    sending = Sending(read_tree(source))
    reported: list[Any] = []
    sending.note_wanted([0])
    slow = sending.pieces([0], reported.append)
    assert [next(slow).number for _ in range(2)] == [0, 0]
    os.truncate(source / "a.txt", 1 << 20)
    assert list(sending.pieces([0], reported.append))[-1] == wire.SkipFile(0)
    assert list(slow) == [wire.SkipFile(0)]
    assert [type(event) for event in reported] == [LeftOut]


# Whole runs.


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Path]:
    """A log in the synced folder that somebody writes to all the time."""
    log, ended = tmp_path / "train.log", threading.Event()
    log.write_text("begun\n")

    def write() -> None:
        with log.open("a", buffering=1) as file:
            while not ended.wait(0.001):
                file.write("one more line\n")

    writer = threading.Thread(target=write)
    writer.start()
    yield log
    ended.set()
    writer.join()


def run_into(output: Path, folder: Path, *args: str) -> int:
    """As `launch ARGS > OUTPUT` does, or with tee."""
    with output.open("ab") as file:
        return subprocess.run(
            [*LAUNCH, "--show", "all", *args],
            cwd=folder,
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            timeout=60,
        ).returncode


@needs_sshd
def test_a_run_whose_output_goes_to_the_synced_folder_starts(
    cluster: Cluster,  # noqa: F811
    growing: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text("print('begun')")
    for _ in range(2):
        (tmp_path / "large.bin").write_bytes(os.urandom(2 << 20))  # so that sending takes a moment
        code = run_into(growing, tmp_path, "--hosts", cluster(), "script.py")
        assert code == 0, growing.read_text(errors="replace")
    assert growing.read_text().count("[0 a] begun\n") == 2
    assert "launch: train.log was left out: somebody is writing it\n" in growing.read_text()


SWAP = """
import os, sys
from hostmesh.launcher.sync import tree
from hostmesh.launcher.cli import main

tree.KEPT_SIZE = -1
read_tree = tree.read_tree

def read_and_change(*args):
    listed = read_tree(*args)
    {change}
    return listed

tree.read_tree = read_and_change
main()
"""


def launch_and_change(change: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A launch whose files change right after they were listed."""
    command = [LAUNCH[0], "-P", "-c", SWAP.format(change=change), "--show", "all", *args]
    return subprocess.run(command, cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=240)


@needs_sshd
@pytest.mark.parametrize(
    "change, why",
    [
        ("open('data.bin', 'w').write('half')", CHANGES),
        ("os.unlink('data.bin')", "it has been deleted since it was listed"),
    ],
)
@pytest.mark.quick("open")
def test_a_data_file_that_changed_is_left_out_and_told(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
    change: str,
    why: str,
) -> None:
    (tmp_path / "data.bin").write_text("listed")
    (tmp_path / "script.py").write_text("import os; print('there', os.path.exists('data.bin'))")
    done = launch_and_change(change, tmp_path, "--hosts", cluster(), "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"launch: data.bin was left out: {why}\n") == 1
    assert {"[0 a] there False", "[1 b] there False"} <= set(done.stdout.splitlines())


@needs_sshd
def test_a_script_that_changed_is_this_machines_problem(cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "script.py").write_text("print('ran')")
    done = launch_and_change("open('script.py', 'a').truncate(3)", tmp_path, "--hosts", cluster(), "script.py")
    assert done.returncode == 2 and "ran" not in done.stdout
    assert f"nothing was started: {tmp_path}/script.py on this machine cannot be sent: {CHANGES}" in done.stderr
    assert "  a: " not in done.stderr and "  b: " not in done.stderr
