"""How many cores' time the system grants this process, where a container or a job of a scheduler bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

OWN_GROUPS, MOUNT = Path("/proc/self/cgroup"), "/sys/fs/cgroup"
# The second version of control groups has the first file, `200000 100000` or `max 100000`; the first one the others.
MAX, QUOTA, PERIOD = "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"


def find_quota(groups: Path = OWN_GROUPS, mount: str = MOUNT) -> float | None:
    """In cores: the smallest of this process's group and all groups above it. None where nothing bounds it."""
    folders = list_folders(read(groups), mount)
    found = [parse_quota({name: read(Path(folder, name)) for name in (MAX, QUOTA, PERIOD)}) for folder in folders]
    return min((quota for quota in found if quota is not None), default=None)


def list_folders(groups: str, mount: str) -> list[str]:
    """From the text of /proc/self/cgroup, lines as `0::/a/b` or `4:cpu,cpuacct:/a/b`.

    A container may see its own group as the mount's root, and be told another path: so each folder above counts.
    """
    folders: dict[str, None] = {}
    for line in groups.splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        roots = [f"{mount}/{controllers}", f"{mount}/cpu"] if controllers else [mount, f"{mount}/unified"]
        own = PurePosixPath(path.lstrip("/"))
        for root in roots:
            folders |= dict.fromkeys(str(PurePosixPath(root, part)) for part in (own, *own.parents))
    return list(folders)


def parse_quota(files: Mapping[str, str]) -> float | None:
    """In cores, from the text of those files of one group that there are; None where they set no limit."""
    with suppress(ValueError, ZeroDivisionError):  # `max`, or no such file
        quota, period = files.get(MAX, "").split() or (files.get(QUOTA, ""), files.get(PERIOD, ""))
        cores = int(quota) / int(period)
        return cores if cores > 0 else None
    return None


def read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
