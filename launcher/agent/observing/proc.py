"""What /proc tells of a process: its state, its processor time, what it waits for, which programs it runs."""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional

from hostmesh.launcher.agent.files import read_if_there
from hostmesh.launcher.agent.observing.syscalls import find_numbers

TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/PID/stat, counted after the name of the program, which may hold anything: `1234 (python3) S 1 …`.
STATE, USER_TIME, SYSTEM_TIME = 0, 11, 12
MAX_THREADS = 2000
MAX_COMMAND = 200
MAX_PROGRAMS = 4
# System calls whose first argument is a file descriptor. /proc/PID/syscall shows `0 0x5 0x7f… …`: number, then
# arguments.
ON_A_FILE = find_numbers(
    *("read", "write", "pread", "pwrite", "readv", "writev", "fsync", "fdatasync", "flock", "getdents")
)


class Status(NamedTuple):
    """`state` is a letter: R runs, S sleeps, D waits for a disk, T is stopped, Z has ended; `cpu` is in seconds."""

    state: str
    cpu: float


def read_status(pid: int, thread: Optional[int] = None) -> Optional[Status]:
    """Of the whole process, or of one thread; None when there is none. Its state is that of its main thread."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    fields = read_if_there(path).rpartition(b")")[2].split()
    try:
        return Status(fields[STATE].decode(), (int(fields[USER_TIME]) + int(fields[SYSTEM_TIME])) / TICKS)
    except (IndexError, ValueError):
        return None


def count_pauses(pid: int) -> int:
    """How often the main thread has gone to sleep by itself: in a thread that waits this stands still, and in one that
    computes without a pause as well."""
    for line in _read_text(f"/proc/{pid}/task/{pid}/status").splitlines():
        if line.startswith("voluntary_ctxt_switches:"):
            return int(line.split()[1])
    return 0


def list_threads(pid: int) -> List[int]:
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:MAX_THREADS]
    except OSError:
        return []


def find_disk_wait(pid: int) -> Optional[int]:
    """A thread that waits for a disk."""
    for thread in list_threads(pid):
        status = read_status(pid, thread)
        if status is not None and status.state == "D":
            return thread
    return None


def describe_wait(pid: int, thread: int) -> Dict[str, str]:
    """What a thread waits for in the kernel, as far as this user may know: `function`, and the `path` of its file."""
    found = {}
    function = _read_text(f"/proc/{pid}/task/{thread}/wchan")
    if function not in ("", "0"):
        found["function"] = function
    call = _read_text(f"/proc/{pid}/task/{thread}/syscall").split()
    if len(call) > 1 and call[0].isdigit() and int(call[0]) in ON_A_FILE:
        try:
            found["path"] = os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}")
        except (OSError, ValueError):
            pass
    return found


def list_programs(pid: int) -> List[str]:
    """The command lines of the programs that a process has started and that still run."""
    children = _read_text(f"/proc/{pid}/task/{pid}/children").split()
    found = []
    for child in children[:MAX_PROGRAMS]:
        status = read_status(int(child))
        if status is not None and status.state != "Z":
            command = _read_text(f"/proc/{child}/cmdline").replace("\0", " ").strip()
            found.append(command[:MAX_COMMAND] or f"process {child}")
    return found


def _read_text(path: str) -> str:
    return read_if_there(path).decode("utf-8", "replace").strip()
