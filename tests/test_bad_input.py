"""Bad input: a clear message, exit code 2, nothing started, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from apart import drop_rights, fail_apart
from conftest import LAUNCH, Launch, Script, clean_env

from hostmesh.launcher.cluster.model import Job
from hostmesh.launcher.planning.job import check_job
from hostmesh.worker.job.options import JOB_OPTIONS
from hostmesh.worker.job.settings import make_parser


def cluster(text: str) -> str:
    return f"transport: local\nrun: {{script: script.py}}\n{text}\n"


BAD_FILES = {
    "YAML syntax": ("hosts: [a", "cluster.yaml:4: not valid YAML"),
    "unknown key": ("hosts: [a]\nprocesses_pr_host: 2", "cluster.yaml:4: unknown key 'processes_pr_host'; nearest is"),
    "wrong type": (
        "hosts: [a]\nprocesses_per_host: two",
        "cluster.yaml:4: processes_per_host: found 'two' (text), wanted",
    ),
    "no hosts": ("hosts: []", "cluster.yaml:3: hosts: found an empty list, wanted"),
    "missing hosts": ("", "cluster.yaml:1: missing key 'hosts'"),
    "duplicate host": ("hosts: ['a[0-1]', a1]", "cluster.yaml:3: hosts[1]: host a1 is already on line 3"),
    "0 processes": ("hosts: [a]\nprocesses_per_host: 0", "cluster.yaml:4: processes_per_host: found 0, wanted"),
    "0 processes on a host": (
        "hosts: [{address: a, processes: 0}]",
        "cluster.yaml:3: hosts[0].processes: found 0, wanted",
    ),
    "port": (
        "hosts: [{address: a, port: 70000}]",
        "cluster.yaml:3: hosts[0].port: found 70000, wanted a port from 1 to",
    ),
    "python": ("hosts: [a]\npython: /no/such/python", "a: python: found no executable /no/such/python"),
    "python of one host": ("hosts: [a, {address: b, python: nonesuch}]", "b: python: found no executable nonesuch"),
    "workdir": ("hosts: [a]\nworkdir: /no/such", "found no script script.py in /no/such"),
}


@pytest.mark.parametrize("problem", BAD_FILES)
def test_a_bad_cluster_file(launch: Launch, script: Script, tmp_path: Path, problem: str) -> None:
    text, said = BAD_FILES[problem]
    script("open('started', 'w')")
    (tmp_path / "cluster.yaml").write_text(cluster(text))
    done = launch("--hosts", "cluster.yaml")
    assert done.returncode == 2
    assert said in done.stderr
    assert not done.stdout and "Traceback" not in done.stderr
    assert not (tmp_path / "started").exists()


def test_every_host_without_its_python_is_named(launch: Launch, script: Script, tmp_path: Path) -> None:
    script("pass")
    (tmp_path / "cluster.yaml").write_text(cluster("hosts: [a, b, c]\npython: /no/such/python"))
    done = launch("--hosts", "cluster.yaml")
    assert [f"{host}: python: found no executable /no/such/python" in done.stderr for host in "abc"] == [True] * 3


BAD_COMMANDS = {
    "nothing": ([], "wanted --hosts FILE or --local N"),
    "no such file": (["--hosts", "nowhere.yaml"], "nowhere.yaml: no such file or directory"),
    "both": (["--hosts", "x.yaml", "--local", "2", "script.py"], "found both --hosts and --local"),
    "no script": (["--local", "2", "nowhere.py"], "found no script nowhere.py in"),
    "a folder": (["--local", "2", "folder.py"], "found no script folder.py in"),
    "not Python": (["--local", "2", "script.sh"], "wanted a Python script; for anything else write --"),
    "0 processes": (["--local", "0", "script.py"], "found 0, wanted a whole number of at least 1"),
    "too many": (["--local", "999999", "script.py"], "--local: found 999999, wanted from 1 to"),
    "a word": (["--local", "two", "script.py"], "found two, wanted a whole number"),
    "no grace": (["--local", "2", "--grace", "0", "script.py"], "found 0, wanted a number of seconds above 0"),
    "0 devices": (["--local", "2", "--devices", "0", "script.py"], "found 0, wanted a whole number of at least 1"),
    "unknown option": (["--lokal", "2", "script.py"], "unknown option --lokal; nearest is --local"),
    "misspelt, and no script": (["--local", "4", "--devces", "2"], "unknown option --devces; nearest is --devices"),
    "misspelt job option": (["--local", "4", "--step=5"], "unknown option --step=5; nearest is --steps"),
    "shortened job option": (["--local", "4", "--batch", "5"], "unknown option --batch; nearest is --batch-size"),
    "job option, no value": (["--local", "4", "--steps"], "argument --steps: expected one argument"),
    "job switch with a value": (["--local", "4", "--span-processes=1"], "argument --span-processes: ignored explicit"),
    "job option for a script": (
        ["--local", "2", "--steps", "5", "script.py"],
        "--steps is an option of the built-in job; put it after script.py to give it to your script",
    ),
    "job option for a module": (
        ["--local", "2", "--span-processes", "-m", "script"],
        "--span-processes is an option of the built-in job; put it after script to give it to your module",
    ),
    "job option for a command": (
        ["--local", "2", "--lr=1", "--", "true"],
        "--lr is an option of the built-in job; put it after your command",
    ),
    "no value": (["--local"], "expected one argument"),
    "no module": (["--local", "2", "-m"], "found nothing after -m"),
    "no command": (["--local", "2", "--"], "found nothing after --"),
    "runs is a file": (
        ["--runs", "script.py", "--local", "2", "script.py"],
        "--runs: found script.py, where no folder",
    ),
    "runs nowhere": (["--runs", "/proc/nowhere", "--local", "2", "script.py"], "--runs: found /proc/nowhere, where no"),
}


@pytest.mark.parametrize("problem", BAD_COMMANDS)
def test_a_bad_command_line(launch: Launch, script: Script, tmp_path: Path, problem: str) -> None:
    args, said = BAD_COMMANDS[problem]
    script("open('started', 'w')")
    script("true", "script.sh")
    (tmp_path / "folder.py").mkdir()
    done = launch(*args)
    assert done.returncode == 2
    assert said in done.stderr
    assert all(line.startswith("launch: ") for line in done.stderr.splitlines())
    assert not (tmp_path / "started").exists()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others may enter: pytest closes those above its own whenever a session begins."""
    with tempfile.TemporaryDirectory(prefix="hostmesh-test-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_read_only_runs_folder(open_folder: Path) -> None:
    """As somebody who is not root: root may write anywhere."""
    runs, script = open_folder / "runs", open_folder / "script.py"
    runs.mkdir()
    runs.chmod(0o555)
    script.write_text("open('started', 'w')")
    become_somebody = "os.setuid(65534)" if os.getuid() == 0 else "pass"
    code = (
        "import os, sys\nfrom hostmesh.launcher import cli, launch, start\n"
        "from hostmesh.launcher.cluster import file, local\n"
        f"cli.build_parser()\n{become_somebody}\nsys.exit(cli.launch(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-P", "-c", code, "--runs", str(runs), "--local", "2", str(script)]
    done = subprocess.run(command, cwd="/", env=clean_env(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 2, done.stderr
    assert "where no folder can be made (Permission denied)" in done.stderr


def check_without_rights(folder: str) -> None:
    drop_rights()
    check_job(Job(script="closed/script.py"), Path(folder))


def test_a_script_in_a_folder_that_cannot_be_entered_is_told(open_folder: Path) -> None:
    (open_folder / "closed").mkdir()
    (open_folder / "closed" / "script.py").touch()
    (open_folder / "closed").chmod(0)
    assert "found no script closed/script.py" in fail_apart(check_without_rights, str(open_folder))
    (open_folder / "closed").chmod(0o700)


def test_a_job_option_for_what_the_cluster_file_runs(launch: Launch, script: Script, tmp_path: Path) -> None:
    script("open('started', 'w')")
    (tmp_path / "cluster.yaml").write_text(cluster("hosts: [a]"))
    done = launch("--hosts", "cluster.yaml", "--seed", "5")
    assert done.returncode == 2
    assert "--seed is an option of the built-in job; put it among the args of run: in the cluster file" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("name", ["hostmesh.py", "hostmesh/__init__.py"])
def test_a_users_module_that_would_hide_ours(launch: Launch, script: Script, name: str) -> None:
    script("pass", name)
    for what in ([script("pass")], ["-m", "script"], []):
        done = launch("--local", "2", *what)
        assert done.returncode == 2
        assert f"{name} would hide hostmesh's own package" in done.stderr


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_users_worker_and_launcher_are_theirs(launch: Launch, script: Script, tmp_path: Path, how: list[str]) -> None:
    script("NAME = 'their worker'", "worker.py")
    script("NAME = 'their launcher'", "launcher/__init__.py")
    name = script("import hostmesh, launcher, worker\nhostmesh.join()\nprint(worker.NAME, launcher.NAME)")
    done = launch("--local", "2", *how, name, env={"PYTHONPATH": f"{tmp_path}:{clean_env()['PYTHONPATH']}"})
    assert done.returncode == 0 and done.stdout.count("their worker their launcher") == 2, done.stderr


def test_odd_names_are_just_names(launch: Launch, script: Script) -> None:
    name = script("import sys; print('ARGS', sys.argv[1:])", "a'; echo foo/tr ain\n.py")
    done = launch("--local", "1", name, "$(touch x)", "", "é")
    assert done.returncode == 0, done.stdout
    assert "ARGS ['$(touch x)', '', 'é']" in done.stdout


def test_help_teaches_and_is_quick() -> None:
    env = clean_env()
    done = subprocess.run([*LAUNCH, "--help"], env=env, capture_output=True, text=True, check=True)
    for word in (
        "--hosts",
        "--local",
        "--devices",
        "--cold",
        "--dry-run",
        "--json",
        "--runs",
        "examples:\n  launch --local 4 --devices 2  ",
        "exit code",
    ):
        assert word in done.stdout


def test_the_launcher_knows_the_options_of_the_built_in_job() -> None:
    """It lists them itself, because it may not import the job."""
    actions = {action.option_strings[-1]: action for action in make_parser()._actions if action.dest != "help"}
    assert {name: action.nargs != 0 for name, action in actions.items()} == {
        name: option.value is not None for name, option in JOB_OPTIONS.items()
    }
