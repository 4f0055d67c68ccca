"""What speaks for and against processes having been killed for memory: looked at once a second, told at their ends."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any, Deque, Dict, Iterable, List, Optional, Tuple, TypeVar

from hostmesh.launcher.agent.files import read_if_there
from hostmesh.launcher.agent.memory.cgroup import Cgroups, Mount, Use, read_kills
from hostmesh.launcher.agent.memory.kernel_log import KernelLog, Killed

# Seconds that it may take a process to give its memory back, once it has been killed. What the kernel did before that
# was not about this one.
KILLED_LATELY = 30.0
# The same for what names a process by its pid.
NAMED_LATELY = 300.0
# "Just before": a process that is dying has given back some of its memory.
JUST_BEFORE = 5.0
# A process with more children than that is asked of these only.
MAX_CHILDREN = 64
PAGE = os.sysconf("SC_PAGE_SIZE")
HOST = ""

Counts = Deque[Tuple[float, int]]
Sample = TypeVar("Sample")


class Samples:
    """One process, or one below it, as it was seen: how much memory it had in the last seconds."""

    def __init__(self) -> None:
        self.sizes: Deque[Tuple[float, int]] = deque(maxlen=16)
        self.cgroup: Optional[Tuple[str, Mount]] = None
        self.below: Dict[int, float] = {}  # pids that descend from it, and when they were last seen


class MemoryWatch:
    """`begin` before a process starts, `look` once a second, `tell` when one has ended; `root` is / but in tests."""

    def __init__(self, root: str = "/", log: Optional[KernelLog] = None) -> None:
        self._root = root
        self._log = log or KernelLog()
        self._cgroups: Optional[Cgroups] = None
        self._own: Optional[Tuple[str, Mount]] = None  # the agent's, which its processes begin in
        self._kills: Dict[str, Counts] = {}  # by the cgroup's folder; HOST for all of the host
        self._taken: Dict[str, Deque[float]] = {}  # when a process ended of one of them
        self._named: Deque[Tuple[float, Killed]] = deque(maxlen=1000)
        self._looks: Dict[int, Samples] = {}
        self._host: Deque[Tuple[float, Tuple[int, int]]] = deque(maxlen=16)  # total, available
        self._uses: Dict[str, Deque[Tuple[float, Use]]] = {}

    def begin(self) -> float:
        """The time from which on `tell` is to count; it takes a third of a millisecond."""
        now = time.monotonic()
        if self._cgroups is None:
            self._cgroups = Cgroups(self._root)
            self._own = self._cgroups.find("self")
        self._count([self._own], now)
        return now

    def look(self, pids: Iterable[int]) -> None:
        now = time.monotonic()
        looks = [self._look_at(pid, now) for pid in pids]
        if looks:
            self._count([self._own, *(look.cgroup for look in looks)], now)

    def tell(self, pid: Optional[int], since: float = 0.0, was_killed: bool = True) -> Dict[str, Any]:
        """Of a process that has just ended; what is not known is None. A kill that one process has ended of is not
        told to the next."""
        if pid is None or self._cgroups is None:
            return {}
        now = time.monotonic()
        seen = self._looks.pop(pid, None) or Samples()
        cgroup = seen.cgroup or self._own
        (total, available), use = self._host_before(), self._use_before(cgroup)
        self._count([cgroup], now)
        told = {
            "rss": self._size_of(pid, seen),
            "total": total,
            "available": available,
            "limit": use.limit,
            "used": use.used,
            "cgroup_kills": None if cgroup is None else self._take(cgroup[0], since, was_killed),
            "host_kills": self._take(HOST, since, was_killed),
            "named": self._list_named(pid, seen, now) if self._log.can_tell else None,
        }
        return told if any(value is not None for value in told.values()) else {}

    # Looking.

    def _look_at(self, pid: int, now: float) -> Samples:
        assert self._cgroups is not None
        look = self._looks.setdefault(pid, Samples())
        cgroup = self._cgroups.find(str(pid))
        if self._note_size(look, pid, now) and cgroup is not None:
            look.cgroup = cgroup  # one that has given back its memory on its way out is in the topmost, at last
        for child in self._find_below(pid):
            look.below[child] = now
            self._note_size(self._looks.setdefault(child, Samples()), child, now)
        for child in [child for child, at in look.below.items() if now - at > NAMED_LATELY]:
            del look.below[child]
            self._looks.pop(child, None)
        return look

    def _note_size(self, look: Samples, pid: int, now: float) -> bool:
        """False if it has no memory any more."""
        words = read_if_there(os.path.join(self._root, f"proc/{pid}/statm")).split()
        if len(words) < 2 or words[1] == b"0":
            return False
        look.sizes.append((now, int(words[1]) * PAGE))
        return True

    def _find_below(self, pid: int) -> List[int]:
        """As far as main threads have started them: a shell's program, a data loader's processes."""
        found: List[int] = []
        edge = [pid]
        while edge and len(found) < MAX_CHILDREN:
            above = edge.pop()
            words = read_if_there(os.path.join(self._root, f"proc/{above}/task/{above}/children")).split()
            children = [int(word) for word in words]
            found += children
            edge += children
        return found[:MAX_CHILDREN]

    def _count(self, cgroups: Iterable[Optional[Tuple[str, Mount]]], now: float) -> None:
        """The counters as they are now, and what the log says."""
        assert self._cgroups is not None
        self._named.extend((now, killed) for killed in self._log.read_new())
        self._note_kills(HOST, self._read_host_kills(), now)
        self._note_host(now)
        for folder, mount in {cgroup for cgroup in cgroups if cgroup is not None}:
            self._note_kills(folder, read_kills(folder), now)
            self._uses.setdefault(folder, deque(maxlen=16)).append((now, self._cgroups.read_use(folder, mount)))

    def _note_kills(self, where: str, kills: Optional[int], now: float) -> None:
        """The last count that is older than the seconds that matter stays, to compare with."""
        if kills is None:
            return
        counts = self._kills.setdefault(where, deque())
        counts.append((now, kills))
        while len(counts) > 1 and counts[1][0] < now - KILLED_LATELY:
            counts.popleft()

    def _read_host_kills(self) -> Optional[int]:
        _, found, rest = read_if_there(os.path.join(self._root, "proc/vmstat")).partition(b"\noom_kill ")
        return int(rest.split()[0]) if found else None

    def _note_host(self, now: float) -> None:
        lines = read_if_there(os.path.join(self._root, "proc/meminfo")).splitlines()
        sizes = {words[0]: int(words[1]) * 1024 for words in map(bytes.split, lines) if len(words) == 3}
        if b"MemTotal:" in sizes and b"MemAvailable:" in sizes:
            self._host.append((now, (sizes[b"MemTotal:"], sizes[b"MemAvailable:"])))

    # Telling.

    def _take(self, where: str, since: float, was_killed: bool) -> Optional[int]:
        """How many were killed there lately, without those that were told before."""
        counts = self._kills.get(where)
        if not counts or (where != HOST and read_kills(where) is None):  # a cgroup may be gone with its last process
            return None
        at, before = max((count for count in counts if count[0] <= since), default=counts[0])
        taken = self._taken.setdefault(where, deque(maxlen=1000))
        kills = max(0, counts[-1][1] - before - sum(each > at for each in taken))
        if kills and was_killed:
            taken.append(counts[-1][0])
        return kills

    def _size_of(self, pid: int, seen: Samples) -> Optional[int]:
        """Of the largest process, of this one and those below it: a shell's program is what counts."""
        of_below = [self._looks.pop(child) for child in seen.below if child in self._looks]
        sizes = [size for look in (seen, *of_below) for size in just_before(look.sizes)]
        sizes += [killed.rss for _, killed in self._named if killed.pid == pid and killed.rss]
        return max(sizes, default=None)

    def _host_before(self) -> Tuple[Optional[int], Optional[int]]:
        return min(just_before(self._host), key=lambda each: each[1], default=(None, None))

    def _use_before(self, cgroup: Optional[Tuple[str, Mount]]) -> Use:
        uses = self._uses.get(cgroup[0], deque()) if cgroup is not None else deque()
        return max(just_before(uses), key=lambda use: use.used or 0, default=Use(None, None))

    def _list_named(self, pid: int, seen: Samples, now: float) -> List[Dict[str, Any]]:
        """Whom the kernel says that it killed: this process, one below it, or another."""
        found: Dict[int, Dict[str, Any]] = {}
        for at, killed in self._named:
            who = "itself" if killed.pid == pid else "below" if killed.pid in seen.below else "another"
            if now - at <= (NAMED_LATELY if who == "itself" else KILLED_LATELY):
                found[killed.pid] = {**killed._asdict(), "who": who}  # the last word has the size
        return list(found.values())


def just_before(samples: Deque[Tuple[float, Sample]]) -> List[Sample]:
    """The last ones; an agent that had no processor may have been late with them."""
    return [sample for at, sample in samples if at >= samples[-1][0] - JUST_BEFORE]
