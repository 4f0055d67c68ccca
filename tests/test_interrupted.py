"""Ctrl-C reaches processes as it does under a shell; of those that do not stop, where they were is kept."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LiveRun, Script, Start, await_true, clean_env, processes_of

WARM_AND_COLD = pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])

IN_THE_BACKGROUND = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
# Says in which order Python's ways to notice Ctrl-C are gone through.
NOTICES = """
import atexit, time
atexit.register(lambda: print("exit handler", flush=True))
try:
    print("up", flush=True); time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
finally:
    print("finally", flush=True)
"""
# Process 0 is stuck and hears no request; process 1 leaves when asked to.
HALF_STUCK = """
import os, signal, sys, time
is_stuck = os.environ["HOSTMESH_PROCESS_ID"] == "0"
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN if is_stuck else lambda *_: sys.exit(0))
def stuck_here():
    print("up", flush=True)
    while True: time.sleep(1000)
stuck_here()
"""


def await_up(run: LiveRun, count: int) -> None:
    await_true(lambda: run.stderr.count("up\n") == count, 60, "the processes to be up")


def without_marks(said: str) -> list[str]:
    """Of a traceback: which half of the line it was in depends on the moment."""
    return [line for line in said.splitlines() if line.strip(" ^")]


@pytest.fixture
def plain(tmp_path: Path, script: Script) -> tuple[int, str]:
    """How NOTICES ends under plain Python, and what it prints."""
    command = [sys.executable, script(NOTICES, "plain.py")]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=clean_env(), **both) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
    return process.returncode, "up\n" + said.replace("plain.py", "script.py")


@pytest.mark.parametrize("how", [["2"], ["2", "--cold"], ["1"]], ids=["warm", "cold", "alone"])
def test_ctrl_c_is_noticed_as_under_plain_python(
    start: Start, script: Script, plain: tuple[int, str], how: list[str]
) -> None:
    """Also by a launcher that was put in the background: its shell has SIGINT ignored there."""
    code, said = plain
    count = int(how[0])
    run = start("--local", *how, "--grace", "60", script(NOTICES), below=IN_THE_BACKGROUND)
    await_up(run, count)
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130 and run.result["message"] == "stopped by Ctrl-C" and run.result["detail"] == []
    assert code == -signal.SIGINT and run.result["exits"] == {str(k): code for k in range(count)}
    assert "asked the processes to stop; up to 60 s (again: at once)" in run.stderr
    if count == 1:
        assert without_marks(run.log(0).decode()) == without_marks(said)
        return
    # Several tracebacks would bury the screen.
    before, trace, _ = said.partition("Traceback")
    assert trace and [run.log(k).decode() for k in range(count)] == [before + "exit handler\n"] * count
    for k in range(count):
        stack = (run.run_folder / "stacks" / f"process-{k:03d}.txt").read_text()
        assert stack.startswith("Traceback") and "time.sleep(1000)" in stack and stack.endswith("KeyboardInterrupt\n")


# Process 1 waits in a collective for process 0, and has more to do at its end; that of process 0 makes jax abort it.
UNEQUAL = """
import atexit, time
import jax
from jax.experimental import multihost_utils
jax.distributed.initialize()
process_id = jax.process_index()
multihost_utils.sync_global_devices("connected")
def leave():
    time.sleep(process_id)
    print("left in order", flush=True)
atexit.register(leave)
print("up", flush=True)
if process_id == 0:
    time.sleep(1000)
multihost_utils.sync_global_devices("never")
"""


def test_process_0_does_not_end_the_others_while_they_leave(start: Start, script: Script) -> None:
    run = start("--local", "2", "--grace", "60", script(UNEQUAL))
    await_up(run, 2)
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130 and run.result["exits"] == {"0": -signal.SIGINT, "1": -signal.SIGINT}
    assert [run.log(k).splitlines()[-2:] for k in range(2)] == [[b"up", b"left in order"]] * 2, run.stderr


JOINS_ALONE = """
import os, time
if os.environ["HOSTMESH_PROCESS_ID"] == "0":
    import jax
    jax.distributed.initialize()
time.sleep(1000)
"""


@WARM_AND_COLD
def test_ctrl_c_ends_a_process_that_waits_for_others_to_join(start: Start, script: Script, how: list[str]) -> None:
    """It waits in native code, where Python hears of nothing."""
    run = start("--local", "2", "--grace", "60", *how, script(JOINS_ALONE))
    run.await_event("joining")
    await_true(lambda: is_listening(run), 60, "the coordinator")
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait(30) == 130 and run.result["detail"] == []
    assert run.result["exits"]["0"] == -signal.SIGINT


def is_listening(run: LiveRun) -> bool:
    """Whether process 0 has got as far as its coordinator's port, from which on it waits."""
    pid = run.await_event("process started", process_id=0)["pid"]
    inodes = {link.readlink().name[8:-1] for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    tables = "".join(Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    return any(row[9] in inodes for row in map(str.split, tables.splitlines()) if row[3] == "0A")


# A program below a shell, which has something to do when it is asked to stop.
BELOW_A_SHELL = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    os.write(1, b"saved\\n")  # print might be what it interrupts
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, save)
print("up", flush=True)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_reaches_the_program_that_a_shell_runs(start: Start, script: Script, number: int) -> None:
    command = f"{sys.executable} {script(BELOW_A_SHELL)}; exit 9"
    run = start("--local", "2", "--grace", "60", "--", "sh", "-c", command)
    await_up(run, 2)
    run.launcher.send_signal(number)
    assert run.wait() == 128 + number
    assert [run.log(k) for k in range(2)] == [b"up\nsaved\n"] * 2
    assert not processes_of(run.id)


def test_a_hangup_that_nohup_ignores_ends_nothing(start: Start, script: Script) -> None:
    run = start("--local", "1", script(NOTICES), below=["nohup"])
    await_up(run, 1)
    run.launcher.send_signal(signal.SIGHUP)
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait() == 143 and run.result["message"] == "stopped by SIGTERM"


@WARM_AND_COLD
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.quick("2-warm")
def test_a_stuck_process_leaves_its_stack_at_the_end(start: Start, script: Script, how: list[str], number: int) -> None:
    run = start("--local", "2", *how, script(HALF_STUCK))
    await_up(run, 2)
    run.launcher.send_signal(number)
    assert run.wait() == 128 + number
    assert "in stuck_here" in (run.run_folder / "stacks" / "process-000.txt").read_text()
    assert not (run.run_folder / "stacks" / "process-001.txt").exists()
    where = f"1 process did not stop within 3 s (--grace gives more); stacks: runs/{run.id}/stacks/"
    assert where in run.result["detail"] and where in run.stderr


def test_a_stuck_command_is_told_though_it_has_no_stack(start: Start) -> None:
    stuck = "trap '' INT TERM; echo up; while :; do sleep 1; done"
    run = start("--local", "1", "--grace", "0.2", "--", "sh", "-c", stuck)
    await_up(run, 1)
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert run.result["detail"] == ["1 process did not stop within 0.2 s (--grace gives more)"]


def test_a_second_ctrl_c_waits_for_no_stacks(start: Start, script: Script) -> None:
    run = start("--local", "2", script(HALF_STUCK))
    await_up(run, 2)
    for count in (1, 2):
        run.launcher.send_signal(signal.SIGINT)
        run.await_event("interrupted", count)
    assert run.wait() == 130
    assert not (run.run_folder / "stacks").exists() and run.result["detail"] == []
