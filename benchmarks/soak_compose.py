"""benchmarks/soak.py on four containers over SSH: processes are killed, hosts silent, cut off and gone for good.

A run of four hosts, one of them a spare, that may shrink to two, gets six faults; the last one ends a host for ever.
`make cluster-image` comes first, and a Docker engine is needed.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path[:0] = [str(REPO / "tests"), str(REPO / "benchmarks")]

from conftest import LAUNCH, clean_env  # noqa: E402
from docker_cluster import HOSTS, DockerCluster, docker  # noqa: E402
from soak import OUT, Watched, find_wrong_numbers, hit_all, read_losses, tell  # noqa: E402

SETTINGS = {"spares": 1, "min_hosts": 2, "restarts": 1000, "preemptions": 1000, "lease": 4, "rejoin": 2}
JOB = ["--batch-size", "48", "--checkpoint-every", "20", "--seed", "7", "--memory-every", "1"]
# Seconds that a host is silent: longer than its lease.
SILENT = 9.0
CUT = "ip -4 rule add pref 0 blackhole"
MEND = "ip -4 rule del pref 0 blackhole"  # the other one of this preference is that for local addresses

Act = Callable[[DockerCluster, Watched, random.Random], None]


def pick(run: Watched, chance: random.Random) -> str:
    return chance.choice(sorted(run.hosts))


def kill_process(number: int, first: bool = False) -> Act:
    def act(cluster: DockerCluster, run: Watched, chance: random.Random) -> None:
        victim = 0 if first else chance.choice(sorted(run.pids))
        cluster.exec(run.host_of[victim], "kill", f"-{number}", str(run.pids[victim]))

    return act


def silence(cluster: DockerCluster, run: Watched, chance: random.Random) -> None:
    host = pick(run, chance)
    docker("pause", cluster.container(host))
    time.sleep(SILENT)
    docker("unpause", cluster.container(host))


def cut_off(cluster: DockerCluster, run: Watched, chance: random.Random) -> None:
    host = pick(run, chance)
    cluster.exec(host, "sh", "-c", CUT)
    time.sleep(SILENT)
    cluster.exec(host, "sh", "-c", MEND)


def kill_agent(cluster: DockerCluster, run: Watched, chance: random.Random) -> None:
    host = pick(run, chance)
    cluster.exec(host, "kill", "-9", str(run.agents[host]["agent"]))


def end_host(cluster: DockerCluster, run: Watched, chance: random.Random) -> None:
    cluster.kill(pick(run, chance))


KINDS: dict[str, Act] = {
    "a process is killed": kill_process(signal.SIGKILL),
    "process 0 is killed": kill_process(signal.SIGKILL, first=True),
    "a host is paused for 9 s": silence,
    "a host is cut off for 9 s": cut_off,
    "an agent is killed": kill_agent,
    "a host is gone for good": end_host,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=420)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    failed = 0
    with tempfile.TemporaryDirectory() as configs:
        cluster = DockerCluster(Path(configs))
        cluster.up()
        try:
            expected = run_undisturbed(cluster, options.steps)
            print(f"# undisturbed: {expected}", flush=True)
            for number in range(options.runs):
                problems = soak(cluster, options.steps, options.seed + number, expected, seconds)
                failed += bool(problems)
                print(f"# run {number}: {'; '.join(problems) or 'as if nothing had happened'}", flush=True)
                cluster.restore()
        finally:
            cluster.stop()
    tell(seconds)
    sys.exit(f"{failed} of {options.runs} runs were not as they should be" if failed else 0)


def start(cluster: DockerCluster, folder: Path, steps: int) -> Watched:
    hosts = cluster.write_file(folder, **SETTINGS)
    saved = ["--checkpoint-dir", f"/shared/{uuid.uuid4().hex}"]
    with (folder / OUT).open("wb") as out:
        launcher = subprocess.Popen(
            [*LAUNCH, "--hosts", hosts, *JOB, "--steps", str(steps), *saved],
            cwd=folder,
            env=clean_env(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    return Watched(folder, launcher, wanted=2)


def run_undisturbed(cluster: DockerCluster, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run = start(cluster, Path(folder), steps)
        if run.launcher.wait(600) != 0:
            sys.exit("\n".join(run.last_lines()))
        return read_losses(Path(folder))


def soak(
    cluster: DockerCluster, steps: int, seed: int, expected: dict[str, float], seconds: dict[str, list[float]]
) -> list[str]:
    chance = random.Random(seed)
    *kinds, last = KINDS
    chance.shuffle(kinds)
    with tempfile.TemporaryDirectory() as folder:
        run = start(cluster, Path(folder), steps)
        faults = [*kinds, last]
        if problems := hit_all(run, steps, faults, lambda kind: KINDS[kind](cluster, run, chance), seconds):
            return problems
        left = cluster.left_of(run.run_id, HOSTS)
        return find_wrong_numbers(run, expected) + ([f"left behind: {left}"] if left else [])


if __name__ == "__main__":
    main()
