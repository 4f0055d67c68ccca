"""The built-in job: it learns, the same on every topology; it stops and goes on; it says what it cannot do."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conftest import LAUNCH, REPO, Launch, Script, Start, clean_env, processes_of

from hostmesh.worker.job import settings
from hostmesh.worker.job.model import are_finite, init_params, init_state, make_optimizer
from hostmesh.worker.loading import choices
from hostmesh.worker.mesh import make_mesh
from hostmesh.worker.ordering.order import Order

OWN = re.compile(r"digits:train|step +\d+/168|trained 168 steps|accuracy")
ANNOUNCED = "digits:train: 1,437 records, 10 classes; 2 processes, 4 devices, mesh data=2, model=2; "


def summary_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("runs/*/summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


def test_without_a_script_digits_are_learnt(launch: Launch, tmp_path: Path) -> None:
    done = launch("--local", "2", "--devices", "2", timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_in(tmp_path)
    assert f"{ANNOUNCED}168 steps of 128; 51 records left out" in done.stdout  # of 15 × 1,437
    assert summary["eval_accuracy"] >= 0.95 and summary["eval_records"] == 360
    assert summary["steps"] == 168 and summary["mesh"] == {"data": 2, "model": 2}
    last = [line for line in done.stdout.splitlines() if line][-1]
    assert f"trained 168 steps in {summary['seconds']:.1f} s" in last
    assert "waiting for input" in last and "test accuracy 0.9" in last
    # Beside these lines the libraries may speak from any process, for instance when a busy machine keeps one waiting.
    own = [line for line in done.stdout.splitlines() if OWN.search(line)]
    assert len(own) >= 3 and all(line.startswith("[0 ") for line in own), done.stdout


SHORT = ("--steps", "26", "--batch-size", "64")  # into the second epoch, which begins after 22.5 steps

TOPOLOGIES = [
    ("1", "4", ("--loading", "reshard", "--mesh", "data=2,model=2")),
    ("2", "1", ("--loading", "global")),
    ("2", "2", ("--mesh", "data=-1", "--loading", "per_device", "--tail", "carry")),
    ("4", "1", ("--mesh", "data=2,model=2", "--span-processes", "--loading", "reshard")),
    ("1", "1", ()),
    ("1", "2", ("--mesh", "data=-1")),
    ("2", "2", ("--loading", "per_device")),
    ("2", "4", ("--mesh", "data=2,model=4")),
    ("4", "1", ("--mesh", "model=2,data=2", "--span-processes", "--loading", "per_device")),
    ("4", "2", ("--mesh", "data=-1", "--tail", "carry")),
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process with one device comes to."""
    return run_to_end(tmp_path_factory.mktemp("alone"), "--local", "1", *SHORT)


def run_to_end(folder: Path, *args: str) -> dict[str, Any]:
    done = subprocess.run([*LAUNCH, *args], cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return summary_in(folder)


@pytest.mark.slow
@pytest.mark.xdist_group("topologies of the job")  # which share the run of one device
@pytest.mark.parametrize(("processes", "devices", "options"), TOPOLOGIES)
def test_every_topology_and_loading_trains_alike(
    tmp_path: Path, alone: dict[str, Any], processes: str, devices: str, options: tuple[str, ...]
) -> None:
    found = run_to_end(tmp_path, "--local", processes, "--devices", devices, *SHORT, *options)
    for name in ("loss", "eval_loss"):
        assert found[name] == pytest.approx(alone[name], abs=1e-5)
    assert found["steps"] == alone["steps"] and found["processes"] == int(processes)


LONG = ("--steps", "1500", "--checkpoint-dir", "saved")


@pytest.mark.timeout(600)  # four runs, one of them of 1,500 steps
@pytest.mark.slow
def test_stopped_and_continued_elsewhere_it_ends_as_if_never_stopped(start: Start, tmp_path: Path) -> None:
    """Twice: by a signal to the launcher, then by one that reaches only one process."""
    whole = tmp_path / "whole"
    whole.mkdir()
    wanted = run_to_end(whole, "--local", "1", *LONG)

    run = start("--local", "2", "--devices", "2", *LONG, "--checkpoint-every", "1000")
    run.await_event("metrics")
    run.launcher.send_signal(signal.SIGTERM)
    assert run.wait() == 75
    assert run.result["outcome"] == "preempted" and not processes_of(run.id)
    first = run.result["saved_step"]
    assert f"preempted; saved at step {first}" in run.stderr and 0 < first < 1500

    again = start("--local", "4", "--devices", "1", *LONG, "--mesh", "data=2,model=2", "--span-processes")
    again.await_event("metrics")
    os.kill(again.await_event("process started", process_id=2)["pid"], signal.SIGTERM)
    assert again.wait() == 75, again.stderr
    second = again.result["saved_step"]
    assert f"going on after step {first}" in again.stderr and first < second < 1500

    folder = tmp_path / "last"
    folder.mkdir()
    (folder / "saved").symlink_to(tmp_path / "saved")
    found = run_to_end(folder, "--local", "1", "--devices", "4", *LONG, "--loading", "reshard")
    assert found["resumed_from"] == second and found["steps"] == 1500
    for name in ("loss", "eval_loss"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-5)


# The job once for each list of options, in one start: its exit code and what it says of a mistake.
RUN_ALL = """
import contextlib, io, json, sys
from hostmesh.worker.errors import WorkerError
from hostmesh.worker.job.settings import read_settings
from hostmesh.worker.job.train import main

for options in json.loads(sys.argv[1]):
    said = io.StringIO()
    code = 0
    try:
        with contextlib.redirect_stderr(said):
            main(read_settings(options))
    except SystemExit as stop:
        code = stop.code
    except WorkerError as error:
        code = error.exit_code
        said.write(str(error))
    print("RESULT", json.dumps([code, said.getvalue()]), flush=True)
"""


def run_all(launch: Launch, script: Script, processes: int, devices: int, *runs: Sequence[str]) -> list[Any]:
    """(code, what was said) of each, the same in every process."""
    topology = ("--local", str(processes), "--devices", str(devices))
    done = launch(*topology, script(RUN_ALL, "run_all.py"), json.dumps(runs), timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [
        [json.loads(line) for line in re.findall(rf"^\[{process} .*RESULT (.*)", done.stdout, re.MULTILINE)]
        for process in range(processes)
    ]
    assert all(each == said[0] for each in said) and len(said[0]) == len(runs), done.stdout
    return said[0]


@pytest.mark.slow
def test_ctrl_c_saves(start: Start) -> None:
    run = start("--local", "1", *LONG, "--steps", "100000")
    run.await_event("metrics")
    run.launcher.send_signal(signal.SIGINT)
    assert run.wait() == 130
    saved = run.result["saved_step"]
    assert f"stopped by Ctrl-C; saved at step {saved}" in run.stderr


@pytest.mark.slow
def test_a_finished_run_only_evaluates(launch: Launch, script: Script) -> None:
    """Three times in one start: trained, with nothing left to train, and with fewer steps than are saved."""
    options = ("--steps", "20", "--checkpoint-dir", "short")
    runs = json.dumps([options, options, (*options, "--steps", "10")])
    done = launch("--local", "1", script(RUN_ALL, "run_all.py"), runs)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, fewer = (json.loads(line) for line in re.findall("RESULT (.*)", done.stdout))
    assert (first[0], second[0], fewer[0]) == (0, 0, 2), done.stdout
    before, again, *_ = done.stdout.split("RESULT ")
    trained = re.search(r"trained 20 steps in .*: loss \d.*(test accuracy .*, test loss [\d.]+),", before)
    assert trained and "nothing is left to train: step 20 is saved in short" in again, done.stdout
    assert re.search(f"evaluated step 20 in .* s: {re.escape(trained[1])}", again), again
    assert "nan" not in again and "trained" not in again
    wanted = "found a checkpoint at step 20 in short, wanted one of at most 10 steps (--steps 10): ask for at least 20"
    assert wanted in fewer[1]


@pytest.mark.slow
def test_it_shows_how_it_goes(launch: Launch) -> None:
    done = launch("--local", "1", "--devices", "2", "--steps", "4000", "--eval-every", "1500")
    assert done.returncode == 0, done.stderr
    line = re.compile(
        r"step +\d+/4000  loss \d\.\d{4}  [\d,]+ records/s  \d+\.\d% waiting for input(?: \(\w+\))?  \d+:\d\d left"
    )
    assert line.search(done.stdout), done.stdout
    assert len(re.findall(r"step (?:1500|3000): test accuracy 0\.\d+ \(\d+ of 360\)", done.stdout)) == 2


MISTAKES: list[tuple[tuple[str, ...], int, str]] = [
    (("--mesh", "data=3"), 2, "--mesh: data=3 wants 3 devices, found 4 (2 processes of 2)"),
    (("--mesh", "model=4,data=1"), 2, "--mesh: a model replica of 4 devices (model=4) would span processes"),
    (("--mesh", "data"), 2, "--mesh wants axes like data=-1,model=2; found 'data'"),
    (("--mesh", "devices=4"), 2, "--mesh wants axes like data=-1,model=2"),
    (("--batch-size", "0"), 2, "--batch-size wants a number of 1 or more, found 0"),
    (("--batch-size", "many"), 2, "argument --batch-size: invalid int value: 'many'"),
    (("--batch-size", "33", "--mesh", "data=-1"), 2, "wanted a multiple of 4, found 33"),
    (("--batch-size", "2000"), 2, "has 1437 records, fewer than one batch of 2000"),
    (("--loading", "eager"), 2, "argument --loading: invalid choice: 'eager'"),
    (("--lr", "-1"), 2, "--lr wants a number above 0, found -1.0"),
    (("--source", "digit:train"), 1, "digits"),
    (("--source", "npz:nowhere.npz"), 1, "nowhere.npz"),
    (("--source", "arrayrecord:cut.array_record?fields=image:uint8:4x4,label:int32"), 1, "cut.array_record"),
    (("--checkpoint-dir", "/proc/none"), 1, "/proc/none"),
]


def test_what_it_cannot_do_is_told(launch: Launch, script: Script, tmp_path: Path) -> None:
    (tmp_path / "cut.array_record").write_bytes(b"half a file")
    found = run_all(launch, script, 2, 2, *(options for options, _, _ in MISTAKES))
    for (options, code, message), (exit_code, said) in zip(MISTAKES, found, strict=True):
        assert exit_code == code and message in said, (options, said)
        assert "Traceback" not in said


@pytest.mark.parametrize("nth", [0, 2, 8, 12], ids=lambda nth: MISTAKES[nth][0][-1])
@pytest.mark.quick("data=3")
def test_a_run_that_cannot_be_ends_without_a_traceback(launch: Launch, tmp_path: Path, nth: int) -> None:
    """A mistake of each kind: seen by the devices, by the job, by its parser and by a source."""
    options, code, message = MISTAKES[nth]
    (tmp_path / "cut.array_record").write_bytes(b"half a file")
    done = launch("--local", "2", "--devices", "2", *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_checkpoint_of_another_source_or_batch_size_is_refused(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    images, labels = np.zeros((500, 4, 4), np.float32), np.arange(500) % 3
    np.savez(tmp_path / "other.npz", image=images, label=labels)
    options = ("--steps", "5", "--checkpoint-dir", "saved")
    changes = {
        ("--batch-size", "64"): "batch_size",
        ("--source", "npz:other.npz"): "records",
        ("--source", "digits:all"): "records",
        ("--seed", "1"): "seed",
    }
    first, *refused, last = run_all(
        launch, script, 1, 1, options, *((*options, *changed) for changed in changes), options
    )
    assert first[0] == last[0] == 0, (first, last)
    for (changed, message), (code, said) in zip(changes.items(), refused, strict=True):
        assert code == 1 and message in said, (changed, said)


@pytest.mark.slow
def test_labels_that_are_no_class_do_not_train_silently(launch: Launch, tmp_path: Path) -> None:
    """The classes are those of records spread over the source; this label hides between them."""
    labels = np.zeros(10_000, np.int64)
    labels[1] = 7
    np.savez(tmp_path / "odd.npz", image=np.zeros((10_000, 2, 2), np.uint8), label=labels)
    done = launch("--local", "2", "--source", "npz:odd.npz", "--epochs", "1")
    assert done.returncode == 1
    assert re.search(r"step \d+: found 1 labels that are not among the 1 classes", done.stderr), done.stderr


def bad_records(folder: Path, step: int) -> int:
    """160 records, of which the one returned holds a NaN and is first used at that step of 16."""
    record = int(Order(160, seed=0).ids(16 * (step - 1), 16 * step)[5])
    images = np.random.default_rng(0).random((160, 4, 4), np.float32)
    images[record, 1, 2] = np.nan
    np.savez(folder / "bad.npz", image=images, label=np.arange(160) % 3)
    return record


def saved_steps(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder / "saved") if name.isdecimal())


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_training_before_it_is_saved(launch: Launch, tmp_path: Path) -> None:
    """On all processes at the step itself; unless told to go on, which never overwrites what was good."""
    record = bad_records(tmp_path, step=7)
    options = ("--source", "npz:bad.npz", "--batch-size", "16", "--steps", "9", "--checkpoint-every", "3")
    stopped = launch("--local", "2", *options, "--checkpoint-dir", "saved")
    assert stopped.returncode == 1, stopped.stdout
    assert "step 7: the loss is nan; in npz:bad.npz found numbers that are not finite" in stopped.stderr
    assert f"in records of that step: {record} (--nan warn goes on all the same)" in stopped.stderr
    assert "Traceback" not in stopped.stdout + stopped.stderr
    assert saved_steps(tmp_path) == ["3", "6"]

    warned = launch("--local", "2", *options, "--checkpoint-dir", "saved", "--nan", "warn")
    assert warned.returncode == 0 and "going on after step 6" in warned.stdout, warned.stderr
    assert warned.stdout.count("warning: step 7: the loss is nan; in npz:bad.npz") == 1
    assert "warning: step 9: the test loss is nan; look at npz:bad.npz" in warned.stdout
    assert saved_steps(tmp_path) == ["3", "6"]
    closing = re.compile(r"all 2 processes succeeded in .* s; loss was not finite from step 7 on; eval_loss was not")
    assert closing.search(warned.stderr), warned.stderr

    ignored = launch("--local", "1", *options, "--checkpoint-dir", "saved", "--nan", "ignore")
    assert ignored.returncode == 0 and "warning: step" not in ignored.stdout, ignored.stderr
    assert "loss was not finite from step 7 on" in ignored.stderr
    assert saved_steps(tmp_path) == ["3", "6", "9"]
    again = launch("--local", "1", *options, "--checkpoint-dir", "saved")
    assert again.returncode == 1
    assert "saved/9 holds a state that is not finite; were its files changed? Remove it to go back" in again.stderr

    summaries = [
        json.loads(path.read_text(), parse_constant=pytest.fail) for path in tmp_path.glob("runs/*/summary.json")
    ]
    assert [(each["loss"], each["eval_loss"]) for each in summaries] == [("nan", "nan")] * 2


def test_parameters_that_are_not_finite_are_not_saved_though_the_loss_before_them_was(
    launch: Launch, tmp_path: Path
) -> None:
    done = launch(
        "--local", "1", "--steps", "60", "--lr", "1e39", "--checkpoint-every", "1", "--checkpoint-dir", "saved"
    )
    assert done.returncode == 1
    why = "the records of that step are all finite: look at the steps before, and at --lr 1e+39"
    assert f"step 1: the parameters are not finite after it; {why}" in done.stderr, done.stderr
    assert saved_steps(tmp_path) == []


def test_one_number_of_a_sharded_state_that_is_not_finite_is_found() -> None:
    optimizer, mesh, look = make_optimizer(0.1, 10), make_mesh(data=-1, model=2), jax.jit(are_finite)
    assert look(init_state(init_params(0, 64, 10), optimizer, mesh))
    for layer, value in itertools.product(range(3), (np.nan, np.inf, -np.inf)):
        params = init_params(0, 64, 10)
        params[layer]["weights"][-1, 3] = value
        assert not look(init_state(params, optimizer, mesh)), (layer, value)


@pytest.mark.slow
def test_hosts_whose_records_differ_say_so_before_they_train(launch: Launch, tmp_path: Path) -> None:
    """One label of one process's copy: not among the four records that a loader looks at, but a class of its own."""
    (tmp_path / "mine.py").write_text("""
import os
import numpy as np
def make():
    labels = np.arange(400) % 4
    labels[151] = 9 if os.environ["HOSTMESH_PROCESS_ID"] == "1" else labels[151]
    return {"image": np.zeros((400, 4, 4), np.uint8), "label": labels}
""")
    done = launch("--local", "2", "--source", "mine:make", env={"PYTHONPATH": f"{REPO / 'src'}{os.pathsep}{tmp_path}"})
    assert done.returncode == 1
    assert "to look at the records; found classes: process 0 has 4, process 1 has 10; labels: process 0" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr and "ABORT" not in (done.stdout + done.stderr).upper()


@pytest.mark.slow
def test_it_runs_without_launch_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hostmesh.worker"]
    options: Any = {"cwd": tmp_path, "env": clean_env(), "capture_output": True, "text": True, "timeout": 110}
    done = subprocess.run([*command, "--steps", "5"], **options)
    assert done.returncode == 0 and "trained 5 steps" in done.stdout, done.stderr
    wrong = subprocess.run([*command, "--mesh", "data"], **options)
    assert wrong.returncode == 2
    assert wrong.stderr == "error: --mesh wants axes like data=-1,model=2; found 'data'\n"


def test_the_job_offers_every_loading_strategy() -> None:
    for loading in choices.STRATEGIES:
        assert settings.read_settings(["--loading", loading]).loading == loading
