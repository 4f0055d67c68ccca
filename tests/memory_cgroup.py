"""A memory cgroup of a test's own, in which it can start programs that are to be killed for memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

MOUNTED = Path("/sys/fs/cgroup")


class MemoryCgroup:
    """`limit` in bytes; `below` is the beginning of a command that starts the rest of it in here."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    @property
    def below(self) -> Sequence[str]:
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.folder)]

    def make(self) -> None:
        self.folder.mkdir()
        name = "memory.max" if (self.folder / "memory.max").exists() else "memory.limit_in_bytes"
        (self.folder / name).write_text(str(self.limit))

    def remove(self) -> None:
        """Its last processes may still be on their way out."""
        deadline = time.monotonic() + 10
        while self.folder.exists() and time.monotonic() < deadline:
            try:
                self.folder.rmdir()
            except OSError:
                time.sleep(0.05)


def find_parent() -> Path:
    """Where cgroups with a limit of memory can be made, in version 1 or 2; skips the test where that is nowhere."""
    if (MOUNTED / "memory" / "memory.limit_in_bytes").exists():
        parent = MOUNTED / "memory"
    elif "memory" in (read(MOUNTED / "cgroup.subtree_control")).split():
        parent = MOUNTED
    else:
        pytest.skip("no memory cgroup can be made here: the controller is not there")
    if not os.access(parent, os.W_OK):
        pytest.skip(f"no memory cgroup can be made here: {parent} cannot be written")
    return parent


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def lend(limit: int) -> Iterator[MemoryCgroup]:
    cgroup = MemoryCgroup(find_parent() / f"hostmesh-test-{os.getpid()}-{time.monotonic_ns()}", limit)
    try:
        cgroup.make()
    except OSError as error:
        cgroup.remove()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield cgroup
    cgroup.remove()
