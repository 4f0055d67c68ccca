"""Find and kill every process of one agent: by descent, and by the agent's mark in its environment."""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, Iterable, List, Set

from launcher.agent.files import read_if_there

# <run id>.<host number>: several agents of one run may share a machine, and each cleans up after itself alone
MARK = "HOSTMESH_AGENT"
PAUSE = 0.01


def kill_all(mark: str, spare: Set[int], patience: float = 4.0) -> List[int]:
    """Kill until a look around finds nobody but `spare`; returns the pids that would not die."""
    deadline = time.monotonic() + patience
    while victims := find_all(mark, os.getpid()) - spare:
        _kill(victims)
        _reap()
        if time.monotonic() > deadline:
            return sorted(victims)
        time.sleep(PAUSE)
    return []


def kill_once(mark: str, spare: Set[int]) -> None:
    """For somebody who wants to see their exit codes: whoever is found now, and no reaping."""
    _kill(find_all(mark, os.getpid()) - spare)


def kill_marked(mark: str, patience: float = 2.0) -> None:
    """For somebody who is not above them: kill whoever carries the mark, and leave the reaping to others."""
    deadline = time.monotonic() + patience
    while (victims := _marked(_parents(), mark)) and time.monotonic() < deadline:
        _kill(victims)
        time.sleep(PAUSE)


def find_all(mark: str, root: int) -> Set[int]:
    """Living processes that descend from `root` or carry the mark; never the caller."""
    parents = _parents()
    return (_below(root, parents) | _marked(parents, mark)) - {os.getpid()}


def _parents() -> Dict[int, int]:
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit():
            # "1234 (any) name)) S 1 …": the name may hold anything, the last parenthesis ends it
            state, parent = read_if_there(f"/proc/{name}/stat").rpartition(b")")[2].split()[:2] or (b"Z", b"0")
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    return parents


def _below(root: int, parents: Dict[int, int]) -> Set[int]:
    found: Set[int] = set()
    edge = {root}
    while edge := {pid for pid, parent in parents.items() if parent in edge} - found:
        found |= edge
    return found


def _marked(pids: Iterable[int], mark: str) -> Set[int]:
    entry = f"{MARK}={mark}".encode()
    return {pid for pid in pids if entry in read_if_there(f"/proc/{pid}/environ").split(b"\0")}


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
