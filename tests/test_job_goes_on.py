"""The built-in job is killed, and ends as if nothing had happened: from what it saved, and from what is in memory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import HANGS, LAUNCH, clean_env

pytestmark = pytest.mark.xdist_group("the job goes on")  # one worker has the undisturbed run

JOB = ("--local", "2", "--steps", "40", "--batch-size", "32", "--restarts", "2", "--checkpoint-dir", "saved")
KILL = "{kind: kill, process: 1, step: 25}"
RAISE = "{kind: raise, process: 0, step: 31, attempt: 2}"


class Ended(NamedTuple):
    folder: Path
    shown: str

    def read(self, name: str) -> dict[str, Any]:
        (path,) = self.folder.glob(f"runs/*/{name}.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def run_job(folder: Path, faults: Sequence[str], *options: str) -> Ended:
    (folder / "faults.yaml").write_text(f"faults: [{', '.join(faults)}]\n")
    chaos = ("--chaos", "faults.yaml") if faults else ()
    command = [*LAUNCH, "--show", "all", *JOB, *options, *chaos]
    done = subprocess.run(command, cwd=folder, env=clean_env(), capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stdout + done.stderr
    ended = Ended(folder, done.stdout)
    audit = ended.read("result")["audit"]
    assert (audit["exact"], audit["steps"], audit["records"]) == (True, 40, 40 * 32), audit
    return ended


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job comes to undisturbed."""
    return run_job(tmp_path_factory.mktemp("calm"), (), "--checkpoint-every", "10").read("summary")


@pytest.mark.parametrize("faults", [(KILL,), (KILL, RAISE)], ids=["once", "twice"])
@pytest.mark.slow
def test_from_the_last_saved_step(tmp_path: Path, calm: dict[str, Any], faults: Sequence[str]) -> None:
    ended = run_job(tmp_path, faults, "--checkpoint-every", "10")
    summary, told = ended.read("summary"), ended.read("result")
    assert summary["loss"] == pytest.approx(calm["loss"], abs=1e-5)
    *failed, last = told["attempts"]
    assert len(failed) == len(faults)
    # A save takes some steps.
    saved, steps = [(10, 20), (20, 30)], [(24, 25), (30, 31)]
    for number, attempt in enumerate(failed):
        assert attempt["saved_step"] in saved[number] and attempt["last_step"] in steps[number]
    assert (summary["resumed_from"], last["saved_step"]) == (failed[-1]["saved_step"], 40)
    assert [each["done"] for each in told["chaos"]] == [True] * len(faults)


def test_from_memory(tmp_path: Path, calm: dict[str, Any]) -> None:
    ended = run_job(tmp_path, (KILL,), "--checkpoint-every", "100", "--memory-every", "1")
    summary = ended.read("summary")
    assert summary["loss"] == calm["loss"] and summary["eval_loss"] == calm["eval_loss"]
    assert summary["resumed_from"] in (22, 23, 24)  # the process dies as it begins step 25, while 24 is being kept
    assert f"going on after step {summary['resumed_from']}, kept in memory" in ended.shown
    assert os.listdir(tmp_path / "saved") == ["40"]
