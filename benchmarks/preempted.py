"""How many steps are done again: 1,600 of them, four hosts that are taken away with a warning, one without.

The built-in job on three hosts of this machine and a spare saves every hundred steps. The warning is SIGTERM to the
agent of a host. The host without a warning goes in the middle of a save: its agent is killed while the folder of an
unfinished save is there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path[:0] = [str(REPO / "tests"), str(REPO / "benchmarks")]

from conftest import LAUNCH, clean_env  # noqa: E402
from soak import Watched  # noqa: E402

CLUSTER = """
transport: local
hosts: [a, b, c, d]
spares: 1
restarts: 10
lease: 4
"""
SAVE_EVERY = 100
TIMEOUT = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--warned", type=int, default=4)
    options = parser.parse_args()
    for what, warned, unwarned in (("with a warning", options.warned, 0), ("and in the middle of a save", 0, 1)):
        with tempfile.TemporaryDirectory() as folder:
            tell(what, measure(Path(folder), options.steps, warned, unwarned))


def measure(folder: Path, steps: int, warned: int, unwarned: int) -> dict[str, object]:
    (folder / "cluster.yaml").write_text(CLUSTER)
    job = ["--steps", str(steps), "--batch-size", "48", "--checkpoint-every", str(SAVE_EVERY)]
    with (folder / "out").open("wb") as out:
        launcher = subprocess.Popen(
            [*LAUNCH, "--hosts", "cluster.yaml", *job, "--checkpoint-dir", "saved"],
            cwd=folder,
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    run = Watched(folder, launcher, wanted=3)
    for number in range(1, warned + 1):
        assert run.await_step(number * steps // (warned + 1), TIMEOUT)
        os.kill(run.agents[sorted(run.hosts)[number % 3]]["agent"], signal.SIGTERM)
        assert run.await_step(run.step, TIMEOUT, run.attempts + 1)
    for _ in range(unwarned):
        assert run.await_step(steps // 2, TIMEOUT)
        await_save(folder)
        run.look()
        os.kill(run.agents[sorted(run.hosts)[0]]["agent"], signal.SIGKILL)
    if launcher.wait(TIMEOUT) != 0:
        sys.exit((folder / "out").read_text(errors="replace"))
    [path] = folder.glob("runs/*/result.json")
    result: dict[str, object] = json.loads(path.read_text())
    return result


def await_save(folder: Path) -> None:
    """Until one is under way, and not complete."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if any((folder / "saved").glob("*.orbax-checkpoint-tmp*")):
            return
        time.sleep(0.001)
    raise TimeoutError("nothing was saved")


def tell(what: str, result: dict[str, object]) -> None:
    audit, attempts = result["audit"], result["attempts"]
    assert isinstance(audit, dict) and isinstance(attempts, list)
    ends = ", ".join(each["outcome"] for each in attempts)
    print(f"{what}: {audit['repeated_steps']} steps done again, exact: {audit['exact']}; attempts: {ends}", flush=True)


if __name__ == "__main__":
    main()
