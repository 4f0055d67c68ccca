"""Promise 1: whatever Python runs below a process of a run can join the others, or make a cluster of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPO, Launch, LiveRun, Script, Start, await_true, clean_env

JOIN = "import jax\njax.distributed.initialize()\nprint('RESULT', jax.process_count())\n"

# A shell has started this one, with options of its own; it starts itself anew, and that one a child.
CHAIN = """
import os, subprocess, sys
assert sys.flags.dev_mode or "AGAIN" in os.environ
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
sys.exit(subprocess.run([sys.executable, "join.py"]).returncode)
"""


@pytest.mark.slow
def test_any_python_below_a_process_joins_the_others(launch: Launch, script: Script) -> None:
    script(JOIN, "join.py")
    done = launch("--local", "2", "--", "sh", "-c", f"{sys.executable} -X dev {script(CHAIN)} && true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("RESULT 2") == 2


@pytest.mark.slow
def test_a_warm_script_may_start_itself_anew(launch: Launch, script: Script) -> None:
    again = "import os, sys\nif 'AGAIN' not in os.environ:\n    os.environ['AGAIN'] = '1'\n"
    done = launch("--local", "2", script(f"{again}    os.execv(sys.executable, sys.orig_argv)\n{JOIN}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("RESULT 2") == 2


def test_a_python_that_cannot_know_the_others_is_told_what_to_do(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--", sys.executable, "-E", script(JOIN))
    assert done.returncode == 1
    assert "Number of processes must be defined" in done.stderr and "HOSTMESH_NUM_PROCESSES" in done.stderr


# Two processes of a run make clusters that are none of its business: each with a child of its own, and by themselves.
OWN_CLUSTERS = """
import os, socket, subprocess, sys, time
from pathlib import Path

def agree_on_port(name):
    file = Path(name)
    if me == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            aside = Path(name + ".new")
            aside.write_text(str(server.getsockname()[1]))
        aside.rename(file)
    while not file.exists():
        time.sleep(0.05)
    return file.read_text()

me = int(os.environ["HOSTMESH_PROCESS_ID"])
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
import jax
jax.distributed.initialize(f"127.0.0.1:{agree_on_port(sys.argv[-1] + '.port')}", 2, me)
print("RESULT", jax.process_count(), len(jax.devices()))
"""


@pytest.mark.slow
def test_a_script_may_make_a_cluster_of_its_own(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", script(OWN_CLUSTERS), timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("RESULT 2 2") == 4
    assert "separately" not in done.stderr


def test_the_coordinator_listens_on_the_clusters_address_alone(start: Start, script: Script) -> None:
    """Also without a variable that says so."""
    text = "import jax, os\njax.distributed.initialize()\nprint(os.environ['JAX_COORDINATOR_ADDRESS'], flush=True)\n"
    run = start("--local", "2", script(f"{text}import time\ntime.sleep(99)\n"))
    run.await_event("joined", count=2)
    port = int(await_output(run, "127.0.0.1:").rpartition(":")[2])
    listening = [
        line.split()[1].partition(":")[0].removeprefix("0000000000000000FFFF0000")  # an IPv4 address in IPv6
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
    ]
    assert listening == ["0100007F"]


def await_output(run: LiveRun, beginning: str) -> str:
    def found() -> list[str]:
        return [line for line in run.log(0).decode().splitlines(keepends=True) if line.startswith(beginning)]

    await_true(lambda: found() and found()[0].endswith("\n"), 30, beginning)
    return found()[0].strip()


@pytest.mark.slow
def test_initialize_takes_no_longer_than_the_script_says(start: Start, script: Script) -> None:
    text = (
        "import os, time, jax\nif os.environ['HOSTMESH_PROCESS_ID'] == '0': time.sleep(99)\n"
        "jax.distributed.initialize(initialization_timeout=3)\n"
    )
    run = start("--local", "2", script(text))
    began = run.await_event("joining", process_id=1)["time"]
    ended = run.await_event("process exited", process_id=1)["time"]
    assert 2 < ended - began < 40
    assert run.wait() != 0


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """The folder that an agent puts first on PYTHONPATH."""
    folder = tmp_path / "code"
    shutil.copytree(REPO / "src", folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "launcher"))
    (folder / "hostmesh" / "worker" / "process" / "sitecustomize.py").rename(folder / "sitecustomize.py")
    return folder


def run_below(folder: Path, text: str, *path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A program as a process of a run would start it."""
    (folder / "program.py").write_text(text)
    given = clean_env({"HOSTMESH_PROCESS_ID": "0", "PYTHONPATH": os.pathsep.join(map(str, path)), **env})
    return subprocess.run([sys.executable, "program.py"], cwd=folder, env=given, capture_output=True, text=True)


def test_the_sitecustomize_that_ours_hides_is_run(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import sys\nsys.path.append('added')\nMARK = 5\n")
    show = "import sys, sitecustomize\nprint(sitecustomize.MARK, sys.path[-1], 'hostmesh' in sys.modules)\n"
    done = run_below(tmp_path, show, shipped, tmp_path / "theirs")
    assert done.stdout == "5 added False\n" and not done.stderr
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import no_such_module_at_all\n")
    plain = run_below(tmp_path, "print(1)", tmp_path / "theirs")
    assert "no_such_module_at_all" in plain.stderr
    assert run_below(tmp_path, "print(1)", shipped, tmp_path / "theirs").stderr == plain.stderr


def test_a_hostmesh_package_of_the_programs_own_is_left_alone(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "hostmesh.py").write_text("print('their hostmesh')\n")
    (tmp_path / "jax.py").write_text("print('their jax')\n")
    done = run_below(tmp_path, "import jax\n", shipped)
    assert done.stdout == "their jax\n" and not done.stderr


def test_nothing_is_added_where_no_launcher_is(shipped: Path, tmp_path: Path) -> None:
    show = "import sys\nprint([type(finder).__name__ for finder in sys.meta_path if 'Before' in type(finder).__name__])"
    assert run_below(tmp_path, show, shipped).stdout == "['BeforeJax']\n"
    (tmp_path / "program.py").write_text(show)
    plain = clean_env({"PYTHONPATH": str(shipped)})
    assert subprocess.check_output([sys.executable, "program.py"], cwd=tmp_path, env=plain) == b"[]\n"
