"""Slurm without a cluster: its keys, its commands as data, and jobs of small stand-ins for its programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import HANGS, LAUNCH, Launch, Script, Start, await_true, clean_env
from terminal import OnTerminal

from hostmesh.launcher.cluster.file import read_cluster
from hostmesh.launcher.cluster.model import Cluster, Host
from hostmesh.launcher.engines.slurm.batch import batch_options, make_batch
from hostmesh.launcher.engines.slurm.commands import parse_job
from hostmesh.launcher.engines.slurm.settings import Slurm
from hostmesh.launcher.errors import ClusterError
from hostmesh.launcher.transports.slurm import has_overlap, step_argv, step_environment

# A job that runs when the file `state` says so; what it is told is in `calls`.
PROGRAMS = {
    "sbatch": """
echo "sbatch $*" >> calls
test ! -e refusal || { cat refusal >&2; exit 1; }
cat > script
echo 42
test "$(cat state)" = RUNNING || exit 0
for word; do case $word in --output=*) out=${word#--output=};; --error=*) err=${word#--error=};; esac; done
export SLURM_JOB_ID=42 SLURM_JOB_NODELIST=n SLURM_JOB_NUM_NODES=2 SLURM_NTASKS=2
{ setsid env --default-signal=INT sh -c 'echo $$ > pid; exec bash script' < /dev/null \\
      >> "$(echo "$out" | sed s/%j/42/)" 2>> "$(echo "$err" | sed s/%j/42/)"
  echo "$?:0" > exit; echo COMPLETED > state; } > /dev/null 2>&1 &
""",
    "scontrol": """
echo "scontrol $*" >> calls
case "$*" in
  *hostnames*) printf 'n1\\nn2\\n';;
  *"show job"*) echo "JobId=42 JobName=a JobState=$(cat state) Reason=$(cat reason) Partition=p NodeList=n[1-2] \\
ExitCode=$(cat exit)";;
  *"show partition"*) echo "PartitionName=p MaxNodes=1 MaxTime=01:00:00 State=UP TotalNodes=4";;
  *"show node"*) echo "NodeName=n1 State=DOWN* Reason=Not responding [root@now]";;
esac
""",
    "scancel": """
echo "scancel $*" >> calls
case "$*" in
  *--signal=*) name=${2#--signal=}; kill -"$name" "$(cat pid)";;
  *) echo CANCELLED > state;;
esac
""",
    "srun": """
test "$1" != --version || { echo "slurm 22.05.8"; exit; }
echo "srun $*" >> calls
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
""",
}


class FakeSlurm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in PROGRAMS.items():
            path = folder / "bin" / name
            path.write_text(f"#!/bin/sh\ncd {folder}\n{text}".replace("cd", "cd" if name != "srun" else ": cd", 1))
            path.chmod(0o755)
        self.set(state="PENDING", reason="Resources", exit="0:0", calls="")
        self.env = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        (folder / "cluster.yaml").write_text("hosts: {slurm: {nodes: 2, time: 1:00:00}}\nenv: {JAX_PLATFORMS: cpu}\n")

    def set(self, **values: str) -> None:
        for name, text in values.items():
            partial = self.folder / f"{name}.partial"
            partial.write_text(text)
            partial.rename(self.folder / name)

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    yield FakeSlurm(tmp_path)
    with suppress(OSError):  # of a job that a failed test leaves, whose session is its process group
        os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)


Follow = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def follow(slurm: FakeSlurm) -> Iterator[Follow]:
    """Start `launch` and have what it says in a file."""
    started: list[subprocess.Popen[str]] = []

    def begin(*args: str) -> subprocess.Popen[str]:
        with (slurm.folder / "said").open("w") as said:
            argv = [*LAUNCH, "--hosts", "cluster.yaml", *args]
            started.append(
                subprocess.Popen(
                    argv,
                    cwd=slurm.folder,
                    env=clean_env(slurm.env),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    text=True,
                )
            )
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def await_said(slurm: FakeSlurm, text: str) -> None:
    await_true(lambda: text in (slurm.folder / "said").read_text(), 30, text)


# Cluster files.

BAD = {
    "hosts: {slurm: {nodes: 0}}": "hosts.slurm.nodes: found 0, wanted from 1 to 10000 nodes",
    "hosts: {slurm: {nodes: 2, time: soon}}": "hosts.slurm.time: found 'soon', wanted a time as Slurm writes it",
    "hosts: {slurm: {nodes: 2, time: 1:75:00}}": "hosts.slurm.time: found '1:75:00' (text)|found '1:75:00', wanted",
    "hosts: {slurm: {nodes: 2, options: [qos=high]}}": "hosts.slurm.options[0]: found 'qos=high', wanted an option",
    "hosts: {slurm: {nodes: 2, options: ['--comment=a b']}}": "wanted an option of sbatch in one word",
    "hosts: {slurm: {nodes: 2, options: [--array=1-3]}}": "wanted no option that launch itself gives to sbatch",
    "hosts: {slurm: {nodes: 2, options: [-pgpu]}}": "wanted the key partition instead",
    "hosts: {slurm: {nodes: 2, partiton: a}}": "unknown key 'partiton'; nearest is 'partition'",
    "hosts: {slurm: {nodes: 2, partition: '--x'}}": "wanted a name without spaces",
    "hosts: {slurm: {nodes: 2, requeue: true, warning: 0}}": "found warning: 0, wanted a warning above 0 beside it",
    "hosts: {slurm: {time: 30}}": "hosts.slurm: missing key 'nodes': outside an allocation",
    "hosts: {slurm: }": "missing key 'nodes'",
    "hosts: {slurm: {nodes: 2}, gcloud: {tpu: a, zone: b}}": "found slurm and gcloud, wanted a list",
    "hosts: {slurm: {nodes: 2}}\ntransport: ssh": "transport: found 'ssh', wanted no transport",
    "hosts: {slurm: {nodes: 2}}\nssh: {connect_timeout: 5}": "ssh: transport slurm does not use SSH; remove ssh",
    "hosts: {slurm: {nodes: 2}}\nspares: 2": "spares: found 2, wanted fewer than the 2 hosts",
    "hosts: [a, b]\ntransport: slurm": "wanted hosts: {slurm: …} beside it",
}


@pytest.mark.parametrize("text, wanted", BAD.items())
def test_a_bad_file_gets_one_message_with_its_line(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"name: a\n{text}\n")
    with pytest.raises(ClusterError) as error:
        read_cluster(path)
    assert len(error.value.problems) == 1, error.value.problems
    [problem] = error.value.problems
    assert any(each in problem for each in wanted.split("|")), problem
    assert problem.startswith((f"{path}:2: ", f"{path}:3: "))


@pytest.mark.parametrize("time", ["90", "1:30", "1:30:00", "2-12", "2-12:30", "0-1:00:00", "UNLIMITED"])
def test_every_form_of_a_time_is_taken_as_it_is_written(tmp_path: Path, time: str) -> None:
    (tmp_path / "good.yaml").write_text(f"hosts: {{slurm: {{nodes: 2, time: {time}}}}}\n")
    cluster = read_cluster(tmp_path / "good.yaml")
    assert cluster.engine is not None and cluster.engine.time == time
    assert (cluster.transport, len(cluster.hosts), cluster.workdir) == ("slurm", 2, os.getcwd())


# Commands as data.


def test_a_step_is_one_task_on_one_node_with_all_that_the_job_has_there() -> None:
    argv = step_argv(Host("n7", 1), ["env", "A=b", "python3"])
    assert argv[0] == "srun" and argv[argv.index("--") + 1 :] == ["env", "A=b", "python3"]
    assert {"--nodes=1", "--ntasks=1", "--nodelist=n7", "--overlap", "--mem=0", "--cpu-bind=none", "--unbuffered"} <= {
        *argv
    }
    assert not [word for word in argv if word.startswith(("--exact", "--cpus-per-task", "--gres", "--gpus"))]
    assert "--overlap" not in step_argv(Host("n7", 1), [], overlap=False)


@pytest.mark.parametrize(
    "version, has", [("slurm 20.02.7", False), ("slurm 20.11.0", True), ("slurm-wlm 22.05.8", True)]
)
def test_overlap_is_asked_of_those_that_have_it(version: str, has: bool) -> None:
    assert has_overlap(version) is has


def test_a_step_is_not_told_about_the_jobs_own_tasks() -> None:
    kept = {"SLURM_JOB_ID": "1", "SLURM_CONF": "/x", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0"}
    dropped = {"SLURM_NTASKS": "3", "SLURM_MEM_PER_CPU": "9", "SLURM_NTASKS_PER_NODE": "1", "SRUN_CPUS_PER_TASK": "1"}
    assert step_environment({**kept, **dropped}) == kept


def test_the_batch_script_asks_for_what_the_file_says(tmp_path: Path) -> None:
    settings = Slurm(4, "gpu", "1:00:00", "lab", ("--qos=high",), warning=90, requeue=True)
    cluster = Cluster((Host("node 1", 1),) * 4, name="my job!", engine=settings, spares=1)
    batch = make_batch(cluster, ["python", "it's.py"], tmp_path / "a'; echo foo", Path("runs"), "1118-bbbbbb")
    assert batch.options == batch_options(settings, cluster)
    wanted = ["--job-name=my-job-", "--nodes=4", "--partition=gpu", "--time=1:00:00", "--account=lab", "--qos=high"]
    wanted += ["--signal=B:USR1@90", "--requeue", "--no-kill", "--exclusive"]
    assert set(wanted) <= set(batch.options)
    assert "scontrol requeue" in batch.script and "python 'it'\"'\"'s.py' &" in batch.script
    assert f"--chdir={tmp_path}/a'; echo foo" in batch.argv() and "--export=ALL" in batch.argv()
    done = subprocess.run(["bash", "-n"], input=batch.script, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_user_called_a_job_is_not_taken_for_its_state() -> None:
    info = parse_job("JobId=1 JobName=x JobState=PENDING Reason=Priority ExitCode=3:9 Command=/a JobState=RUNNING")
    assert (info.state, info.reason, info.exit_code, info.signal) == ("PENDING", "Priority", 3, 9)


# Jobs.


def test_a_dry_run_prints_the_batch_script_and_submits_nothing(
    slurm: FakeSlurm, launch: Launch, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "correct-horse")
    with (slurm.folder / "cluster.yaml").open("a") as file:
        file.write("secrets: [TOKEN]\n")
    done = launch("--hosts", "cluster.yaml", "--dry-run", script(""), "--dry-run", env=slurm.env, all_lines=False)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=2" in done.stdout and f"{sys.executable} -P -m hostmesh.launcher" in done.stdout
    assert "--hosts cluster.yaml script.py --dry-run &" in done.stdout
    assert slurm.calls == [] and "correct-horse" not in done.stdout


def test_a_job_runs_the_same_command_on_its_nodes_and_its_exit_code_is_ours(
    slurm: FakeSlurm, launch: Launch, script: Script
) -> None:
    slurm.set(state="RUNNING", reason="None")
    text = "import sys\nprint('argument', sys.argv[1])\nsys.exit(5)"
    done = launch("--hosts", "cluster.yaml", script(text), "a'b  c", env=slurm.env)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "argument a'b  c" in done.stdout and "exited with 5" in done.stderr
    nodes = [word for call in slurm.calls if call.startswith("srun") for word in call.split() if "nodelist" in word]
    assert nodes == ["--nodelist=n1", "--nodelist=n2"]
    [run] = (each for each in (slurm.folder / "runs").iterdir() if each.is_dir())
    assert json.loads((run / "engine.json").read_text()) == {"engine": "slurm", "job": "42"}
    assert json.loads((run / "result.json").read_text())["exit_code"] == 5


# Runs that wait in the queue, and runs on other machines.


def test_a_run_can_be_asked_about_and_stopped_while_it_waits(slurm: FakeSlurm, launch: Launch) -> None:
    detached = launch("--hosts", "cluster.yaml", "--detach", "--", "true", env=slurm.env)
    run = detached.stdout.strip()
    assert detached.returncode == 0 and f"launch stop {run}" in detached.stderr, detached.stderr
    [row] = json.loads(launch("runs", "--json", env=slurm.env).stdout)
    told = "Slurm job 42 is PENDING, Reason=Resources"
    assert (row["run"], row["state"], row["verdict"]) == (run, "queued", told)
    assert launch("status", "last", env=slurm.env).stdout.splitlines()[1] == told
    assert "removed 0 runs" in launch("runs", "--prune", "--days", "0.000001", env=slurm.env).stdout
    stopped = launch("stop", run, env=slurm.env)
    assert stopped.returncode == 0 and "before the run began: CANCELLED" in stopped.stdout
    assert "scancel 42" in slurm.calls
    [row] = json.loads(launch("runs", "--json", env=slurm.env).stdout)
    assert (row["state"], row["exit_code"]) == ("stopped", 143)


def test_who_attaches_to_a_run_that_waits_sees_why_and_then_its_end(slurm: FakeSlurm, launch: Launch) -> None:
    run = launch("--hosts", "cluster.yaml", "--detach", "--", "true", env=slurm.env).stdout.strip()
    with (slurm.folder / "attached").open("w") as said:
        attached = subprocess.Popen(
            [*LAUNCH, "attach", run], cwd=slurm.folder, env=clean_env(slurm.env), stdout=said, stderr=said
        )
    try:
        await_true(lambda: "Reason=Resources" in (slurm.folder / "attached").read_text(), 30, "why it waits")
        slurm.set(state="CANCELLED", reason="None")
        assert attached.wait(HANGS) == 143
    finally:
        attached.kill()
    assert f"run {run}: Slurm job 42 is CANCELLED" in (slurm.folder / "attached").read_text()


def test_a_run_on_another_node_is_asked_through_a_step_of_its_job(
    slurm: FakeSlurm, start: Start, launch: Launch, script: Script
) -> None:
    run = start("--local", "2", script("import time\nprint('up', flush=True)\ntime.sleep(1000)"))
    run.await_event("process started", 2)
    await_true(lambda: run.stderr.count("] up") == 2, 60, "both processes")
    owner = json.loads((run.run_folder / "lock").read_text())
    with (run.run_folder / "lock").open("w") as file:  # the same file: its lock stays
        json.dump({**owner, "host": "elsewhere", "node": "n7"}, file)
    (run.run_folder / "engine.json").write_text('{"engine": "slurm", "job": "42"}')
    shown = launch("stacks", "last", env=slurm.env)
    assert shown.returncode == 0 and shown.stdout.count("time.sleep(1000)") + shown.stdout.count("script.py") >= 2
    assert f"run {run.id}: running" in launch("status", "last", env=slurm.env).stdout
    done = launch("exec", "last", "--", "sh", "-c", "echo there; exit 3", env=slurm.env)
    assert (done.returncode, done.stdout) == (3, "[localhost] there\n")
    steps = [call for call in slurm.calls if call.startswith("srun --jobid=42 ")]
    assert len(steps) == 3 and all("--nodelist=n7" in step and "--overlap" in step for step in steps)


def test_why_a_job_waits_is_told_when_it_changes_and_ctrl_c_cancels_it(slurm: FakeSlurm, follow: Follow) -> None:
    process = follow("--", "true")
    await_said(slurm, "job 42 is waiting: Resources\n")
    slurm.set(reason="PartitionNodeLimit")
    await_said(slurm, "is waiting: PartitionNodeLimit (partition p has MaxTime=01:00:00 MaxNodes=1")
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS) == 130
    said = (slurm.folder / "said").read_text()
    assert said.count("is waiting: Resources") == 1 and "Traceback" not in said
    assert "scancel 42" in slurm.calls


@pytest.mark.parametrize("number, sent, told", [(signal.SIGINT, "INT", "Ctrl-C"), (signal.SIGTERM, "USR2", "SIGTERM")])
@pytest.mark.quick("15")
def test_a_request_to_stop_reaches_the_launcher_of_a_running_job(
    slurm: FakeSlurm, follow: Follow, script: Script, number: int, sent: str, told: str
) -> None:
    slurm.set(state="RUNNING", reason="None")
    process = follow("--show", "all", script("import time\nprint('up', flush=True)\ntime.sleep(1000)"))
    await_true(lambda: (slurm.folder / "said").read_text().count("] up") == 2, 60, "both processes")
    process.send_signal(number)
    assert process.wait(HANGS) == 128 + number, (slurm.folder / "said").read_text()
    assert f"scancel --batch --signal={sent} 42" in slurm.calls and "scancel 42" not in slurm.calls
    assert f"launch: stopped by {told}" in (slurm.folder / "said").read_text()


@pytest.mark.parametrize("answer, code, cancels", [("l\n", 0, False), ("s\n", 130, True), ("\x03", 130, True)])
def test_on_a_terminal_ctrl_c_asks_what_is_to_become_of_the_job(
    slurm: FakeSlurm, answer: str, code: int, cancels: bool
) -> None:
    terminal = OnTerminal(slurm.folder, *LAUNCH, "--hosts", "cluster.yaml", "--", "true", env=slurm.env)
    try:
        terminal.await_shown("is waiting: Resources")
        terminal.type("\x03")
        terminal.await_shown("[s/l] ")
        terminal.type(answer)
        assert terminal.wait() == code, terminal.shown
    finally:
        terminal.close()
    assert ("scancel 42" in slurm.calls) is cancels


@pytest.mark.parametrize(
    "state, code", [("CANCELLED", 143), ("NODE_FAIL", 69), ("TIMEOUT", 143), ("OUT_OF_MEMORY", 137)]
)
def test_an_end_by_slurm_is_told_in_its_words(slurm: FakeSlurm, follow: Follow, state: str, code: int) -> None:
    process = follow("--", "true")
    await_said(slurm, "is waiting: Resources")
    slurm.set(reason="None", state=state)
    assert process.wait(HANGS) == code
    assert f"job 42 has ended: {state}" in (slurm.folder / "said").read_text()


def test_sbatchs_own_words_are_shown_when_it_refuses(slurm: FakeSlurm, launch: Launch) -> None:
    slurm.set(refusal="sbatch: error: invalid partition specified: gpus\n")
    done = launch("--hosts", "cluster.yaml", "--", "true", env=slurm.env)
    assert done.returncode == 2 and "invalid partition specified: gpus" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_machine_without_slurm_is_told_so(slurm: FakeSlurm, launch: Launch) -> None:
    (slurm.folder / "bin" / "sbatch").unlink()
    done = launch("--hosts", "cluster.yaml", "--", "true", env=slurm.env)
    assert done.returncode == 2 and "found no program sbatch on this machine" in done.stderr


def test_check_wants_an_allocation(slurm: FakeSlurm, launch: Launch) -> None:
    done = launch("check", "--hosts", "cluster.yaml", env=slurm.env)
    assert done.returncode == 2 and "from inside an allocation" in done.stderr


def test_more_nodes_than_the_allocation_has_is_an_error_with_its_line(slurm: FakeSlurm, launch: Launch) -> None:
    (slurm.folder / "cluster.yaml").write_text("name: x\nhosts: {slurm: {nodes: 3}}\n")
    done = launch(
        "--hosts", "cluster.yaml", "--", "true", env={**slurm.env, "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"}
    )
    assert done.returncode == 2
    assert "cluster.yaml:2: hosts.slurm: found an allocation of 2 (job 1: n[1-2]), wanted 3 nodes" in done.stderr
