"""Promise 3: one failure, one verdict, with the culprit named and the victims only counted."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from conftest import Launch, Script, Start, await_true, busyness, processes_of

TRAIN = """
import jax, os, signal, sys, time
from jax.experimental import multihost_utils
jax.distributed.initialize()
multihost_utils.sync_global_devices("up")
print("up", flush=True)
def step(k):
    if k == 20 and jax.process_index() == 2:
        {fault}
    multihost_utils.sync_global_devices(str(k))
for k in range({steps}):
    step(k)
"""


def train(fault: str = "pass", steps: int = 10**9) -> str:
    return TRAIN.format(fault=fault, steps=steps)


@pytest.mark.newest
@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_an_exception_in_one_process_is_the_verdict(start: Start, script: Script, how: list[str]) -> None:
    run = start("--local", "4", *how, script(train("raise ValueError('checkpoint is newer than the data')")))
    assert run.wait() == 1
    result = run.result
    assert result["process_id"] == 2 and result["host"] == "localhost" and result["victims"] == 3
    assert result["message"] == "the run failed: process 2 on localhost exited with 1"
    assert result["detail"][:2] == ["ValueError: checkpoint is newer than the data", "  script.py:9 in step"]
    assert "3 other processes were stopped." in result["detail"]
    assert not processes_of(run.id)


@pytest.mark.newest
def test_a_killed_process_is_the_verdict_and_not_its_peers(start: Start, script: Script) -> None:
    run = start("--local", "4", script(train()))
    pid = run.await_event("process started", process_id=1)["pid"]
    await_true(lambda: run.stderr.count("up\n") == 4, 30, "all processes in the loop")
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 137
    assert run.result["process_id"] == 1 and run.result["victims"] == 3
    assert "was killed by signal 9 (SIGKILL)" in run.result["message"]


def test_victims_leave_their_stacks_and_no_wall_of_tracebacks(start: Start, script: Script) -> None:
    run = start("--local", "4", script(train("os._exit(5)")))
    assert run.wait() == 5
    for process_id in (0, 1, 3):
        stack = (run.run_folder / "stacks" / f"process-{process_id:03d}.txt").read_text()
        assert "sync_global_devices" in stack and "script.py" in stack, stack
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_stuck_process_leaves_its_stack(start: Start, script: Script, how: list[str]) -> None:
    text = (
        "import os, time\ndef stuck_here():\n    open('stuck', 'w').close()\n    time.sleep(1000)\n"
        "if os.environ['HOSTMESH_PROCESS_ID'] == '0': stuck_here()\n"
        "while not os.path.exists('stuck'): time.sleep(0.01)\nos._exit(3)\n"
    )
    run = start("--local", "2", *how, script(text))
    assert run.wait() == 3
    assert 'script.py", line 4 in stuck_here' in (run.run_folder / "stacks" / "process-000.txt").read_text()


COORDINATOR = TRAIN.replace("jax.process_index() == 2", "jax.process_index() == 0")


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_an_abort_of_the_coordinator_is_the_verdict_and_not_its_peers(
    start: Start, script: Script, how: list[str]
) -> None:
    run = start("--local", "4", *how, script(COORDINATOR.format(fault="os.abort()", steps=10**9)))
    assert run.wait() == 128 + signal.SIGABRT
    result = run.result
    assert result["message"] == "the run failed: process 0 on localhost was killed by signal 6 (SIGABRT)"
    assert result["detail"][0] == "Fatal Python error: Aborted"
    assert 'script.py", line 9 in step' in result["detail"][1]
    assert result["detail"][-2] == "3 other processes were stopped."
    told = "\n".join(result["detail"])
    assert not re.search(r"Gloo|Extension modules|boot\.py|start\.py", told), told


def test_an_abort_is_told_at_once(start: Start, script: Script) -> None:
    run = start("--local", "4", script(train("os.abort()")))
    assert run.wait() == 128 + signal.SIGABRT and run.result["process_id"] == 2
    known = run.await_event("process exited", process_id=2)["time"]
    assert run.await_event("run ended")["time"] - known < 1.9 * busyness()  # it was 2 s and more


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.quick("0")
def test_a_process_that_leaves_early_is_the_verdict_and_not_its_victims(start: Start, script: Script, who: int) -> None:
    text = (COORDINATOR if who == 0 else TRAIN).format(fault="os._exit(0)", steps=10**9)
    run = start("--local", "4", script(text))
    assert run.wait() == 1
    wanted = f"the run failed: process {who} on localhost left with exit code 0 while others were still working"
    assert run.result["message"] == wanted and run.result["process_id"] == who


@pytest.mark.slow
def test_processes_that_end_a_little_apart_have_not_failed(launch: Launch, script: Script) -> None:
    done = launch(
        "--local", "4", script(train(steps=25) + "jax.distributed.shutdown()\ntime.sleep(jax.process_index() / 10)\n")
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
@pytest.mark.parametrize("code", [256, -512])
@pytest.mark.quick("256-warm")
def test_an_exit_code_that_the_system_would_take_for_0(start: Start, script: Script, how: list[str], code: int) -> None:
    run = start("--local", "1", *how, script(f"import sys\nsys.exit({code})\n"))
    assert run.wait() == 1
    wanted = f"sys.exit({code}) is exit code 0 to the system; taken as a failure with exit code 1"
    assert run.result["detail"][0] == wanted
    assert run.log(0).decode() == f"error: {wanted}\n"


@pytest.mark.newest
def test_an_error_in_a_callback_of_jax_is_told_as_the_users_own(start: Start, script: Script) -> None:
    text = (
        "import jax\ndef divide(x):\n    return int(x) // 0\ndef step(x):\n"
        "    return jax.pure_callback(divide, jax.ShapeDtypeStruct((), 'int32'), x)\n"
        "jax.jit(step)(3).block_until_ready()\n"
    )
    run = start("--local", "1", "--cold", script(text))
    assert run.wait() == 1
    assert run.result["detail"][0].startswith("ZeroDivisionError: ")
    assert run.result["detail"][1] == "  script.py:3 in divide (a callback of script.py:6 in <module>)"


STOPPED = """
import jax, os, signal
from jax.experimental import multihost_utils
jax.distributed.initialize(heartbeat_timeout_seconds=3)
for k in range(10**9):
    if k == 20 and jax.process_index() == 1: os.kill(os.getpid(), signal.SIGSTOP)
    multihost_utils.sync_global_devices(str(k))
"""


@pytest.mark.slow
def test_a_process_that_jax_lost_is_named_though_it_still_runs(start: Start, script: Script) -> None:
    run = start("--local", "3", script(STOPPED))
    assert run.wait() == 124
    assert run.result["process_id"] == 1 and "no longer hears from it" in run.result["message"]
    assert not processes_of(run.id)


@pytest.mark.slow
def test_the_same_mistake_everywhere_is_told_once(launch: Launch, script: Script) -> None:
    done = launch("--local", "4", script("import jax\njax.distributed.initialize()\nraise RuntimeError('no data')\n"))
    assert done.returncode == 1
    told = done.stderr[done.stderr.index("launch: the run failed") :]
    assert re.match(
        r"launch: the run failed: (process \d on localhost|all 4 processes failed alike: each) exited", told
    )
    assert told.count("RuntimeError: no data") == 1
    assert "failed in the same way" in told or "were stopped" in told or "alike" in told


MISTAKE = """
import time
from hostmesh.worker.errors import {error}
from hostmesh.worker.process.facts import send_fact
try:
    1 / 0
except ZeroDivisionError as cause:
    raise {error}("found 3 rows, wanted 4:\\nsay batch_size=3") from cause
"""


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
@pytest.mark.parametrize("error", ["WorkerError", "DataError", "MissingPackageError"])
@pytest.mark.quick("DataError-warm")
def test_a_users_mistake_is_told_without_a_traceback(start: Start, script: Script, how: list[str], error: str) -> None:
    run = start("--local", "1", *how, script(MISTAKE.format(error=error)))
    assert run.wait() == 1
    assert run.log(0) == b"error: found 3 rows, wanted 4:\nsay batch_size=3\n"
    assert run.result["message"] == "the run failed: process 0 on localhost exited with 1"
    assert run.result["detail"][:2] == ["found 3 rows, wanted 4:", "say batch_size=3"]
    assert run.result["detail"][2].startswith("Logs: ")
    assert "Traceback" not in run.stderr
    trace = (run.run_folder / "stacks" / "process-000.txt").read_text()
    assert "ZeroDivisionError" in trace and 'script.py", line 8' in trace


# Each process fails once the others have got there too.
TOGETHER = """
import os, time
open("ready-" + os.environ["HOSTMESH_PROCESS_ID"], "w").close()
while sum(name.startswith("ready-") for name in os.listdir()) < 4: time.sleep(0.001)
"""


def test_a_users_mistake_in_all_processes_reads_as_one(start: Start, script: Script) -> None:
    run = start("--local", "4", "--cold", script(TOGETHER + MISTAKE.format(error="DisagreementError")))
    assert run.wait() == 1
    assert run.result["message"] == "the run failed: all 4 processes failed alike: each exited with 1"
    assert run.result["detail"][:2] == ["found 3 rows, wanted 4:", "say batch_size=3"]
    assert run.result["victims"] == 0


def test_a_bad_command_line_of_the_program_reads_as_one(start: Start, script: Script) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--steps', type=int)\n"
    run = start("--local", "4", "--cold", script(text + TOGETHER + "parser.parse_args()\n"), "--steps", "x")
    assert run.wait() == 2
    assert run.result["message"].endswith("exited with 2")
    told = "\n".join(run.result["detail"])
    assert told.count("error: argument --steps: invalid int value: 'x'") == 1 and "SystemExit" not in told


def test_a_failure_before_joining_does_not_hang_the_others(start: Start, script: Script) -> None:
    text = "import os, jax\nif os.environ['HOSTMESH_PROCESS_ID'] == '0': raise OSError('no data here')\n"
    run = start("--local", "2", script(text + "jax.distributed.initialize()\n"))
    assert run.wait(timeout=30) == 1
    assert run.result["process_id"] == 0 and "OSError: no data here" in run.result["detail"][0]


def test_a_segmentation_fault_shows_where(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", "--cold", script("import ctypes\ndef poke():\n    ctypes.string_at(0)\npoke()\n"))
    assert done.returncode == 128 + signal.SIGSEGV
    assert "was killed by signal 11 (SIGSEGV)" in done.stderr
    told = done.stderr[done.stderr.index("launch: the run failed") :]
    assert 'script.py", line 3 in poke' in told


def test_a_request_for_stacks_does_not_kill_a_process_on_its_way_out(launch: Launch, script: Script) -> None:
    """At its end Python itself undoes what faulthandler has registered, as is done here."""
    done = launch("--local", "1", script(
        "import faulthandler, os, sys\n"
        "from hostmesh.worker.identity import DUMP_SIGNAL\n"
        "assert faulthandler.unregister(DUMP_SIGNAL)\n"
        "os.kill(os.getpid(), DUMP_SIGNAL)\n"
        "sys.exit(7)"
    ))  # fmt: skip
    assert done.returncode == 7, done.stderr


def test_a_failed_command_shows_its_last_lines(launch: Launch) -> None:
    done = launch("--local", "2", "--", "sh", "-c", "echo one; echo the reason >&2; exit 4")
    assert done.returncode == 4
    told = done.stderr[done.stderr.index("launch: the run failed") :]
    assert "  the reason\n" in told and "exited with 4" in told


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
@pytest.mark.slow
def test_exit_handlers_of_a_failed_process_run_but_not_for_ever(start: Start, script: Script, how: list[str]) -> None:
    text = (
        "import atexit, threading, time\natexit.register(lambda: time.sleep(1000))\n"
        "atexit.register(lambda: print('flushed'))\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n1/0\n"
    )
    run = start("--local", "2", *how, script(text))
    assert run.wait(timeout=30) == 1
    assert any(b"flushed" in run.log(k) for k in range(2))
    assert "ZeroDivisionError" in run.result["detail"][0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('\U0001f600' * 100_000)", "ValueError: \U0001f600"),
        ("class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd", "Odd: (its message cannot be shown)"),
        (
            "import os, shutil; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')\n1/0",
            "ZeroDivisionError: division by zero",
        ),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth"),
        ("raise ConnectionResetError('Connection reset by peer')", "ConnectionResetError: Connection reset by peer"),
    ],
    ids=["huge", "unprintable", "nowhere", "deep", "own connection"],
)
@pytest.mark.slow
def test_odd_exceptions_are_recorded_too(start: Start, script: Script, text: str, said: str) -> None:
    run = start("--local", "1", script(text + "\n"))
    assert run.wait() == 1
    assert run.result["detail"][0].startswith(said)


def test_a_forked_child_that_fails_is_not_the_process(start: Start, script: Script) -> None:
    run = start(
        "--local", "1", script("import os\nif os.fork() == 0: raise KeyError('child')\nos.wait()\nprint('fine')\n")
    )
    assert run.wait() == 0
    assert b"fine" in run.log(0) and b"KeyError" in run.log(0)


@pytest.mark.parametrize("folder", ["/no/such/folder", "/proc"])
def test_a_host_without_a_folder_for_the_agent_is_explained(launch: Launch, script: Script, folder: str) -> None:
    done = launch("--local", "1", script("pass"), env={"TMPDIR": folder})
    assert done.returncode == 69
    assert f"cannot make the folder {folder}/hostmesh-" in done.stderr and "Traceback" not in done.stderr


def test_a_long_temporary_folder_does_no_harm(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / ("long" * 30)).mkdir()
    assert launch("--local", "1", script("pass"), env={"TMPDIR": str(tmp_path / ("long" * 30))}).returncode == 0


def test_an_agent_that_cannot_start_is_explained(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "transport: local\nhosts: [here]\nagent_python: /bin/ls\nrun: {script: script.py}\n"
    )
    script("pass")
    done = launch("--hosts", "c.yaml")
    assert done.returncode == 69
    assert "here: its agent did not start: " in done.stderr and "ls: " in done.stderr
