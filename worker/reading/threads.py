"""Threads that fill pieces of batches, in the order in which these are given to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeAlias

from hostmesh.worker.reading.pieces import Piece
from hostmesh.worker.reading.row_reader import Chunk, Spent
from hostmesh.worker.recording.recorder import RECORDER

# Reads the rows of a piece and writes them into its batch.
Fill: TypeAlias = Callable[[Piece], Spent]


class FillingThreads:
    """One thread for each of the given functions, from the first piece on.

    They are daemons: a read that never ends does not hold up the end of a program.
    """

    def __init__(self, fills: Sequence[Fill]) -> None:
        self.count = len(fills)
        self._fills = fills
        self._is_begun = False
        self._pieces: SimpleQueue[Piece | None] = SimpleQueue()
        self._unfinished = Unfinished()

    def give(self, piece: Piece) -> None:
        self._pieces.put(piece)
        if not self._is_begun:
            self._is_begun = True
            for number, fill in enumerate(self._fills):
                name, args = f"hostmesh worker {number}", (self._pieces, self._unfinished, fill)
                threading.Thread(target=run, args=args, name=name, daemon=True).start()

    def close(self) -> None:
        """The threads end once they have finished what they are at."""
        while not self._pieces.empty():
            with suppress(Empty):
                self._pieces.get_nowait()
        for _ in range(self.count):
            self._pieces.put(None)


def run(pieces: SimpleQueue[Piece | None], unfinished: Unfinished, fill: Fill) -> None:
    while (piece := pieces.get()) is not None:
        unfinished.begin(piece.chunk)
        try:
            spent = fill(piece)
        except BaseException as error:
            piece.step.note_failed(error)
        else:
            piece.step.note_done(spent)
        unfinished.end(piece.chunk)
        del piece  # it holds the memory of its batch


class Unfinished:
    """The chunks that are being read. The record of this process names the oldest: if any is stuck, that one is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[int, Chunk] = {}
        self._told: Chunk | None = None

    def begin(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks[id(chunk)] = chunk
            self._tell()

    def end(self, chunk: Chunk) -> None:
        with self._lock:
            del self._chunks[id(chunk)]
            self._tell()

    def _tell(self) -> None:
        oldest = next(iter(self._chunks.values()), None)
        if oldest is not None and oldest is not self._told:
            RECORDER.note_reading(oldest.step, int(oldest.ids[0]))
            RECORDER.note_place("")  # it is known only of a chunk that takes long
        self._told = oldest
