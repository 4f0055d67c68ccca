"""Sends the files of a tree to the hosts: each file as it was listed, or to none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.agent.sync.manifest import Entry, show
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.sync.tree import FileChanged, Tree

EXECUTABLE = 0o111


@dataclass(frozen=True)
class LeftOut:
    """A file that no host gets."""

    path: str
    why: str


@dataclass(frozen=True)
class Unsendable:
    """A file changed that the run needs, or that some hosts have already; `problem` is a complete text."""

    problem: str


class Sending:
    """Shared by the threads that write to the hosts; `needed` are paths that a run cannot do without."""

    def __init__(self, tree: Tree, needed: Collection[str] = ()) -> None:
        self._tree, self._needed = tree, frozenset(needed)
        self._lock = threading.Lock()
        self._nobody_has = {number for number, entry in enumerate(tree.entries) if entry.kind == "file"}
        self._left_out: dict[int, str] = {}

    def note_wanted(self, numbers: Collection[int]) -> Unsendable | None:
        """Notes which files a host asks for: the others it has already."""
        wanted = set(numbers)
        with self._lock:
            self._nobody_has &= wanted
            differing = sorted(self._left_out.keys() - wanted)
            return self._explain(differing[0], self._left_out[differing[0]]) if differing else None

    def pieces(
        self, numbers: Collection[int], report: Callable[[Any], None]
    ) -> Iterator[wire.FileChunk | wire.SkipFile]:
        for number in numbers:
            try:
                for piece in self._tree.pieces(number):
                    if piece.last:
                        self._note_sent(number)
                    yield piece
            except FileChanged as change:
                if (event := self._leave_out(number, str(change))) is not None:
                    report(event)
                if isinstance(event, Unsendable):
                    return
                yield wire.SkipFile(number)

    def _note_sent(self, number: int) -> None:
        """Raises FileChanged for a file that was left out on another host."""
        with self._lock:
            if number in self._left_out:
                raise FileChanged(self._left_out[number])
            self._nobody_has.discard(number)

    def _leave_out(self, number: int, why: str) -> LeftOut | Unsendable | None:
        with self._lock:
            if number in self._left_out:
                return None
            entry = self._tree.entries[number]
            if number not in self._nobody_has or self._is_needed(entry):
                return self._explain(number, why)
            self._left_out[number] = why
            return LeftOut(show(entry.path), why)

    def _is_needed(self, entry: Entry) -> bool:
        return entry.path.endswith(".py") or bool(entry.mode & EXECUTABLE) or entry.path in self._needed

    def _explain(self, number: int, why: str) -> Unsendable:
        file = show(str(self._tree.root / self._tree.entries[number].path))
        return Unsendable(f"{file} on this machine cannot be sent: {why}; start again, or exclude it from sync")
