"""Whether the memory of a host has room for snapshots of all its processes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hostmesh.worker.process.machine import host_name, machine_id
from hostmesh.worker.process.words import count

# What is left to training and everybody else; snapshots take it for as long as the run lasts.
SPARE = 0.1


def measure_room(folder: Path, wanted: int) -> dict[str, Any]:
    """What one process wants to take beyond what it has, and what there is."""
    status = os.statvfs(folder)
    return {
        "host": host_name(),
        "machine": f"{machine_id()} {folder.parent.stat().st_dev}",
        "wanted": wanted,
        "in_folder": status.f_bavail * status.f_frsize,
        "in_memory": min(_available(), _below_limit()) * (1 - SPARE),
    }


def find_shortage(rooms: Sequence[Mapping[str, Any]]) -> str | None:
    """What is missing on the first host that has too little, by what all processes have measured."""
    by_machine: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for room in rooms:
        by_machine[room["machine"]].append(room)
    for there in by_machine.values():
        wanted = sum(room["wanted"] for room in there)
        in_folder, in_memory = (min(room[which] for room in there) for which in ("in_folder", "in_memory"))
        if wanted > min(in_folder, in_memory):
            what = "its /dev/shm has" if in_folder <= in_memory else "of its memory there are"
            return (
                f"{there[0]['host']} needs {show_size(wanted)} for two copies of the state of "
                f"{count(len(there), 'process')}, and {what} {show_size(min(in_folder, in_memory))} free"
            )
    return None


def show_size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _available() -> float:
    """Of the machine's memory."""
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return float("inf")


def _below_limit() -> float:
    """What is left below the limit of a container or a job, where there is one: those of version 2, at every level."""
    own = _read(Path("/proc/self/cgroup")).partition("0::/")[2].partition("\n")[0]
    top = Path("/sys/fs/cgroup")
    left = float("inf")
    for folder in [top / own, *(top / own).parents]:
        limit, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
        if limit.isdigit() and used.isdigit():
            # Files that were read lately count as used, but make room.
            files = dict(line.split() for line in _read(folder / "memory.stat").splitlines()).get("inactive_file", "0")
            left = min(left, int(limit) - int(used) + int(files))
    return left


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
