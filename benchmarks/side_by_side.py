"""This checkout beside another one: starting, failing, printing and syncing, in turn, as ratios within a round.

`side_by_side.py BASE`, where BASE is a checkout of the commit before (`git worktree add BASE COMMIT`). Both run under
this Python. A ratio is this checkout's number divided by that of BASE in the same round; told are the median of the
ratios and their middle half.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE / "tests"), str(HERE / "src")]

from ssh_fanout import write_ssh_config  # noqa: E402
from sshd import Sshd  # noqa: E402

TIMEOUT = 300
FILES = 2000
RENDEZVOUS = """
import jax, os, signal, sys, time
from jax.experimental import multihost_utils
jax.distributed.initialize()
multihost_utils.sync_global_devices("up")
"""
KILLED = (
    RENDEZVOUS
    + """
for k in range(50): multihost_utils.sync_global_devices(str(k))
if jax.process_index() == 2:
    open("killed_at", "w").write(str(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)
multihost_utils.sync_global_devices("end")
"""
)
FLOOD = 'import sys\nfor _ in range(300): sys.stdout.write(("x" * 99 + "\\n") * 10_000)\n'

# From a checkout and a folder of its own to a number of seconds.
Measure = Callable[[Path, Path], float]


def launch(checkout: Path, folder: Path, *args: str, code: int = 0) -> list[dict[str, object]]:
    """Its events. A base from before there was one package has its two folders on the path."""
    is_package = (checkout / "src").is_dir()
    module = "hostmesh.launcher.cli" if is_package else "launcher.cli"
    path = checkout / "src" if is_package else checkout
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HOSTMESH_", "JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"from {module} import main; main()", "--json", *args],
        cwd=folder,
        env={**env, "PYTHONPATH": str(path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT,
    )
    if done.returncode != code:
        raise SystemExit(f"{checkout}: exit code {done.returncode}, wanted {code}\n{done.stderr.decode()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def time_start(count: int, *options: str, checkout: Path, folder: Path) -> float:
    (folder / "job.py").write_text(RENDEZVOUS)
    began = time.monotonic()
    launch(checkout, folder, "--local", str(count), *options, "job.py")
    return time.monotonic() - began


def time_verdict(checkout: Path, folder: Path) -> float:
    (folder / "job.py").write_text(KILLED)
    launch(checkout, folder, "--local", "4", "job.py", code=137)
    return time.time() - float((folder / "killed_at").read_text())


def time_flood(checkout: Path, folder: Path) -> float:
    (folder / "job.py").write_text(FLOOD)
    began = time.monotonic()
    launch(checkout, folder, "--local", "1", "--cold", "job.py")
    return time.monotonic() - began


def time_sync(cluster: Path, again: bool, checkout: Path, folder: Path, from_hello: bool = True) -> float:
    """From the hello of the host, or from the command, to its synced."""
    work = folder / "work"
    settings = {**json.loads(cluster.read_text()), "workdir": str(work), "sync": {"from": "code"}}
    (folder / "c.yaml").write_text(json.dumps(settings))
    if not (folder / "code").exists():
        make_tree(folder / "code")
    if not again:
        shutil.rmtree(work, ignore_errors=True)
    elif not work.exists():
        launch(checkout, folder, "--hosts", "c.yaml", "--", "true")
    began = time.time()
    events = launch(checkout, folder, "--hosts", "c.yaml", "--", "true")
    times = {str(event["event"]): float(str(event["time"])) for event in events}
    return times["host synced"] - (times["host connected"] if from_hello else began)


def time_hellos(config: Path, count: int, checkout: Path, folder: Path) -> float:
    """From the command to the last agent's hello, all hosts being one sshd."""
    settings = {"ssh": {"config": str(config)}, "workdir": str(folder), "agent_python": sys.executable}
    (folder / "c.yaml").write_text(json.dumps({"hosts": [f"host-[0-{count - 1}]"], **settings}))
    began = time.time()
    events = launch(checkout, folder, "--hosts", "c.yaml", "--", "true")
    return max(float(str(event["time"])) for event in events if event["event"] == "host connected") - began


def make_tree(folder: Path) -> None:
    for number in range(FILES):
        path = folder / f"package_{number % 40}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# module {number}\n" + "x = 1\n" * (number % 300))


@contextmanager
def local_sshd(folder: Path) -> Iterator[Sshd]:
    server = Sshd(folder / "server")
    try:
        yield server
    finally:
        server.close()


def write_cluster(server: Sshd, folder: Path) -> Path:
    """Of one host."""
    ssh = {
        "config": str(folder / "none"),
        "known_hosts": str(server.known_hosts),
        "identity_files": str(server.identity),
    }
    (folder / "none").touch()
    cluster = folder / "ssh.yaml"
    hosts = [{"address": "127.0.0.1", "port": server.port, "user": server.user}]
    cluster.write_text(json.dumps({"hosts": hosts, "ssh": ssh, "agent_python": sys.executable}))
    return cluster


def compare(name: str, measure: Measure, checkouts: list[Path], folder: Path, rounds: int) -> None:
    ratios, base, own = [], [], []
    for number in range(rounds):
        found = {}
        for checkout in checkouts if number % 2 else checkouts[::-1]:
            place = folder / ("own" if checkout == HERE else "base")
            place.mkdir(exist_ok=True)
            found[checkout] = measure(checkout, place)
        base.append(found[checkouts[0]])
        own.append(found[HERE])
        ratios.append(own[-1] / base[-1])
    low, middle, high = statistics.quantiles(ratios, n=4)
    medians = f"{statistics.median(base):7.3f} s  {statistics.median(own):7.3f} s"
    print(f"{name:<22} {medians}   {middle:5.2f} ({low:.2f} to {high:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="a checkout of the commit before")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those measures whose names begin so")
    options = parser.parse_args()
    checkouts = [options.base.resolve(), HERE]
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as name, local_sshd(Path(name)) as server:
        cluster = write_cluster(server, Path(name))
        config = write_ssh_config(Path(name), server)
        with server.known_hosts.open("a") as known:
            known.write(server.known_line())
        measures: dict[str, Measure] = {
            "start 2": lambda c, f: time_start(2, checkout=c, folder=f),
            "start 4": lambda c, f: time_start(4, checkout=c, folder=f),
            "start 8": lambda c, f: time_start(8, checkout=c, folder=f),
            "start 4 cold": lambda c, f: time_start(4, "--cold", checkout=c, folder=f),
            "kill to exit": time_verdict,
            "300 MB of output": time_flood,
            "first sync over SSH": partial(time_sync, cluster, False),
            "second sync over SSH": partial(time_sync, cluster, True),
            "command to second sync": partial(time_sync, cluster, True, from_hello=False),
            "16 hosts over SSH": partial(time_hellos, config, 16),
        }
        print(f"{'':<22} {'base':>9}  {'this':>9}   ratio of a round, median (middle half)")
        for label, measure in measures.items():
            if not options.only or label.startswith(tuple(options.only)):
                compare(label, measure, checkouts, Path(name), options.rounds)


if __name__ == "__main__":
    main()
