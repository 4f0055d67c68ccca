"""Who is blamed when one of 4 processes ends a loop of collectives, in every way a process can end; and how soon.

Each case is run `--repeats` times: on this machine, and over SSH with four hosts that are one local sshd. A verdict is
right when it names the process that ended first and how it did. Seconds are from the fault to the verdict, all stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

REPO = Path(__file__).parent.parent
sys.path.insert(0, str(REPO / "tests"))

LAUNCH = [sys.executable, "-P", "-c", "from hostmesh.launcher.cli import main; main()"]
COUNT = 4
TIMEOUT = 60
JOB = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from jax.experimental import io_callback, multihost_utils
jax.distributed.initialize()
def fault():
    with open(os.environ["FAULT_AT"], "w") as file:
        file.write(str(time.time()))
    {fault}
def divide(x):
    if x > 20 and jax.process_index() == {culprit}:
        with open(os.environ["FAULT_AT"], "w") as file:
            file.write(str(time.time()))
        return x // (x - x)
    return x
def step(k):
    if k == 20 and jax.process_index() == {culprit}:
        fault()
    {work}
    multihost_utils.sync_global_devices(str(k))
for k in range(10**9):
    step(k)
"""
SHAPE = "jax.ShapeDtypeStruct((), jnp.int32)"
PURE = f"jax.jit(lambda x: jax.pure_callback(lambda x: divide(x.item()), {SHAPE}, x))(jnp.int32(k)).block_until_ready()"
IO = f"jax.jit(lambda x: io_callback(lambda x: divide(x.item()), {SHAPE}, x))(jnp.int32(k)).block_until_ready()"
DEBUG = "jax.jit(lambda x: jax.debug.callback(lambda x: divide(x.item()), x))(jnp.int32(k)); jax.effects_barrier()"


class Case(NamedTuple):
    culprit: int
    fault: str
    said: str
    exit_code: int
    work: str = "pass"


def cases() -> dict[str, Case]:
    kill, abort, segv = r"killed by signal 9 \(SIGKILL\)", r"killed by signal 6 \(SIGABRT\)", r"killed by signal 11"
    left, zero = "left with exit code 0 while", "ZeroDivisionError"
    found: dict[str, Case] = {}
    for k in (0, 2):
        found[f"abort {k}"] = Case(k, "os.abort()", abort, 134)
        found[f"exit 0 in {k}"] = Case(k, "os._exit(0)", left, 1)
        found[f"exit 3 in {k}"] = Case(k, "os._exit(3)", "exited with 3", 3)
        found[f"kill {k}"] = Case(k, "os.kill(os.getpid(), signal.SIGKILL)", kill, 137)
        found[f"segv {k}"] = Case(k, "os.kill(os.getpid(), signal.SIGSEGV)", segv, 139)
        found[f"exception {k}"] = Case(k, "raise ValueError('no more data')", "ValueError: no more data", 1)
        found[f"exit 256 in {k}"] = Case(k, "sys.exit(256)", r"sys.exit\(256\) is exit code 0 to the system", 1)
    found["pure_callback 2"] = Case(2, "pass", zero, 1, PURE)
    found["io_callback 0"] = Case(0, "pass", zero, 1, IO)
    found["debug.callback 2"] = Case(2, "pass", zero, 1, DEBUG)
    return found


class Outcome(NamedTuple):
    right: bool
    seconds: float
    told: str


def run_case(case: Case, folder: Path, args: list[str]) -> Outcome:
    script, fault_at = folder / "job.py", folder / "fault_at"
    script.write_text(JOB.format(fault=case.fault, culprit=case.culprit, work=case.work))
    fault_at.unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "HOSTMESH_"))}
    env = {**kept, "PYTHONPATH": str(REPO / "src"), "JAX_PLATFORMS": "cpu", "FAULT_AT": str(fault_at)}
    began = [file.name for file in (folder / "runs").glob("*")]
    command = [*LAUNCH, *args, "job.py"]
    with (folder / "output").open("wb") as output:
        launcher = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        code = launcher.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        launcher.kill()  # its agents clean up
        launcher.wait()
        return Outcome(False, TIMEOUT, f"no verdict within {TIMEOUT} s")
    (new,) = [file for file in (folder / "runs").glob("*") if file.name not in began]
    result: dict[str, Any] = json.loads((new / "result.json").read_text())
    told = "\n".join([result["message"], *result["detail"]])
    ended = result["began"] + result["seconds"]
    seconds = ended - float(fault_at.read_text()) if fault_at.exists() else float("nan")
    named = result["process_id"] == case.culprit and "alike" not in result["message"]
    right = named and re.search(case.said, told, re.DOTALL) is not None and code == case.exit_code
    return Outcome(right, seconds, f"exit code {code}: {told}\n{new}")


@contextmanager
def ways(folder: Path, wanted: list[str]) -> Iterator[dict[str, list[str]]]:
    """How to launch: the arguments by the name of the way."""
    found = {"local": ["--local", str(COUNT)], "cold": ["--local", str(COUNT), "--cold"]}
    if "ssh" not in wanted:
        yield found
        return
    from sshd import Sshd

    server = Sshd(folder / "server")
    try:
        (folder / "c.yaml").write_text(json.dumps(cluster_over(server, folder)))
        yield {**found, "ssh": ["--hosts", "c.yaml"]}
    finally:
        server.close()


def cluster_over(server: Any, folder: Path) -> dict[str, Any]:
    from ssh_fanout import write_ssh_config

    names = [f"host-{number}" for number in range(COUNT)]
    write_ssh_config(folder, server)
    return {
        "hosts": [{"address": name, "internal_address": "127.0.0.1"} for name in names],
        "ssh": {"config": "ssh_config"},
        "python": sys.executable,
        "agent_python": sys.executable,
        "workdir": str(folder),
        "env": {"JAX_PLATFORMS": "cpu", "FAULT_AT": str(folder / "fault_at")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--cases", nargs="+", default=list(cases()), metavar="CASE")
    parser.add_argument("--ways", nargs="+", default=["local", "ssh"], choices=["local", "cold", "ssh"])
    parser.add_argument("--show", action="store_true", help="print every verdict, not only the wrong ones")
    options = parser.parse_args()
    print("right verdicts, and seconds from the fault to the verdict, all stopped (median, most)")
    with tempfile.TemporaryDirectory(prefix="culprits-") as name, ways(Path(name), options.ways) as how:
        for way in options.ways:
            for label in options.cases:
                outcomes = [run_case(cases()[label], Path(name), how[way]) for _ in range(options.repeats)]
                seconds = [outcome.seconds for outcome in outcomes]
                right = sum(outcome.right for outcome in outcomes)
                spread = f"{statistics.median(seconds):6.2f} {max(seconds):6.2f}"
                print(f"  {way:<6} {label:<18} {right:>3} of {len(outcomes)} {spread}", flush=True)
                for outcome in outcomes:
                    if options.show or not outcome.right:
                        print("    " + outcome.told.replace("\n", "\n    "), flush=True)


if __name__ == "__main__":
    sys.exit(main())
