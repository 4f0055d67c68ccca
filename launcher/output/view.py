"""What the screen shows of the processes, from the words of the command line."""

from __future__ import annotations

import re
from typing import NamedTuple

from hostmesh.launcher.errors import UsageError

_PART = re.compile(r"(\d+)(?:-(\d+))?")


class View(NamedTuple):
    """`wanted` are the processes to show, None all of them; with `merge` a line that several print is shown once."""

    wanted: frozenset[int] | None = None
    merge: bool = True


def choose_view(show: str | None, quiet: bool, num_processes: int) -> View:
    if quiet and show is not None:
        raise UsageError("found both --quiet and --show, wanted one of them")
    if quiet:
        return View(frozenset())
    if show is None:
        return View()
    return View(merge=False) if show == "all" else View(_read_ids(show, num_processes))


def _read_ids(show: str, num_processes: int) -> frozenset[int]:
    """`0`, `0,2`, `0-3,8`."""
    ids: set[int] = set()
    for part in show.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--show: found {show!r}, wanted process ids such as 0 or 0,2 or 0-3, or the word all")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < num_processes:
            there = "0 alone" if num_processes == 1 else f"0 to {num_processes - 1}"
            raise UsageError(f"--show: found {part.strip()}, wanted processes of this run, which are {there}")
        ids |= set(range(first, last + 1))
    return frozenset(ids)
