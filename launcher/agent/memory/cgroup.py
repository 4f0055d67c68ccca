"""The memory cgroup of a process, in either version: who was killed there for memory, its limit, its use."""

# Without `from __future__ import annotations`, as in launcher/protocol/wire.py: it would make NamedTuple slow.
import os
from typing import List, NamedTuple, Optional, Tuple

from hostmesh.launcher.agent.files import read_if_there

# Version 1 says "no limit" with a number just below 2**63.
NO_LIMIT = 1 << 60
KILLS = ("memory.events.local", "memory.events", "memory.oom_control")
LIMITS = ("memory.max", "memory.limit_in_bytes")
USES = ("memory.current", "memory.usage_in_bytes")


class Mount(NamedTuple):
    """Where the folders of cgroups are; `above` is the cgroup that `folder` itself stands for."""

    version: int
    above: str
    folder: str


class Use(NamedTuple):
    """Of the cgroup with the lowest limit, among a process's own and those above it that can be seen."""

    limit: Optional[int]
    used: Optional[int]


class Cgroups:
    """`root` is another folder than / in tests."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        text = read_if_there(os.path.join(root, "proc/self/mountinfo")).decode(errors="replace")
        self._mounts = [mount for mount in map(_parse_mount, text.splitlines()) if mount is not None]

    def find(self, pid: str) -> Optional[Tuple[str, Mount]]:
        """The folder of the cgroup that a process is in; None where that cannot be seen."""
        text = read_if_there(os.path.join(self._root, f"proc/{pid}/cgroup")).decode(errors="replace")
        paths = {}
        for line in text.splitlines():  # "4:memory:/docker/1f…" in version 1, "0::/user.slice" in version 2
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "memory" in controllers.split(","):
                paths[1] = path
            elif number == "0" and not controllers:
                paths[2] = path
        for mount in self._mounts:  # where both versions are mounted, memory is in version 1 if that has it
            if mount.version in paths and (mount.version == 1 or 1 not in paths):
                folder = os.path.join(mount.folder, _below(paths[mount.version], mount.above))
                return os.path.join(self._root, folder.lstrip("/")), mount
        return None

    def read_use(self, folder: str, mount: Mount) -> Use:
        """A limit of a container, a pod or a job may be set in a cgroup above the process's own."""
        top = os.path.join(self._root, mount.folder.lstrip("/"))
        found = []
        while True:
            limit, used = _read_number(folder, LIMITS), _read_number(folder, USES)
            if limit is not None and limit < NO_LIMIT:
                found.append(Use(limit, used))
            if folder == top or not folder.startswith(top):
                return min(found, default=Use(None, None), key=lambda use: use.limit or 0)
            folder = os.path.dirname(folder)


def read_kills(folder: str) -> Optional[int]:
    """How many processes of this very cgroup the kernel has killed for memory, whoever's limit was reached."""
    for name in KILLS:
        for line in read_if_there(os.path.join(folder, name)).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == b"oom_kill":
                return int(words[1])
    return None


def _parse_mount(line: str) -> Optional[Mount]:
    """`35 31 0:32 /docker/1f… /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory`"""
    before, _, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if len(fields) < 5 or len(kinds) < 3:
        return None
    if kinds[0] == "cgroup" and "memory" in kinds[2].split(","):
        return Mount(1, fields[3], fields[4])
    return Mount(2, fields[3], fields[4]) if kinds[0] == "cgroup2" else None


def _below(path: str, above: str) -> str:
    """A cgroup's path below the mounted one; that itself where the path does not lead through it."""
    parts: List[str] = [part for part in path.split("/") if part]
    upper = [part for part in above.split("/") if part]
    if parts[: len(upper)] != upper or ".." in parts:
        return ""
    return "/".join(parts[len(upper) :])


def _read_number(folder: str, names: Tuple[str, ...]) -> Optional[int]:
    for name in names:
        text = read_if_there(os.path.join(folder, name)).strip()
        if text.isdigit():
            return int(text)
    return None
