"""Merges lines that several processes print within a moment; each process's own lines keep their order."""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hostmesh.launcher.cluster.host_names import join_names

# How long a line is held for the others to say it as well.
WINDOW = 0.25
# Nobody can read the lines of a faster process: they are not held, and cost no time.
MAX_PER_SECOND = 2000
MAX_HELD = 8 << 20  # bytes or so, of all processes together
BYTES_A_LINE = 300  # beside its characters
MAX_LABEL = 24
# The longest chain of processes in which each waits for the lines of the next; beyond it the order is not kept.
MAX_CHAIN = 50

# `I1117 05:13:30.104242 139720454048640 saving.py:35] text`: level, time, thread and place, as absl and C++ log them.
_LOGGED = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (?=\S+:\d+\])")
# Other times count only at the head of a line.
_TIME = re.compile(r"[\[(]?(?:[A-Z]+[: ] ?)?(?:\d{4}[-/]\d\d[-/]\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?")
# How long something took, how fast it was or when it is due; a program's own print is taken at its word.
_MEASURED = re.compile(
    r"(?<![\d.])\d+\.\d+(?= ?(?:[mu]?s|secs?|seconds|[KMGT]?i?B/s)\b)|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+"
)
_ADDRESS = re.compile(r"(?<= at 0x)[0-9a-f]+(?=>)")
_DIGITS = re.compile(r"\d+")


class Shown(NamedTuple):
    """Lines to show, and the processes that printed every one of them."""

    ids: tuple[int, ...]
    lines: list[str]


class _Held(NamedTuple):
    text: str
    key: str  # the same for lines that count as the same


@dataclass
class _Backlog:
    """The lines of one process that are held back, and how fast it prints."""

    held: deque[_Held] = field(default_factory=deque)
    added: int = 0  # lines that were ever held
    released: int = 0  # those of them that are not held any more
    second: float = 0.0  # when the current second began
    count: int = 0  # lines in it

    def is_too_fast(self, more: int, now: float) -> bool:
        if now - self.second >= 1:
            self.second, self.count = now, 0
        self.count += more
        return self.count > MAX_PER_SECOND


class Merger:
    """Takes lines process by process and gives them merged; no line is held longer than the window."""

    def __init__(self) -> None:
        self.ready: list[Shown] = []
        self.ready_lines = 0
        self._backlogs: dict[int, _Backlog] = {}
        self._holders: dict[str, dict[int, int]] = {}  # by key: the processes with such lines held, and how many
        self._ages: deque[tuple[float, int, int]] = deque()  # when a line came, its process and its number there
        self._held = 0

    @property
    def due(self) -> float | None:
        """When the oldest line that is held has waited long enough."""
        return self._ages[0][0] + WINDOW if self._ages else None

    def pass_on(self, process_id: int, lines: list[str]) -> None:
        """Lines that are not compared with those of other processes."""
        if not lines:
            return
        self._release_all_of(process_id)
        self._put((process_id,), lines)

    def add(self, process_id: int, lines: list[str], speaking: Collection[int], now: float) -> None:
        """`speaking` are the processes that may print more: a line that all of them have printed need not wait."""
        if not lines:
            return
        backlog = self._backlogs.setdefault(process_id, _Backlog())
        if backlog.is_too_fast(len(lines), now):
            self.pass_on(process_id, lines)
            return
        for line in lines:
            self._hold(process_id, backlog, line, now)
        self._release_what_all_said(process_id, speaking)
        if self._held > MAX_HELD:
            self.drain()

    def release_old(self, now: float) -> None:
        while self._ages and self._ages[0][0] + WINDOW <= now:
            self._release_oldest()

    def drain(self) -> None:
        """Releases all that is held."""
        while self._ages:
            self._release_oldest()

    def take(self) -> list[Shown]:
        taken, self.ready, self.ready_lines = self.ready, [], 0
        return taken

    def _hold(self, process_id: int, backlog: _Backlog, line: str, now: float) -> None:
        held = _Held(line, find_key(line, process_id))
        backlog.held.append(held)
        backlog.added += 1
        self._held += len(line) + BYTES_A_LINE
        holders = self._holders.setdefault(held.key, {})
        holders[process_id] = holders.get(process_id, 0) + 1
        self._ages.append((now, process_id, backlog.added))

    def _release_what_all_said(self, process_id: int, speaking: Collection[int]) -> None:
        held = self._backlogs[process_id].held
        while held and self._is_first_of_all(held[0].key, speaking):
            self._release(process_id, frozenset())
        while self._ages and self._backlogs[self._ages[0][1]].released >= self._ages[0][2]:
            self._ages.popleft()

    def _is_first_of_all(self, key: str, speaking: Collection[int]) -> bool:
        holders = self._holders[key]
        if len(holders) < len(speaking):
            return False
        return all(self._is_first(each, key) for each in speaking)

    def _is_first(self, process_id: int, key: str) -> bool:
        backlog = self._backlogs.get(process_id)
        return backlog is not None and bool(backlog.held) and backlog.held[0].key == key

    def _release_oldest(self) -> None:
        _, process_id, number = self._ages.popleft()
        while self._backlogs[process_id].released < number:
            self._release(process_id, frozenset())

    def _release_all_of(self, process_id: int) -> None:
        backlog = self._backlogs.get(process_id)
        while backlog is not None and backlog.held:
            self._release(process_id, frozenset())

    def _release(self, process_id: int, waiting: frozenset[int]) -> None:
        """Releases the first line held of a process, merged with the same line of other processes.

        What those printed before it goes first, unless that in turn waits for a line of a process in `waiting`.
        """
        key = self._backlogs[process_id].held[0].key
        waiting |= {process_id}
        for other in sorted(self._holders[key].keys() - waiting) if len(waiting) <= MAX_CHAIN else ():
            while key in self._holders and other in self._holders[key] and not self._is_first(other, key):
                self._release(other, waiting)
        # Releasing the others' earlier lines may have released this line too.
        ids = tuple(sorted(each for each in self._holders.get(key, ()) if self._is_first(each, key)))
        texts = [self._pop(each) for each in ids]
        if ids:
            self._put(ids, [join_lines(texts, ids)] if len(ids) > 1 else texts)

    def _pop(self, process_id: int) -> str:
        backlog = self._backlogs[process_id]
        text, key = backlog.held.popleft()
        backlog.released += 1
        self._held -= len(text) + BYTES_A_LINE
        holders = self._holders[key]
        holders[process_id] -= 1
        if not holders[process_id]:
            del holders[process_id]
        if not holders:
            del self._holders[key]
        return text

    def _put(self, ids: tuple[int, ...], lines: list[str]) -> None:
        self.ready_lines += len(lines)
        if self.ready and self.ready[-1].ids == ids:
            self.ready[-1].lines.extend(lines)
        else:
            self.ready.append(Shown(ids, list(lines)))


def find_key(line: str, process_id: int) -> str:
    """The line without what differs between processes and means nothing: the time at its head, addresses of objects,
    the process's own number, and what a logger's line says was measured."""
    if logged := _LOGGED.match(line):
        line = logged[1] + _MEASURED.sub("\0", line[logged.end() :])
    elif time := _TIME.match(line):
        line = _DIGITS.sub("\0", time[0]) + line[time.end() :]
    if " at 0x" in line:
        line = _ADDRESS.sub("\0", line)
    return _own_number(process_id).sub("\\1\0", line) if "process" in line else line


def join_lines(lines: Sequence[str], ids: tuple[int, ...]) -> str:
    """The line of the first process, with the numbers of all where it has its own (`process 0-3 of 4`), and `~0.71 s`
    where the others measured something else."""
    line = lines[0]
    if logged := _LOGGED.match(line):
        head, said = line[: logged.end()], line[logged.end() :]
        differ = len({tuple(_MEASURED.findall(each)) for each in lines}) > 1
        line = head + _MEASURED.sub(r"~\g<0>", said) if differ else line
    return _own_number(ids[0]).sub(rf"\g<1>{name_ids(ids)}", line) if "process" in line else line


@functools.cache
def _own_number(process_id: int) -> re.Pattern[str]:
    return re.compile(rf"\b(process(?:_id|_index)?[ =:]){process_id}\b(?!\.\d)")


@functools.lru_cache(maxsize=1024)
def name_ids(ids: tuple[int, ...]) -> str:
    """`0-3`, `0,2`, and how many where the list would be too long."""
    numbers = [str(each) for each in ids]
    if len(numbers) == 1:
        return numbers[0]
    label = join_names(numbers)[1:-1]
    return label if len(label) <= MAX_LABEL else f"{len(numbers)} processes"
