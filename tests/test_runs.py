"""Runs that outlive their terminal: detached, found again, attached to, asked, stopped; by their owner alone."""

from __future__ import annotations

import http.server
import json
import os
import pwd
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import HANGS, LAUNCH, Launch, Script, Start, await_true, clean_env, is_alive, processes_of

from hostmesh.launcher.output.run_folder import Run
from hostmesh.launcher.runs.owner import hold_run, is_held

# Until a file `end` is there; each process says who it is and counts.
COUNTS = """
import os, time
me, count = os.environ["HOSTMESH_PROCESS_ID"], 0
while not os.path.exists("end"):
    print(f"{me} counts {count}", flush=True)
    count += 1
    time.sleep(0.005)
"""


@pytest.fixture
def detached(launch: Launch, script: Script, tmp_path: Path) -> Iterator[Run]:
    """A run of two processes that count, and no launcher in front of it."""
    started = launch("--detach", "--local", "2", "--", sys.executable, script(COUNTS))
    assert started.returncode == 0, started.stderr
    run = Run(tmp_path / "runs" / started.stdout.strip())
    supervisor = json.loads(run.lock.read_text())["pid"]
    yield run
    launch("stop", run.id, "--now")
    left = processes_of(run.id)
    if left and is_alive(supervisor):
        os.kill(supervisor, signal.SIGKILL)  # a stop that is broken must not leave it to the machine
    assert not left


def result_of(run: Run) -> dict[str, Any]:
    return json.loads(run.result.read_text())


def end_all(run: Run, folder: Path) -> None:
    (folder / "end").touch()
    await_true(lambda: run.result.exists() and not is_held(run.folder), 60, "the result, and the supervisor's end")


def test_a_detached_run_goes_on_and_is_told_how_to_come_back(launch: Launch, script: Script, tmp_path: Path) -> None:
    started = launch("--detach", "--local", "2", "--", sys.executable, script(COUNTS))
    assert started.returncode == 0 and re.fullmatch(r"\d{4}-\w{6}\n", started.stdout)
    run = Run(tmp_path / "runs" / started.stdout.strip())
    assert all(f"launch {command} {run.id}" in started.stderr for command in ("attach", "status", "stop"))
    owner = json.loads(run.lock.read_text())
    assert os.getsid(owner["pid"]) == owner["pid"] and owner["detached"]
    end_all(run, tmp_path)
    assert result_of(run)["exit_code"] == 0
    assert not processes_of(run.id) and not run.control.exists()


def test_a_start_that_fails_is_the_answer_of_detach(launch: Launch, tmp_path: Path) -> None:
    ended = launch("--detach", "--local", "2", "--python", "/nowhere/python", "-m", "json")
    assert ended.returncode == 2 and "found no executable /nowhere/python" in ended.stderr
    assert not ended.stdout.strip()


def test_a_closed_terminal_ends_no_detached_run(script: Script, tmp_path: Path) -> None:
    """The terminal's whole session gets SIGHUP."""
    command = [*LAUNCH, "--detach", "--local", "1", "--", sys.executable, script(COUNTS)]
    terminal = subprocess.Popen(
        ["sh", "-c", '"$@" > id; kill -HUP 0; sleep 60', "sh", *command],
        cwd=tmp_path,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert terminal.wait(HANGS) == -signal.SIGHUP
    run = Run(tmp_path / "runs" / (tmp_path / "id").read_text().strip())
    size = run.log_of(0).stat().st_size
    await_true(lambda: run.log_of(0).stat().st_size > size + 100, 30, "more output")
    end_all(run, tmp_path)
    assert result_of(run)["outcome"] == "succeeded"


def test_what_is_attached_to_is_exactly_what_the_files_say_however_often_it_is_killed(
    detached: Run, launch: Launch, tmp_path: Path
) -> None:
    chance = random.Random(5)
    for _ in range(20):
        with start_command(tmp_path, "attach", "last", *chance.choice(((), ("--all",)))) as attached:
            time.sleep(chance.uniform(0.0, 0.3))  # no event: any moment of its life is meant
            attached.kill()
    followers = [start_command(tmp_path, "attach", detached.id, "--all", "--show", "all") for _ in range(2)]
    late = start_command(tmp_path, "attach", detached.id, "--show", "all")
    await_true(lambda: detached.log_of(1).stat().st_size > 20_000, 60, "some output")
    end_all(detached, tmp_path)
    for follower in followers:
        out, _ = follower.communicate(timeout=HANGS)
        assert follower.returncode == 0
        for process_id in (0, 1):
            assert lines_of(out, process_id) == detached.log_of(process_id).read_bytes().splitlines()
    out, _ = late.communicate(timeout=HANGS)
    for process_id in (0, 1):
        shown = lines_of(out, process_id)
        assert shown and detached.log_of(process_id).read_bytes().splitlines()[-len(shown) :] == shown
    again = launch("attach", detached.id, "--all", "--show", "all", all_lines=False)
    assert again.stderr.endswith("launch: all 2 processes succeeded" + again.stderr.rpartition("succeeded")[2])


def start_command(folder: Path, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*LAUNCH, *args],
        cwd=folder,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def lines_of(out: bytes, process_id: int) -> list[bytes]:
    label = f"[{process_id} localhost] ".encode()
    return [line[len(label) :] for line in out.splitlines() if line.startswith(label)]


def test_leaving_a_run_leaves_it_alone(detached: Run, tmp_path: Path) -> None:
    attached = subprocess.Popen(
        [*LAUNCH, "attach", "last"],
        cwd=tmp_path,
        env=clean_env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert attached.stdout is not None
    attached.stdout.readline()
    attached.send_signal(signal.SIGINT)
    _, said = attached.communicate(timeout=HANGS)
    assert attached.returncode == 0 and f"run {detached.id} goes on; launch stop {detached.id} ends it" in said
    assert not detached.result.exists()


def test_a_run_answers_how_it_stands(detached: Run, launch: Launch) -> None:
    told = launch("status", "last").stdout
    assert f"run {detached.id}: running" in told and "process 1 running" in told
    told = json.loads(launch("status", detached.id[:6], "--json").stdout)
    assert [each["state"] for each in told["processes"]] == ["running", "running"]
    [row] = json.loads(launch("runs", "--json").stdout)
    assert (row["run"], row["state"], row["hosts"]) == (detached.id, "running", 1)


def test_a_run_in_the_foreground_answers_too(start: Start, launch: Launch, script: Script) -> None:
    run = start("--local", "2", "--", sys.executable, script(COUNTS))
    run.await_event("process started", 2)
    assert f"run {run.id}: running" in launch("status", "last").stdout
    assert launch("stop", run.id).returncode == 0
    assert run.wait() == 128 + signal.SIGTERM
    assert launch("status", run.id).stdout.splitlines()[1] == "stopped by SIGTERM"
    assert "had ended already" in launch("stop", run.id).stdout


def test_a_command_runs_on_the_hosts_and_leaves_nothing(detached: Run, launch: Launch, tmp_path: Path) -> None:
    text = "echo $HOSTMESH_RUN_ID; echo e >&2; (setsid sleep 1000 &) ; printf half; exit 3"
    done = launch("exec", "last", "--", "sh", "-c", text)
    assert done.returncode == 3 and "on localhost it ended with 3" in done.stderr
    assert done.stdout.splitlines() == [f"[localhost] {line}" for line in (detached.id, "e", "half")]
    assert not sleepers(detached.id)
    told = launch("exec", "last", "--json", "--", "/nowhere/program").stdout.splitlines()
    assert json.loads(told[-1]) == {"host": "localhost", "exit_code": 127, "lost": False}
    assert "No such file" in told[0]
    assert "found no host elsewhere" in launch("exec", "last", "--host", "elsewhere", "--", "true").stderr
    assert "wanted one after --" in launch("exec", "last", "true").stderr


def test_a_command_whose_user_leaves_ends_everywhere(detached: Run, tmp_path: Path) -> None:
    text = "sleep 1000 & setsid sleep 1000 & echo on; wait"
    with start_command(tmp_path, "exec", "last", "--", "sh", "-c", text) as command:
        assert command.stdout is not None
        said = command.stdout.readline()
        command.kill()
    assert said == b"[localhost] on\n"
    await_true(lambda: not sleepers(detached.id), 20, "nothing left of the command")
    assert not detached.result.exists()


def sleepers(run_id: str) -> list[int]:
    return [pid for pid in processes_of(run_id) if name_of(pid) == "sleep"]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""


STUCK = """
import os, threading, time
def waits_for_ever():
    print("waits", flush=True)
    threading.Event().wait()
waits_for_ever()
"""


def test_the_stacks_of_all_processes_while_they_go_on(start: Start, launch: Launch, script: Script) -> None:
    run = start("--local", "2", script(STUCK))
    run.await_event("process started", 2)
    await_true(lambda: all(run.log(process_id) for process_id in (0, 1)), 60, "both wait")
    shown = launch("stacks", "last")
    assert shown.returncode == 0 and shown.stdout.count("in waits_for_ever") == 2, shown.stdout + shown.stderr
    told = json.loads(launch("stacks", run.id, "--json").stdout)
    assert [each["process_id"] for each in told["processes"]] == [0, 1] and not told["missing"]
    assert run.launcher.poll() is None


def test_logs_of_a_run(detached: Run, launch: Launch, tmp_path: Path) -> None:
    await_true(lambda: detached.log_of(1).stat().st_size > 500, 60, "some output")
    follower = start_command(tmp_path, "logs", "last", "-f", "--process", "1")
    end_all(detached, tmp_path)
    out, _ = follower.communicate(timeout=HANGS)
    assert out == detached.log_of(1).read_bytes()
    last = out.splitlines()[-2:]
    assert launch("logs", "last", "--process", "1", "--tail", "2").stdout.encode().splitlines() == last
    both = launch("logs", "last", "--host", "localhost", "--tail", "1").stdout.splitlines()
    assert [line[:13] for line in both] == ["[0 localhost]", "[1 localhost]"]
    line = json.loads(launch("logs", "last", "--tail", "1", "--json").stdout.splitlines()[1])
    assert line == {"process_id": 1, "host": "localhost", "line": last[-1].decode()}
    assert "wanted one of the 2 processes" in launch("logs", "last", "--process", "7").stderr


def test_a_run_whose_supervisor_died_says_so(detached: Run, launch: Launch) -> None:
    os.kill(json.loads(detached.lock.read_text())["pid"], signal.SIGKILL)
    await_true(lambda: not processes_of(detached.id), 60, "its processes ended")
    assert "its supervisor died without a word" in launch("status", "last").stdout
    assert json.loads(launch("runs", "--json").stdout)[0]["state"] == "died"
    for command in (["stop", "last"], ["stacks", "last"], ["exec", "last", "--", "true"]):
        done = launch(*command)
        assert done.returncode == 1 and "has no supervisor: it died without a word" in done.stderr
    assert launch("attach", "last").returncode == 1


IMPORTS = """
import socket, sys
from hostmesh.launcher.cli import launch
from hostmesh.launcher.output import redact
from hostmesh.launcher.runs import options
from hostmesh.launcher.runs.commands import execute
from hostmesh.launcher.runs.commands import stacks
from hostmesh.launcher.runs.commands import status
from hostmesh.launcher.runs.commands import stop
launch(["status", "none"])
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@needs_root
def test_another_user_is_refused(detached: Run, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)  # pytest's own folders let nobody in
    nobody = pwd.getpwnam("nobody")

    def run(text: str, *args: str, folder: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        """What is imported is imported before: this Python may be in a folder of root's."""
        become = f"import os\nos.setgroups([])\nos.setgid({nobody.pw_gid})\nos.setuid({nobody.pw_uid})\n"
        command = [sys.executable, "-c", IMPORTS + become + text, *args]
        return subprocess.run(command, cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=HANGS)

    for command in (["status", "last"], ["stop", "last"], ["stacks", "last"], ["exec", "last", "--", "true"]):
        done = run("sys.exit(launch(sys.argv[1:]))", *command)
        assert done.returncode == 2 and f"run {detached.id} is root's: only they can talk to it" in done.stderr
    knock = "socket.socket(socket.AF_UNIX).connect('control/socket')"
    refused = run(knock, folder=detached.folder)
    assert "PermissionError" in refused.stderr
    assert not detached.result.exists()


# What is only about folders.


def make_ended(runs: Path, name: str, days: float = 0.0) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    result = {"outcome": "failed", "exit_code": 3, "message": "process 2 on b was killed", "hosts": 2, "step": 7}
    (folder / "result.json").write_text(json.dumps(result))
    then = time.time() - days * 86400
    os.utime(folder / "plan.json", (then, then))
    return folder


def test_runs_are_found_by_id_beginning_and_last(launch: Launch, tmp_path: Path) -> None:
    for name, days in (("1101-bbbbbb", 3), ("1101-bbcccc", 2), ("1102-dddddd", 5)):
        make_ended(tmp_path / "runs", name, days)
    assert "run 1101-bbcccc: failed" in launch("status", "last").stdout
    assert "run 1102-dddddd: failed" in launch("status", "1102").stdout
    assert "run 1101-bbbbbb: failed" in launch("status", "runs/1101-bbbbbb").stdout
    ambiguous = launch("status", "1101-bb")
    assert ambiguous.returncode == 2
    assert "found 2 runs that begin with 1101-bb, wanted one: 1101-bbcccc, 1101-bbbbbb" in ambiguous.stderr
    missing = launch("status", "0909")
    assert missing.returncode == 2 and "found no run '0909' in runs; the newest are 1101-bbcccc" in missing.stderr
    nothing = launch("status", "last", "--runs", "elsewhere")
    assert nothing.returncode == 2 and "found no run in elsewhere" in nothing.stderr
    table = launch("runs").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["run", "1101-bbcccc", "1101-bbbbbb", "1102-dddddd"]
    assert "failed  2      7     process 2 on b was killed" in table[1]


def test_old_runs_are_removed_and_no_other(launch: Launch, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    old, new, lives = (make_ended(runs, name, days) for name, days in zip(IDS, (40, 10, 40), strict=True))
    (runs / "1101-mine").mkdir()
    with hold_run(Run(lives)) as lock:
        assert lock is not None
        said = launch("runs", "--prune").stdout
    assert "removed 1 run " in said and "1 old run could not be removed, or still live" in said
    assert not old.exists() and new.exists() and lives.exists() and (runs / "1101-mine").exists()
    launch("runs", "--prune", "--days", "5")
    assert not new.exists()


IDS = ("1101-bbbbbb", "1101-cccccc", "1101-dddddd")


def test_a_thousand_runs_are_listed_at_once(launch: Launch, tmp_path: Path) -> None:
    first = make_ended(tmp_path / "runs", "1101-222222")
    digits = "23456789bcdfghjkmnpqrstvwxz"
    for number in range(1, 1000):
        name = "1101-22" + "".join(digits[number // 27**place % 27] for place in range(4))
        if not (tmp_path / "runs" / name).exists():
            shutil.copytree(first, tmp_path / "runs" / name)
    before = os.times().children_user
    listed = launch("runs")
    spent = os.times().children_user - before
    assert len(listed.stdout.splitlines()) == 1001
    assert spent < 0.5


# Being told of the end.


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[Any], list[int]]]:
    """A server on this machine: its address, what was posted to it, and the answers that it still has to give."""
    posted: list[Any] = []
    answers: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop(0) if answers else 200)
            self.end_headers()

        log_message: Callable[..., None] = lambda *_: None

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/done", posted, answers
    server.shutdown()
    server.server_close()


def test_a_url_is_told_the_result_and_asked_again(
    launch: Launch, receiver: tuple[str, list[Any], list[int]], tmp_path: Path
) -> None:
    """It is written down nowhere: such an address is often a secret."""
    url, posted, answers = receiver
    answers += [500]
    done = launch("--local", "1", "--notify", url, "--", "false")
    assert done.returncode == 1 and "--notify" not in done.stderr
    assert [each["exit_code"] for each in posted] == [1, 1] and posted[0]["processes"] == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and url in path.read_text()]


def test_a_failure_to_notify_is_told_and_changes_nothing(launch: Launch, tmp_path: Path) -> None:
    done = launch("--local", "1", "--notify", "echo sorry >&2; exit 4", "--", "true")
    assert done.returncode == 0 and "launch: --notify failed 3 times: it ended with 4: sorry" in done.stderr
    done = launch("--local", "1", "--notify", "cat > told.json", "--", "true")
    assert done.returncode == 0 and json.loads((tmp_path / "told.json").read_text())["outcome"] == "succeeded"
