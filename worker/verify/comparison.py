"""All bytes behind a source compared between processes, by a thread beside training that gives way."""

from __future__ import annotations

import atexit
import json
import threading
import time
import zlib
from collections import defaultdict
from contextlib import suppress
from typing import Any

import jax

from hostmesh.worker.coordination import arrange, exchange, name_processes
from hostmesh.worker.errors import DisagreementError, list_some
from hostmesh.worker.process.machine import host_name
from hostmesh.worker.verify.content import Content

# Of the time, and of a second at least so much for each megabyte: 64 MB/s and a twentieth of a core at most. The
# thread's priority stays: one of low priority that is not scheduled while it holds Python's lock would stop all others.
SHARE = 0.05
MIN_PAUSE, MAX_PAUSE = 1 / 64, 1.0
LISTEN_EVERY, LISTEN_WHEN_HURRIED = 1.0, 0.05
# How long the end of the data waits for what is still to be compared.
TIMEOUT_AT_END = 10.0
MAX_NAMED = 64


class Comparison:
    """Made and begun by all processes together; `check` raises on each once it is known that their data differ."""

    def __init__(self, name: str, content: Content | None) -> None:
        """`at_once` must be the same on all processes: it has the marks of what is quick to read."""
        self._name, self._content = name, content if jax.process_count() > 1 else None
        self._reading: _Reading | None = None
        self.at_once: dict[str, str] = {}
        if self._content is not None and self._content.is_quick:
            self.at_once = {f"all of {field} (verify=True)": mark for field, mark in self._content.marks()}
        elif self._content is not None:
            self.at_once = {"compared": "while training"}

    def begin(self) -> None:
        content, self._content = self._content, None
        if content is None or content.is_quick:
            return
        places = exchange("look where the data are", content.place)
        # Of processes that read the very same files one is enough.
        readers = [k for k, place in enumerate(places) if place is None or k == places.index(place)]
        if len(readers) == 1:
            return
        # So is one comparison of the same files, for however many loaders. All processes begin them in the same order.
        self._reading = _begun.get(tuple(places)) or _Reading(self._name, content, places, readers)
        if None not in places:
            _begun[tuple(places)] = self._reading

    def check(self) -> None:
        if self._reading is not None and self._reading.problem is not None:
            raise DisagreementError(self._reading.problem)

    def finish(self) -> None:
        """At the end of the data: in a hurry, but not for ever."""
        if self._reading is not None:
            self._reading.hurry(TIMEOUT_AT_END)
            self.check()


class _Reading:
    """A thread that marks all bytes, and then listens for what the others have found."""

    def __init__(self, name: str, content: Content, places: list[str | None], readers: list[int]) -> None:
        # Under one name: that of the source may be a path, which hosts have their own of.
        meeting = arrange("compare the data")
        assert meeting is not None
        self.problem: str | None = None
        self._name, self._meeting, self._readers = name, meeting, readers
        self._done, self._hurry, self._stop = threading.Event(), threading.Event(), threading.Event()
        alike = [k for k, place in enumerate(places) if place is not None and place == content.place]
        said = {"host": host_name(), "processes": alike or [meeting.process_id]}
        self._thread = threading.Thread(target=self._run, args=(content, said), name="comparison of data", daemon=True)
        self._thread.start()
        # Before jax leaves the others: nothing may be asked of them after that.
        atexit.register(self._end)

    def hurry(self, timeout: float) -> None:
        self._hurry.set()
        self._done.wait(timeout)
        self._hurry.clear()

    def _run(self, content: Content, said: dict[str, Any]) -> None:
        # What ends this early: the end of this program, or of another process; a file that cannot be read any more the
        # loader will meet by itself.
        with suppress(_Stopped, OSError, RuntimeError):
            if self._meeting.process_id in self._readers:
                self._meeting.say(json.dumps({**said, "marks": self._mark(content)}))
            self.problem = self._listen()
        self._done.set()

    def _mark(self, content: Content) -> list[list[str]]:
        self._last = time.perf_counter()
        return _group([list(mark) for mark in content.marks(self._pause)])

    def _pause(self) -> None:
        took = time.perf_counter() - self._last
        pause = min(max(MIN_PAUSE, took / SHARE), MAX_PAUSE)
        if self._stop.wait(0 if self._hurry.is_set() else pause):
            raise _Stopped
        self._last = time.perf_counter()

    def _listen(self) -> str | None:
        """Process 0 decides, so that all hear the same."""
        while True:
            if self._meeting.process_id == 0:
                said = self._meeting.said()
                if len(said) == len(self._readers):
                    self._meeting.settle({"problem": _differences(self._name, [said[k] for k in self._readers])})
            if (outcome := self._meeting.look()) is not None:
                problem: str | None = outcome["problem"]
                return problem
            if self._stop.wait(LISTEN_WHEN_HURRIED if self._hurry.is_set() else LISTEN_EVERY):
                raise _Stopped

    def _end(self) -> None:
        self._stop.set()
        self._thread.join(MAX_PAUSE)


_begun: dict[tuple[str | None, ...], _Reading] = {}


class _Stopped(Exception):
    pass


def _group(marks: list[list[str]]) -> list[list[str]]:
    """Some at a time under one name where there are many."""
    size = -(-len(marks) // MAX_NAMED)
    if size == 1:
        return marks
    groups = [marks[start : start + size] for start in range(0, len(marks), size)]
    return [[f"{group[0][0]} to {group[-1][0]}", _mark_of([mark for _, mark in group])] for group in groups]


def _mark_of(marks: list[str]) -> str:
    return f"{zlib.crc32(' '.join(marks).encode()):08x}"


def _differences(name: str, said: list[dict[str, Any]]) -> str | None:
    if len({len(one["marks"]) for one in said}) > 1:
        found = [f"{_who(one)} {len(one['marks'])} of them" for one in said]
        return _tell(name, f"what it is made of: {', '.join(found)}")
    found = []
    for column in zip(*(one["marks"] for one in said), strict=True):
        holders: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for one, (_, mark) in zip(said, column, strict=True):
            holders[mark].append(one)
        if len(holders) > 1:
            by_majority = sorted(holders.items(), key=lambda held: -len(held[1]))
            text = "; ".join(f"{' and '.join(map(_who, who))}: {mark}" for mark, who in by_majority)
            found.append(f"{column[0][0]}: {text}")
    return _tell(name, list_some(found)) if found else None


def _who(one: dict[str, Any]) -> str:
    return f"{name_processes(one['processes'])} on {one['host']}"


def _tell(name: str, differences: str) -> str:
    return (
        f"{name} is not the same everywhere, so that rows that differ were trained on: found in {differences}; "
        "wanted the same bytes on all hosts: copy the data anew; if only the bytes differ, verify=False (--no-verify)"
    )
