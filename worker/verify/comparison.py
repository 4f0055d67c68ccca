"""Compares all bytes behind a source between processes, in a slow thread beside training."""

from __future__ import annotations

import atexit
import json
import threading
from collections import defaultdict
from contextlib import suppress
from typing import Any

import jax

from hostmesh.worker.errors import DisagreementError, StoreError
from hostmesh.worker.process.coordination import exchange, name_processes, open_rendezvous
from hostmesh.worker.process.machine import host_name
from hostmesh.worker.process.words import list_some
from hostmesh.worker.verify.content import Content, Sections, combine
from hostmesh.worker.verify.slow_reading import MAX_PAUSE, SlowReading, Stopped

POLL_EVERY, POLL_WHEN_HURRIED = 1.0, 0.05
# How long the end of the data waits for what is still to be compared.
TIMEOUT_AT_END = 10.0
MAX_NAMED = 64


class Comparison:
    """All processes make and begin it together. `check` raises on each of them once their data are known to differ."""

    def __init__(self, name: str, content: Content | None, sections: Sections | None) -> None:
        """`sections` are of all bytes, of what is quick to read; `at_once` has them for the caller, who compares them
        between processes."""
        self._name, self._content = name, content if jax.process_count() > 1 else None
        self._reading: _Reading | None = None
        self.at_once: dict[str, str] = {}
        if self._content is not None and sections is not None:
            named = self._content.name_fingerprints(sections)
            self.at_once = {f"all of {field} (verify=True)": crc for field, crc in named}
        elif self._content is not None:
            self.at_once = {"compared": "while training"}

    def begin(self) -> None:
        content, self._content = self._content, None
        if content is None or content.is_quick:
            return
        locations = exchange("look where the data are", content.location)
        # Of processes that read the very same files only the first one reads.
        readers = [k for k, where in enumerate(locations) if where is None or k == locations.index(where)]
        if len(readers) == 1:
            return
        # Loaders of the same files share one comparison. All processes begin comparisons in the same order.
        self._reading = _begun.get(tuple(locations)) or _Reading(self._name, content, locations, readers)
        if None not in locations:
            _begun[tuple(locations)] = self._reading

    @property
    def reading(self) -> SlowReading | None:
        """What reads all bytes for the comparison, where this process does."""
        return None if self._reading is None else self._reading.slow

    def check(self) -> None:
        if self._reading is not None and self._reading.problem is not None:
            raise DisagreementError(self._reading.problem)

    def finish(self) -> None:
        """At the end of the data: wait for the rest of the comparison, for some seconds at most."""
        if self._reading is not None:
            self._reading.hurry(TIMEOUT_AT_END)
            self.check()


class _Reading:
    """A thread that computes the fingerprints of all bytes, and then waits for the result of the comparison."""

    def __init__(self, name: str, content: Content, locations: list[str | None], readers: list[int]) -> None:
        # Not under the source's name, which may be a path that differs from host to host.
        rendezvous = open_rendezvous("compare the data")
        assert rendezvous is not None
        self.problem: str | None = None
        self._name, self._rendezvous, self._readers = name, rendezvous, readers
        self.slow = SlowReading(content)
        self._done, self._hurry, self._stop = threading.Event(), self.slow.hurried, self.slow.stopped
        alike = [k for k, where in enumerate(locations) if where is not None and where == content.location]
        about = {"host": host_name(), "processes": alike or [rendezvous.process_id]}
        self._thread = threading.Thread(target=self._run, args=(content, about), name="comparison of data", daemon=True)
        self._thread.start()
        # The handler runs before jax disconnects, after which no other process can be reached.
        atexit.register(self._end)

    def hurry(self, timeout: float) -> None:
        self._hurry.set()
        self._done.wait(timeout)
        self._hurry.clear()

    def _run(self, content: Content, about: dict[str, Any]) -> None:
        # The thread ends early when this program or another process ends, and when a file cannot be read any more: the
        # loader will fail at that by itself.
        with suppress(Stopped, OSError, StoreError, RuntimeError):
            if self._rendezvous.process_id in self._readers:
                named = content.name_fingerprints(self.slow.read())
                found = {**about, "fingerprints": _group([list(each) for each in named])}
                self._rendezvous.publish(json.dumps(found))
            self.problem = self._wait_for_result()
        self._done.set()

    def _wait_for_result(self) -> str | None:
        """Process 0 compares, so that all processes get the same result."""
        while True:
            if self._rendezvous.process_id == 0:
                values = self._rendezvous.values()
                if len(values) == len(self._readers):
                    problem = _differences(self._name, [values[k] for k in self._readers])
                    self._rendezvous.publish_outcome({"problem": problem})
            if (outcome := self._rendezvous.poll_outcome()) is not None:
                result: str | None = outcome["problem"]
                return result
            if self._stop.wait(POLL_WHEN_HURRIED if self._hurry.is_set() else POLL_EVERY):
                raise Stopped

    def _end(self) -> None:
        self._stop.set()
        self._thread.join(MAX_PAUSE)


_begun: dict[tuple[str | None, ...], _Reading] = {}


def _group(fingerprints: list[list[str]]) -> list[list[str]]:
    """Where there are many, one name and fingerprint for several neighbours."""
    size = -(-len(fingerprints) // MAX_NAMED)
    if size == 1:
        return fingerprints
    groups = [fingerprints[start : start + size] for start in range(0, len(fingerprints), size)]
    return [[f"{group[0][0]} to {group[-1][0]}", combine([crc for _, crc in group])] for group in groups]


def _differences(name: str, readers: list[dict[str, Any]]) -> str | None:
    if len({len(one["fingerprints"]) for one in readers}) > 1:
        found = [f"{_who(one)} {len(one['fingerprints'])} of them" for one in readers]
        return _tell(name, f"what it is made of: {', '.join(found)}")
    found = []
    for column in zip(*(one["fingerprints"] for one in readers), strict=True):
        holders: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for one, (_, crc) in zip(readers, column, strict=True):
            holders[crc].append(one)
        if len(holders) > 1:
            by_majority = sorted(holders.items(), key=lambda held: -len(held[1]))
            text = "; ".join(f"{' and '.join(map(_who, who))}: {crc}" for crc, who in by_majority)
            found.append(f"{column[0][0]}: {text}")
    return _tell(name, list_some(found)) if found else None


def _who(one: dict[str, Any]) -> str:
    return f"{name_processes(one['processes'])} on {one['host']}"


def _tell(name: str, differences: str) -> str:
    return (
        f"{name} is not the same everywhere, so that rows that differ were trained on: found in {differences}; "
        "wanted the same bytes on all hosts: copy the data anew; if only the bytes differ, verify=False (--no-verify)"
    )
