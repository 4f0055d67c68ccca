"""Wall time from `kill -9` of one of 4 processes inside a collective until everything is gone, and whether it is named.

Each round takes every contender once, in turn. Bare JAX takes about 100 s a round, torchrun 30 s: leave them out with
`--only launch` for a quick look.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launch_time import JOIN_BARE, JOIN_BY_HAND, JOIN_TORCHRUN, contenders, free_address

COUNT = 4
KILLED = 2
JOB = """
import os
import jax
from jax.experimental import multihost_utils
{join}
multihost_utils.sync_global_devices("first")
with open(os.path.join(os.environ["FOLDER"], str(jax.process_index())), "w") as file:
    file.write(str(os.getpid()))
while True:
    multihost_utils.sync_global_devices("again")
"""
TIMEOUT = 200.0


def pids(folder: Path) -> dict[int, int]:
    return {int(file.name): int(file.read_text() or 0) for file in folder.iterdir()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def measure(command: list[str]) -> tuple[float, bool]:
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        folder = Path(name)
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "ADDRESS": free_address(), "FOLDER": name}
        starter = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        while len(found := pids(folder)) < COUNT or not all(found.values()):
            if starter.poll() is not None:
                raise SystemExit(f"{command[0]} ended early")
            time.sleep(0.01)
        time.sleep(0.3)  # deep inside the loop of collectives
        began = time.monotonic()
        os.kill(found[KILLED], signal.SIGKILL)
        while starter.poll() is None or any(map(is_alive, found.values())):
            if time.monotonic() - began > TIMEOUT:
                os.killpg(starter.pid, signal.SIGKILL)
                break
            time.sleep(0.005)
        seconds = time.monotonic() - began
        output.seek(0)
        text = output.read().decode(errors="replace")
    return seconds, names_the_culprit(" ".join(text.split()))


def names_the_culprit(text: str) -> bool:
    """By the words launch, torchrun and mpirun use for the root cause."""
    words = (
        f"process {KILLED} on localhost was killed",
        f"failed (exitcode: -9) local_rank: {KILLED}",
        f"process rank {KILLED} with PID",
    )
    return any(word in text for word in words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="names of contenders")
    options = parser.parse_args()
    times: dict[str, list[float]] = {}
    named: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, join in {"by_hand": JOIN_BY_HAND, "bare": JOIN_BARE, "torchrun": JOIN_TORCHRUN}.items():
            (folder / f"{file}.py").write_text(JOB.format(join=join))
        for _ in range(options.rounds):
            for contender, command in contenders(folder, COUNT).items():
                if options.only and contender not in options.only:
                    continue
                seconds, culprit = measure(command)
                times.setdefault(contender, []).append(seconds)
                named[contender] = named.get(contender, 0) + culprit
    print(f"seconds until all is gone after kill -9 of one of {COUNT}, {options.rounds} rounds (median, least, most)")
    for contender, seconds in times.items():
        label = "bare JAX" if contender == "shell loop" else contender
        spread = f"{statistics.median(seconds):7.2f}   {min(seconds):.2f} to {max(seconds):.2f}"
        print(f"  {label:<14} {spread}   culprit named in {named[contender]} of {len(seconds)}")


if __name__ == "__main__":
    sys.exit(main())
