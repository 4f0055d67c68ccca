"""A run's files say what was run: folder, command, commit and versions; and the launcher says which one it is."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from conftest import REPO, Launch, Script, Start, await_true, clean_env, is_alive

from hostmesh import __version__
from hostmesh.launcher.output.checkout import Checkout, find_checkout

KEYS = ("folder", "command", "code", "versions")


def git(folder: Path, *args: str) -> str:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    return subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("no git here")
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("runs/\nstderr-*\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_run_names_its_folder_command_commit_and_versions(start: Start, script: Script, repo: Path) -> None:
    (repo / "c.yaml").write_text("transport: local\nhosts: [here]\nsecrets: [API_KEY]\n")
    name = script("import sys\nassert sys.argv[1:] == ['--key', 'hidden-value']\n")
    run = start("--hosts", "c.yaml", name, "--key", "hidden-value", env={"API_KEY": "hidden-value"})
    assert run.wait() == 0, run.stderr
    told = {key: run.result[key] for key in KEYS}
    assert told == {
        "folder": str(repo),
        "command": ["launch", "--json", "--show", "all", "--hosts", "c.yaml", name, "--key", "[redacted]"],
        "code": {"folder": str(repo), "commit": git(repo, "rev-parse", "HEAD"), "changed": False},
        "versions": {
            "hostmesh": __version__,
            "python": sys.version.split()[0],
            "jax": metadata.version("jax"),
        },
    }
    plan = json.loads((run.run_folder / "plan.json").read_text())
    assert {key: plan[key] for key in KEYS} == told and plan["num_processes"] == 1


def test_changes_are_seen_and_what_is_no_repository_has_no_commit(
    repo: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    head = git(repo, "rev-parse", "HEAD")
    (repo / "untracked").touch()
    assert find_checkout(repo, 30) == Checkout(head, changed=False)
    (repo / ".gitignore").write_text("other\n")
    assert find_checkout(repo, 30) == Checkout(head, changed=True)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert find_checkout(elsewhere, 30) is None
    git(elsewhere, "init", "-q")
    assert find_checkout(elsewhere, 30) is None
    assert find_checkout(elsewhere / "missing", 30) is None


def test_a_git_that_hangs_holds_no_run_up(start: Start, script: Script, tmp_path: Path) -> None:
    hanging = tmp_path / "bin" / "git"
    hanging.parent.mkdir()
    hanging.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    hanging.chmod(hanging.stat().st_mode | stat.S_IXUSR)
    run = start("--local", "1", script("pass"), env={"PATH": f"{hanging.parent}:{os.environ['PATH']}"})
    assert run.wait() == 0
    assert run.result["code"]["commit"] is None and run.result["code"]["changed"] is None
    assert run.result["versions"]["hostmesh"] == __version__
    pid = int((tmp_path / "pid").read_text())
    await_true(lambda: not is_alive(pid), 5, "no git left")


@pytest.mark.slow
def test_the_processes_python_can_be_chosen(start: Start, launch: Launch, script: Script, tmp_path: Path) -> None:
    """A wrapper that tells on itself; the versions in the result are its own."""
    own = tmp_path / "own-python"
    own.write_text(f'#!/bin/sh\nCHOSEN=yes exec {sys.executable} "$@"\n')
    own.chmod(0o755)
    name = script("import os\nprint('chosen', os.environ['CHOSEN'])\n")
    (tmp_path / "c.yaml").write_text("transport: local\nhosts: [here]\npython: /nowhere/python\n")
    for how in (["--local", "1"], ["--hosts", "c.yaml"]):
        run = start(*how, "--python", str(own), name)
        assert run.wait() == 0 and run.log(0) == b"chosen yes\n"
        assert run.result["versions"]["python"] == sys.version.split()[0]
    done = launch("--local", "2", "--python", "no/such/python", name)
    assert done.returncode != 0 and "no/such/python" in done.stderr and "Traceback" not in done.stderr
    table = launch("--local", "2", "--python", str(own), "--dry-run", name)
    assert table.stdout.count(str(own)) == 2


def test_the_launcher_says_its_version_however_it_is_called(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("raise SystemExit('not this one')\n")
    by_name = launch("--version")
    assert by_name.returncode == 0 and by_name.stdout.startswith(f"hostmesh {__version__}")
    command = [sys.executable, "-m", "hostmesh.launcher", "--version"]
    by_module = subprocess.run(command, cwd=tmp_path, env=clean_env(), capture_output=True, text=True)
    assert by_module.stdout == by_name.stdout and not by_module.stderr
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "hostmesh.__version__"}


def test_python_m_launcher_runs_a_job(script: Script, tmp_path: Path) -> None:
    """Also where the current folder has a `worker` of its own."""
    (tmp_path / "worker.py").write_text("x = 1\n")
    command = [sys.executable, "-m", "hostmesh.launcher", "--local", "1", "--", "echo", "hi"]
    done = subprocess.run(command, cwd=tmp_path, env=clean_env(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout == "[0 localhost] hi\n", done.stderr
