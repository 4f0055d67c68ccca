"""Reads all bytes behind a source slowly, in a thread beside training."""

from __future__ import annotations

import atexit
import threading
import time
from contextlib import suppress

from hostmesh.worker.errors import StoreError
from hostmesh.worker.verify.content import Content, Sections

# The share of time in which the thread works, and its pauses after each megabyte: it reads at most 64 MB/s and takes at
# most a twentieth of a core. Its priority is not lowered: a thread of low priority that is not scheduled while it holds
# the interpreter's lock would stop all others.
SHARE = 0.05
MIN_PAUSE, MAX_PAUSE = 1 / 64, 1.0


class Stopped(Exception):
    pass


class SlowReading:
    """`found` is there once everything was read, unless a file changed meanwhile."""

    def __init__(self, content: Content) -> None:
        self._content: Content | None = content
        self.found: Sections | None = None
        self.stamps = [one.stamp() for one in content.stored]
        self.hurried, self.stopped, self.ended = threading.Event(), threading.Event(), threading.Event()

    def begin(self) -> None:
        """In a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="reading all of the data", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def read(self) -> Sections:
        """In the caller's thread; raises Stopped when `stopped` is set."""
        content, self._content = self._content, None  # arrays are not kept for longer than they are read
        assert content is not None, "it is read once"
        self._last = time.perf_counter()
        found = content.read_all(self._pause)
        if [one.stamp() for one in content.stored] == self.stamps:
            self.found = found
        self.ended.set()
        return found

    def _run(self) -> None:
        with suppress(Stopped, OSError, StoreError):  # a loader that cannot read a file either will say so
            self.read()
        self.ended.set()

    def _pause(self) -> None:
        took = time.perf_counter() - self._last
        pause = min(max(MIN_PAUSE, took / SHARE), MAX_PAUSE)
        if self.stopped.wait(0 if self.hurried.is_set() else pause):
            raise Stopped
        self._last = time.perf_counter()

    def _end(self) -> None:
        self.stopped.set()
        self._thread.join(MAX_PAUSE)
