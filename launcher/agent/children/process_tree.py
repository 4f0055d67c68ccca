"""The processes below one agent, found by descent and by the mark in their environment: find, kill and reap them."""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, Dict, Iterable, Iterator, List, Set, Tuple

from hostmesh.launcher.agent.files import read_if_there

# See make_mark; several agents of one run may share a machine, and each cleans up after itself alone.
MARK = "HOSTMESH_AGENT"
PAUSE = 0.01
# Programs that remove shared memory when its users are gone, and the seconds they are given for that: the resource
# trackers of Python and joblib, and PyTorch's manager.
CLEANERS = (b"resource_tracker import main", b"torch_shm_manager")
CLEANING_TIMEOUT = 3.0

# Called with the pids that are about to be killed; see agent/leftovers/shared_memory.py.
Note = Callable[[Set[int]], None]


def ignore(_: Set[int]) -> None:
    pass


def make_mark(run_id: str, host: int, life: int = 1) -> str:
    """`run.3`, and `run.3.2` for the second agent that a host gets because the first was lost."""
    return f"{run_id}.{host}" + (f".{life}" if life > 1 else "")


def list_earlier(mark: str) -> List[str]:
    """The marks of the agents that the host had before, which may be out of reach and not at their end."""
    parts = mark.split(".")
    if len(parts) < 3:
        return []
    run_id, host, life = parts
    return [make_mark(run_id, int(host), each) for each in range(1, int(life))]


def kill_all(mark: str, spare: Set[int], note: Note = ignore, timeout: float = 4.0) -> List[int]:
    """Kill and reap until only `spare` is left of the tree; returns the pids that would not die."""
    began = time.monotonic()
    while victims := find_all(mark, os.getpid()) - spare:
        _end(victims, note, began)
        for _ in reap():
            pass
        if time.monotonic() > began + timeout:
            return sorted(victims)
        time.sleep(PAUSE)
    return []


def kill_once(mark: str, spare: Set[int], note: Note, began: float) -> None:
    """Kill whoever is found now, and reap nobody: the caller wants to see their exit codes."""
    _end(find_all(mark, os.getpid()) - spare, note, began)


def kill_marked(mark: str, timeout: float = 4.0) -> None:
    """Kill whoever carries the mark, and reap nobody: the caller is not their parent."""
    began = time.monotonic()
    while (victims := _marked(_parents(), mark)) and time.monotonic() < began + timeout:
        _end(victims, ignore, began)
        time.sleep(PAUSE)


def _end(victims: Set[int], note: Note, began: float) -> None:
    """Kill `victims`. Cleaners end by themselves when all others are dead; from `began` on they have time for that."""
    if time.monotonic() - began < CLEANING_TIMEOUT:
        victims = victims - find_cleaners(victims)
    if victims:
        note(victims)
        _kill(victims)


def find_cleaners(pids: Set[int]) -> Set[int]:
    commands = {pid: read_if_there(f"/proc/{pid}/cmdline") for pid in pids}
    return {pid for pid, command in commands.items() if any(each in command for each in CLEANERS)}


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


def reap() -> Iterator[Tuple[int, int]]:
    """The children that have ended by now: pid and exit code, which is negative for a signal."""
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended[0], os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass  # there are no children at all
