"""Each process's bytes reach its file unchanged, nobody waits for a reader, and memory stays bounded."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import LAUNCH, Launch, Script, Start, await_true, clean_env

SECRET = "s3cr3t-v@lue-0123456789"
CLUSTER = """
transport: local
hosts: [here]
processes_per_host: 2
secrets: [API_KEY]
run: {script: script.py, args: [--steps, "3"]}
"""


def test_bytes_reach_the_file_unchanged(start: Start, script: Script) -> None:
    name = script(
        "import os, random\nrandom.seed(int(os.environ['HOSTMESH_PROCESS_ID']))\n"
        "for _ in range(300): os.write(1 + random.getrandbits(1), random.randbytes(random.randrange(2000)))\n"
    )
    run = start("--local", "2", "--cold", name)
    assert run.wait() == 0
    for process_id in range(2):
        wanted = subprocess.run(
            [sys.executable, name],
            cwd=run.folder,
            env=clean_env({"HOSTMESH_PROCESS_ID": str(process_id)}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ).stdout
        assert run.log(process_id) == wanted


def test_the_terminal_shows_whole_prefixed_lines(launch: Launch, script: Script) -> None:
    name = script(
        "import sys, os, time\nw = lambda b: (os.write(1, b), time.sleep(0.02))\n"
        "w(b'one'); w(b' two\\n'); w(b'bad \\xff\\xc3'); w(b'\\xa9\\n')\n"
        "for k in range(50): os.write(2, b'\\r%3d%%' % k)\n"
        "w(b'\\r100%\\n'); w(b'\\x1b[2Jclean\\x1b]0;title\\x07\\n'); w(b'half')\n"
    )
    done = launch("--local", "2", "--cold", name)
    for process_id in range(2):
        prefix = f"[{process_id} localhost] "
        lines = [line.removeprefix(prefix) for line in done.stdout.splitlines() if line.startswith(prefix)]
        assert lines == ["one two", "bad \ufffdé", "100%", "clean", "half"]


def test_secrets_appear_nowhere(start: Start, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    script(
        "import os, sys, time, glob\nkey = os.environ['API_KEY']\n"
        "for cut in range(len(key) + 1):\n"
        "    os.write(1, b'[' + key[:cut].encode()); time.sleep(0.04); os.write(1, key[cut:].encode() + b']\\n')\n"
        "def read(path):\n"
        "    try: return open(path, 'rb').read()\n"
        "    except OSError: return b''  # its process has just ended\n"
        "seen = [read(path) for path in glob.glob('/proc/[0-9]*/cmdline')]\n"
        "assert not any(key.encode() in argv for argv in seen)\n"
        "time.sleep(0.5 * int(os.environ['HOSTMESH_PROCESS_ID']))\n"
        "raise ValueError('the key is ' + key)\n"
    )
    run = start("--hosts", "c.yaml", env={"API_KEY": SECRET})
    assert run.wait() == 1
    assert run.log(0).count(b"[redacted]") >= len(SECRET) + 1
    assert run.result["detail"][0] == "ValueError: the key is [redacted]"
    shown = [run.stderr, json.dumps(run.seen), *(p.read_text() for p in run.run_folder.rglob("*") if p.is_file())]
    assert not [text for text in shown if SECRET in text]


def test_the_plan_shows_no_secret(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER + f"env: {{COPY: '{SECRET}'}}\n")
    script("pass")
    for form in ([], ["--json"]):
        done = launch("--hosts", "c.yaml", "--dry-run", *form, env={"API_KEY": SECRET})
        assert done.returncode == 0 and "API_KEY" in done.stdout and SECRET not in done.stdout


def test_a_missing_secret_is_a_clear_error(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    script("pass")
    done = launch("--hosts", "c.yaml")
    assert done.returncode == 2 and "API_KEY" in done.stderr and "not set" in done.stderr


def test_a_launcher_whose_output_nobody_reads_holds_no_worker_up(script: Script, tmp_path: Path) -> None:
    name = script("import sys\nfor k in range(200_000): print('line', k)\nopen('done', 'w').close()\n")
    launcher = subprocess.Popen(
        [*LAUNCH, "--local", "1", name], cwd=tmp_path, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await_true(lambda: (tmp_path / "done").exists(), 20, "the worker to finish")
    log = next((tmp_path / "runs").iterdir()) / "logs" / "process-000.log"
    await_true(lambda: log.read_bytes().endswith(b"line 199999\n"), 20, "the log to be whole")
    out, _ = launcher.communicate(timeout=240)
    assert launcher.returncode == 0
    assert out.count(b"\n") == 200_000


def test_a_closed_output_does_not_end_the_run(script: Script, tmp_path: Path) -> None:
    name = script("import time\nfor k in range(30): print('line', k); time.sleep(0.02)\nopen('done', 'w').close()\n")
    launcher = subprocess.Popen(
        [*LAUNCH, "--local", "1", name], cwd=tmp_path, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert launcher.stdout is not None and launcher.stderr is not None
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(30) == 0
    assert (tmp_path / "done").exists()
    told = launcher.stderr.read()
    assert b"launch: the process succeeded" in told and b"Traceback" not in told
    launcher.stderr.close()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_streams_that_were_closed_before_the_start_do_no_harm(tmp_path: Path, closed: str) -> None:
    command = f"{shlex.join(LAUNCH)} --local 2 -- echo hi {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=clean_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [log.read_text() for log in tmp_path.glob("runs/*/logs/*")] == ["hi\n"] * 2
    [events] = tmp_path.glob("runs/*/events.jsonl")
    assert all(json.loads(line)["event"] for line in events.read_text().splitlines())


def memory(pid: int) -> int:
    """Resident megabytes; none of a process that has just ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) // 1024 if found else 0


FLOOD = """
import os, time
if os.environ["HOSTMESH_PROCESS_ID"] == "0":
    while not os.path.exists("go"): time.sleep(0.01)
    block = (b"x" * 99 + b"\\n") * 10_000
    for _ in range({megabytes}): os.write(1, block)
    open("flooded", "w").close()
else:
    while not os.path.exists("flooded-and-shown"):
        now = f"tick {{time.time()}}"
        print(now, flush=True)
        print(now, file=open("ticks", "a"))
        time.sleep(0.05)
"""


@pytest.mark.timeout(600)
def test_a_flood_is_passed_through_in_bounded_memory_and_delays_nobody(start: Start, script: Script) -> None:
    megabytes = int(os.environ.get("FLOOD_MEGABYTES", "250"))
    run = start("--local", "2", "--cold", script(FLOOD.format(megabytes=megabytes)))
    agent = run.await_event("host connected")["agent_pid"]
    await_true(lambda: "tick" in run.stderr[:10_000], 20, "the first tick")
    pids = {"launcher": run.launcher.pid, "agent": agent}
    before = {name: memory(pid) for name, pid in pids.items()}
    growth = dict.fromkeys(pids, 0)
    logs = [run.run_folder / "logs" / f"process-{k:03d}.log" for k in range(2)]
    (run.folder / "go").touch()
    began, lag = time.monotonic(), 0.0
    while logs[0].stat().st_size < megabytes * 1_000_000:
        for name, pid in pids.items():
            growth[name] = max(growth[name], memory(pid) - before[name])
        printed = last_tick(run.folder / "ticks")
        lag = max(lag, printed - last_tick(logs[1]))
        time.sleep(0.02)
    seconds = time.monotonic() - began
    (run.folder / "flooded-and-shown").touch()
    assert run.wait(timeout=200) == 0
    assert growth["launcher"] < 64 and growth["agent"] < 64, growth
    assert lag < 1.0 + seconds / 3  # without turns a line would wait for most of the flood, however busy the machine
    print(f"{growth=} MB, {lag=:.2f} s")


def last_tick(log: Path) -> float:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 200))
        return float(re.findall(rb"tick ([\d.]+)\n", file.read())[-1])


def test_a_log_that_cannot_be_written_is_told_and_does_not_end_the_run(start: Start, script: Script) -> None:
    """A limit on the launcher's files, set when the run is up, stands in for a full disk."""
    name = script(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nfor _ in range(9000): print('x' * 99)\n"
    )
    run = start("--local", "1", name)
    run.await_event("process started")
    resource.prlimit(run.launcher.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
    (run.folder / "go").touch()
    assert run.await_event("log lost")["process_id"] == 0
    assert run.wait() == 0
    assert run.log(0) == (b"x" * 99 + b"\n") * 3000


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_a_line_is_seen_when_it_is_printed(start: Start, script: Script, how: list[str]) -> None:
    run = start("--local", "2", *how, script("import time\nprint('now')\ntime.sleep(1000)\n"))
    await_true(lambda: run.stderr.count("now") == 2, 20, "the lines of processes that go on")


def test_events_that_nobody_reads_hold_nobody_up(script: Script, tmp_path: Path) -> None:
    """More events than a pipe holds: what a chatty program says of itself."""
    name = script(
        "import socket, os, json\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "fact = {'name': 'metric', 'process_id': 0, 'pid': os.getpid(), 'detail': {'x': 'y' * 1000}}\n"
        "for k in range(300): s.sendto(json.dumps(fact).encode(), os.environ['HOSTMESH_FACTS_SOCKET'])\n"
    )
    launcher = subprocess.Popen(
        [*LAUNCH, "--json", "--local", "1", name],
        cwd=tmp_path,
        env=clean_env(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    await_true(lambda: any((tmp_path / "runs").glob("*/result.json")), 20, "the run to end")
    out, _ = launcher.communicate(timeout=240)
    assert launcher.returncode == 0
    assert [json.loads(line)["event"] for line in out.splitlines()].count("metric") == 300


def test_a_flood_of_facts_stays_bounded_too(start: Start, script: Script) -> None:
    name = script(
        "import os, time\nfrom hostmesh.worker.process.facts import send_fact\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "end = time.monotonic() + 3\nwhile time.monotonic() < end: send_fact('metric', text='x' * 2000)\n"
    )
    run = start("--local", "2", "--cold", name)
    pids = [run.launcher.pid, run.await_event("host connected")["agent_pid"]]
    run.await_event("process started", count=2)
    before = [memory(pid) for pid in pids]
    (run.folder / "go").touch()
    growth = [0, 0]
    while not run.has_seen("process exited", 2):
        growth = [max(most, memory(pid) - was) for most, pid, was in zip(growth, pids, before, strict=True)]
        time.sleep(0.02)
    assert run.wait() == 0
    assert max(growth) < 64, growth


def test_colour_is_for_terminals_only(launch: Launch, script: Script) -> None:
    done = launch("--local", "1", script("print('\\x1b[31mred\\x1b[0m')"))
    assert "\x1b" not in done.stdout and "red" in done.stdout


# Each of these makes a new stdout or stderr out of the one the process has; a regular file would be truncated by it.
REOPENED = """
import os, subprocess, sys
print("one")
subprocess.run("echo two; echo three > /dev/stderr; echo four > /dev/stdout; echo five >&2", shell=True)
open("/dev/stderr", "w").write("six\\n")
with open("/proc/self/fd/1", "w") as own:
    try:
        own.truncate(0)
    except OSError:
        pass  # a pipe has nothing to truncate
    own.write("seven\\n")
os.write(2, b"eight\\n")
raise ValueError("nine")
"""


@pytest.mark.parametrize("how", [[], ["--cold"]], ids=["warm", "cold"])
def test_nothing_a_process_does_to_its_streams_loses_output(start: Start, script: Script, how: list[str]) -> None:
    run = start("--local", "2", *how, script(REOPENED))
    assert run.wait() == 1
    assert "ValueError: nine" in run.result["detail"][0]
    told = run.result["process_id"]
    lines = run.log(told).decode().splitlines()
    assert lines[:8] == ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    assert lines[-1] == "ValueError: nine"


def test_more_than_a_pipe_holds_does_not_hold_a_process_up_whose_agent_is_stopped(start: Start, script: Script) -> None:
    """A moment's pause of the agent, with nothing lost."""
    name = script(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nfor k in range(300_000): print(k)\n"
    )
    run = start("--local", "1", "--cold", name)
    agent = run.await_event("host connected")["agent_pid"]
    run.await_event("process started")
    os.kill(agent, signal.SIGSTOP)
    (run.folder / "go").touch()
    time.sleep(0.5)
    os.kill(agent, signal.SIGCONT)
    assert run.wait() == 0
    assert run.log(0) == b"".join(b"%d\n" % k for k in range(300_000))


def test_output_that_finds_no_room_on_its_host_is_told(start: Start, script: Script) -> None:
    """A limit on the agent's files stands in for a full disk under its temporary folder; the launcher is away."""
    name = script(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nfor _ in range(90000): print('x' * 99)\n"
        "open('printed', 'w').close()\n"
    )
    run = start("--local", "1", "--cold", name)
    agent = run.await_event("host connected")["agent_pid"]
    run.await_event("process started")
    resource.prlimit(agent, resource.RLIMIT_FSIZE, (300_000, 300_000))
    run.launcher.send_signal(signal.SIGSTOP)
    (run.folder / "go").touch()
    await_true((run.folder / "printed").exists, 8, "a process that prints on")
    run.launcher.send_signal(signal.SIGCONT)
    assert run.wait() == 0
    lost = run.await_event("dropped")["detail"]["bytes"]
    assert 0 < lost == 9_000_000 - len(run.log(0))
    assert f"launch: {lost:,} bytes that process 0 printed were lost" in run.stderr


def test_reports_that_were_dropped_are_told(start: Start, script: Script) -> None:
    text = (
        "from hostmesh.worker.process.facts import send_fact\n"
        "for _ in range(3): send_fact('metric', text='x' * 200_000)\n"
    )
    run = start("--local", "1", "--cold", script(text))
    assert run.wait() == 0
    assert "launch: 3 reports of process 0 were dropped" in run.stderr


def test_a_preload_that_prints_much_is_not_held_up(start: Start, script: Script, tmp_path: Path) -> None:
    """Nobody is shown what the nursery prints, and its pipe must not fill up."""
    script("for _ in range(5000): print('x' * 999)", "mine/loud.py")
    (tmp_path / "cluster.yaml").write_text(
        "transport: local\nhosts: [here]\nprocesses_per_host: 2\npreload: [loud]\n"
        f"env: {{PYTHONPATH: {tmp_path}/mine}}\n"
    )
    run = start("--hosts", "cluster.yaml", script("print('ran')"))
    run.await_event("nursery_ready")
    assert run.wait() == 0 and run.log(0) == run.log(1) == b"ran\n"
