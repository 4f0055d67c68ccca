"""Wall time from the command to all agents ready over SSH, beside plain ssh and pdsh, and the launcher's memory a host.

All hosts are one local sshd under many names. Each round starts every contender once, in turn, so that a noisy machine
treats them alike; a contender's number is the median over the rounds of its time divided by that of `ssh HOST true`,
all at once, in the same round. What real hosts would do at the same time, each for itself, the local sshd's sessions do
on this machine's few processors; so processor time is counted as well, here and on the hosts' side.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from sshd import Sshd  # noqa: E402

TIMEOUT = 300
# By default OpenSSH 9 exchanges keys in a way that takes ten times as long as the one it has in common with paramiko.
SAME_KEY_EXCHANGE = ["-o", "KexAlgorithms=curve25519-sha256"]
# What an agent's host has to do at the least.
PYTHON = [sys.executable, "-I", "-S", "-c", "pass"]


def write_ssh_config(folder: Path, sshd: Sshd) -> Path:
    sshd.known_hosts.write_text(sshd.known_line("every-host"))
    settings = {
        "HostName": "127.0.0.1",
        "HostKeyAlias": "every-host",
        "Port": sshd.port,
        "IdentityFile": sshd.identity,
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": sshd.known_hosts,
        "BatchMode": "yes",
    }
    config = folder / "ssh_config"
    config.write_text("Host host-*\n" + "".join(f"  {key} {value}\n" for key, value in settings.items()))
    return config


def time_launch(folder: Path, config: Path, count: int) -> tuple[float, int]:
    """Seconds until the last agent said hello, and the launcher's memory then, in bytes."""
    hosts = folder / f"{count}.yaml"
    settings = {"ssh": {"config": str(config)}, "workdir": str(folder), "agent_python": sys.executable}
    hosts.write_text(json.dumps({"hosts": [f"host-[0-{count - 1}]"], **settings}))  # JSON is YAML
    command = [str(BIN / "launch"), "--hosts", str(hosts), "--runs", str(folder / "runs"), "--json", "--", "true"]
    with (folder / "stderr").open("wb") as stderr:
        began = time.monotonic()
        launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
    assert launcher.stdout is not None
    waiting = count
    with launcher.stdout as events:
        while waiting and (line := events.readline()):
            waiting -= json.loads(line)["event"] == "host connected"
        seconds, memory = time.monotonic() - began, 0 if waiting else read_memory(launcher.pid)
        launcher.send_signal(signal.SIGINT)
        events.read()
    launcher.wait(TIMEOUT)
    if waiting:
        raise SystemExit(f"launch: {waiting} of {count} hosts were not connected\n{(folder / 'stderr').read_text()}")
    return seconds, memory


def read_memory(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def time_ssh(config: Path, count: int, *command: str) -> float:
    began = time.monotonic()
    ssh, hosts = ["ssh", "-F", str(config)], [f"host-{number}" for number in range(count)]
    sessions = [subprocess.Popen([*ssh, host, *command], stdin=subprocess.DEVNULL) for host in hosts]
    codes = [session.wait(TIMEOUT) for session in sessions]
    if any(codes):
        raise SystemExit(f"ssh: {count - codes.count(0)} of {count} sessions failed")
    return time.monotonic() - began


def time_pdsh(config: Path, count: int) -> float:
    env = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"-F {config}"}
    began = time.monotonic()
    names = f"host-[0-{count - 1}]"
    subprocess.run(
        ["pdsh", "-R", "ssh", "-S", "-f", str(count), "-w", names, "true"], env=env, check=True, timeout=TIMEOUT
    )
    return time.monotonic() - began


def contenders(folder: Path, config: Path, count: int, memory: list[int]) -> dict[str, Callable[[], float]]:
    def launch() -> float:
        seconds, used = time_launch(folder, config, count)
        memory.append(used)
        return seconds

    found: dict[str, Callable[[], float]] = {
        "ssh true": lambda: time_ssh(config, count, "true"),
        "ssh python": lambda: time_ssh(config, count, *PYTHON),
        "ssh -o python": lambda: time_ssh(config, count, *SAME_KEY_EXCHANGE, *PYTHON),
        "launch": launch,
    }
    if shutil.which("pdsh"):
        found["pdsh true"] = lambda: time_pdsh(config, count)
    return found


class Cost(NamedTuple):
    """Seconds on the clock, and of processor time: of the command, and of what it set going on the hosts."""

    wall: float
    here: float
    there: float


def measure(contender: Callable[[], float], sshd: Sshd) -> Cost:
    here, there = count_cpu_here(), count_cpu_there(sshd)
    wall = contender()
    while sshd.session_pids():  # only what has ended is counted
        time.sleep(0.05)
    return Cost(wall, count_cpu_here() - here, count_cpu_there(sshd) - there)


def count_cpu_here() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def count_cpu_there(sshd: Sshd) -> float:
    fields = Path(f"/proc/{sshd.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--json", type=Path, help="also write all times to this file")
    options = parser.parse_args()
    costs: dict[int, dict[str, list[Cost]]] = {count: {} for count in options.hosts}
    memory: dict[int, list[int]] = {count: [] for count in options.hosts}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Without a home nothing of the user's shell start-up is measured.
        sshd = Sshd(folder / "sshd", "MaxStartups 1000:100:1000", f"SetEnv HOME={folder}")
        try:
            config = write_ssh_config(folder, sshd)
            for turn in range(options.rounds + 1):
                for count in options.hosts:
                    for contender, begin in contenders(folder, config, count, memory[count]).items():
                        cost = measure(begin, sshd)
                        if turn:  # the first round only fills the caches
                            costs[count].setdefault(contender, []).append(cost)
        finally:
            sshd.close()
    for count, found in costs.items():
        report(count, found)
    report_memory(memory)
    if options.json:
        options.json.write_text(json.dumps({"costs": costs, "memory": memory}, indent=1))


def report(count: int, costs: dict[str, list[Cost]]) -> None:
    base = costs["ssh true"]
    print(f"{count} hosts, {len(base)} rounds: seconds and ratio to ssh true (median, least, most), CPU a host")
    for contender, found in costs.items():
        ratios = [mine.wall / plain.wall for mine, plain in zip(found, base, strict=True)]
        middle = f"{statistics.median(cost.wall for cost in found):6.2f} s   {statistics.median(ratios):.2f}"
        here, there = (
            1000 * statistics.median(getattr(cost, side) for cost in found) / count for side in ("here", "there")
        )
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"  {contender:<14} {middle}   {spread}   {here:4.0f} ms here, {there:4.0f} ms there")


def report_memory(memory: dict[int, list[int]]) -> None:
    middle = {count: statistics.median(values) / (1 << 20) for count, values in memory.items()}
    least, most = min(middle), max(middle)
    print("the launcher's memory: " + ", ".join(f"{value:.1f} MiB with {count}" for count, value in middle.items()))
    if most > least:
        print(f"  that is {(middle[most] - middle[least]) / (most - least):.2f} MiB a host")


if __name__ == "__main__":
    main()
