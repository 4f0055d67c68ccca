"""The thread that writes snapshots into memory, one after the other, into two generations in turn."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hostmesh.worker.errors import DisagreementError, WorkerError
from hostmesh.worker.saving.completion import Completion, GivenUpError
from hostmesh.worker.saving.generation import Generation
from hostmesh.worker.saving.pieces import Layout, to_bytes

# How long training waits for the snapshot before; the thread itself gives up sooner, and says for whom it has waited.
TIMEOUT = 660.0
# As `nice`: the steps of training go first where there are fewer cores than work.
NICENESS = 10


@dataclass
class Snapshot:
    """What is to be written: pieces on devices, and all else that belongs to them."""

    step: int
    layout: Layout
    pieces: list[Any]
    header: dict[str, Any]


class Writer:
    """`why_over` is why nothing more is written, once that is so; `is_own` says that the reason is on this process."""

    def __init__(self, generations: Sequence[Generation], completion: Completion) -> None:
        self._generations, self._completion = tuple(generations), completion
        self._newest: tuple[int, Generation] | None = None
        self._next: Snapshot | None = None
        self._idle, self._wake = threading.Event(), threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._error: WorkerError | None = None
        self.why_over: str | None = None
        self.is_own = False

    @property
    def newest_step(self) -> int | None:
        return None if self._newest is None else self._newest[0]

    def go_on_from(self, step: int, generation: Generation) -> None:
        """All processes have gone back to this one: the next snapshot spares it."""
        self._newest = step, generation
        self._completion.agree(step)

    def wait(self) -> None:
        """Until nothing is being written."""
        if not self._idle.wait(TIMEOUT):
            raise DisagreementError(f"waited {TIMEOUT:g} s for the last snapshot to be written")
        if self._error is not None:
            raise self._error

    def begin(self, snapshot: Snapshot) -> None:
        """Write it, after the one before has been waited for."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hostmesh-snapshots", daemon=True)
            self._thread.start()
        self._next = snapshot
        self._idle.clear()
        self._wake.set()

    def stop(self) -> None:
        """Wait for what is being written, and end the thread."""
        self.wait()
        if self._thread is not None:
            self._wake.set()
            self._thread.join(TIMEOUT)

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # it is a matter of courtesy
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            self._wake.wait()
            self._wake.clear()
            snapshot, self._next = self._next, None
            if snapshot is None:
                return
            self._try_to_write(snapshot)
            del snapshot
            self._idle.set()

    def _try_to_write(self, snapshot: Snapshot) -> None:
        step = snapshot.step
        try:
            self._write(snapshot)
        except GivenUpError as error:
            self.why_over = str(error)
        except WorkerError as error:
            self._error = error
        except OSError as error:
            self._give_up(step, error.strerror or str(error))
        except Exception as error:  # of jax: a device without room for the copies, or a service that is gone
            self._give_up(step, f"{type(error).__name__}: {error}".splitlines()[0])

    def _give_up(self, step: int, why: str) -> None:
        self.why_over, self.is_own = why, True
        with suppress(Exception):  # the others are gone, and so will be this process
            self._completion.give_up(step, why)

    def _write(self, snapshot: Snapshot) -> None:
        generation = self._generations[0]
        if self._newest is not None:
            self._completion.await_all(self._newest[0])
            generation = next(each for each in self._generations if each is not self._newest[1])
        layout, pieces = snapshot.layout, snapshot.pieces
        generation.begin(layout.end)
        for number, place in enumerate(layout.pieces):
            for ahead in pieces[number + 1 : number + 2]:
                _fetch(ahead)
            generation.write(place.at, to_bytes(pieces[number]))
            pieces[number] = None  # its memory is free for the next
        generation.seal(snapshot.header, layout.end)
        self._newest = snapshot.step, generation
        self._completion.tell(snapshot.step)


def _fetch(piece: Any) -> None:
    """Begin to bring it from its device, while the one before is written."""
    if hasattr(piece, "copy_to_host_async"):
        piece.copy_to_host_async()
