"""Takes the network of this host down, in a way that its agent can undo."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from hostmesh.worker.identity import FACTS_SOCKET, UNDO_NETWORK

# For what was said before to leave the host.
PAUSE = 0.5
TIMEOUT = 10.0
# Words that `ip route show` prints and `ip route replace` does not take.
STATES = {"linkdown", "dead"}


def explain_no_network() -> str | None:
    if shutil.which("ip") is None:
        return "found no program ip on this host, wanted that of iproute2"
    if _find_ip() is None:
        return "only root, who has CAP_NET_ADMIN, may take a network down; in a container: cap_add: [NET_ADMIN]"
    return None


def _find_ip() -> list[str] | None:
    """The command `ip`, as one who may change links; loopback is up already, so that asking changes nothing."""
    for ip in (["ip"], ["sudo", "-n", "ip"]):
        if shutil.which(ip[0]) is not None:
            asked = subprocess.run([*ip, "link", "set", "dev", "lo", "up"], capture_output=True, timeout=TIMEOUT)
            if asked.returncode == 0:
                return ip
    return None


def drop_network(seconds: float | None) -> None:
    """All links but loopback, for so many seconds, or until the agent ends."""
    ip = _find_ip()
    assert ip is not None  # the schedule asks first
    links = _find_links(ip)
    undo = [[*ip, "link", "set", "dev", name, "up"] for name in links] + _find_routes(ip)
    file = Path(os.environ[FACTS_SOCKET]).with_name(UNDO_NETWORK)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(json.dumps(undo))
    partial.rename(file)
    time.sleep(PAUSE)
    _run([[*ip, "link", "set", "dev", name, "down"] for name in links])
    if seconds is not None:
        time.sleep(seconds)
        _run(undo)
        file.unlink()


def _find_links(ip: list[str]) -> list[str]:
    """`2: eth0@if7: <BROADCAST,…` is eth0. Not from /sys, which may belong to another network namespace."""
    lines = _ask([*ip, "-o", "link", "show", "up"])
    names = [line.split(": ")[1].partition("@")[0] for line in lines]
    return [name for name in names if name != "lo"]


def _find_routes(ip: list[str]) -> list[list[str]]:
    """Routes that the kernel does not make by itself when a link comes up, such as the default route."""
    routes = [line.split() for line in _ask([*ip, "-4", "route", "show"]) if " proto kernel " not in line]
    return [[*ip, "route", "replace", *(word for word in words if word not in STATES)] for words in routes]


def _run(commands: list[list[str]]) -> None:
    for command in commands:
        subprocess.run(command, check=False, timeout=TIMEOUT)


def _ask(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
    return done.stdout.splitlines()
