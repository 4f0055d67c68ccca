"""Writes snapshots into memory, one after the other, into two generations in turn: a thread, as far as it can."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from hostmesh.worker.errors import DisagreementError, WorkerError
from hostmesh.worker.saving.completion import Completion, GivenUpError
from hostmesh.worker.saving.generation import Generation
from hostmesh.worker.saving.pieces import Layout, is_on_host, to_bytes

# How long training waits for the snapshot before; the thread itself gives up sooner, and says for whom it has waited.
TIMEOUT = 660.0
# As `nice`: the steps of training go first where there are fewer cores than work.
NICENESS = 10


@dataclass
class Snapshot:
    """What is to be written: pieces, and all else that belongs to them."""

    step: int
    layout: Layout
    pieces: list[Any]
    header: dict[str, Any]


class Writer:
    """Two snapshots are never under way at once. `why_over` is why nothing more is written, once that is so; `is_own`
    says that the reason is on this process."""

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

    def wait(self) -> None:
        """Until the last snapshot is written everywhere, so that the next one may be."""
        if not self._idle.wait(TIMEOUT):
            raise DisagreementError(f"waited {TIMEOUT:g} s for the last snapshot to be written")
        if self._error is not None:
            raise self._error

    def begin(self, snapshot: Snapshot) -> None:
        """Write what a device that is the host itself may change next, and leave the rest to the thread. `wait` comes
        before."""
        if not self._try(snapshot.step, self._write_on_host, snapshot):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hostmesh snapshots", daemon=True)
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
            step = snapshot.step
            if self._try(step, self._complete, snapshot):
                self._try(step, self._completion.await_all, step)
            del snapshot
            self._idle.set()

    def _try(self, step: int, act: Callable[[Any], None], value: Any) -> bool:
        """False if it failed, and nothing more is to be written."""
        try:
            act(value)
        except GivenUpError as error:
            self.why_over = str(error)
        except WorkerError as error:
            self._error = error
        except OSError as error:
            self._give_up(step, error.strerror or str(error))
        except Exception as error:  # of jax: a device without room for the copies, or a service that is gone
            self._give_up(step, f"{type(error).__name__}: {error}".splitlines()[0])
        else:
            return True
        return False

    def _give_up(self, step: int, why: str) -> None:
        self.why_over, self.is_own = why, True
        with suppress(Exception):  # the others are gone, and so will be this process
            self._completion.give_up(step, why)

    @property
    def _target(self) -> Generation:
        """Everybody has the newest: it is the other one's turn."""
        return next(each for each in self._generations if self._newest is None or each is not self._newest[1])

    def _write_on_host(self, snapshot: Snapshot) -> None:
        places = [number for number, piece in enumerate(snapshot.pieces) if is_on_host(piece)]
        if places:
            self._target.begin(snapshot.layout.end)
        for number in places:
            self._write(snapshot, number)

    def _complete(self, snapshot: Snapshot) -> None:
        layout, pieces, generation = snapshot.layout, snapshot.pieces, self._target
        places = [number for number, piece in enumerate(pieces) if piece is not None]
        if len(places) == len(pieces):
            generation.begin(layout.end)
        for number, ahead in zip_longest(places, places[1:]):
            if ahead is not None and hasattr(pieces[ahead], "copy_to_host_async"):
                pieces[ahead].copy_to_host_async()  # it comes while this one is written
            self._write(snapshot, number)
        generation.seal(snapshot.header, layout.end)
        self._newest = snapshot.step, generation
        self._completion.tell(snapshot.step)

    def _write(self, snapshot: Snapshot, number: int) -> None:
        self._target.write(snapshot.layout.pieces[number].at, to_bytes(snapshot.pieces[number]))
        snapshot.pieces[number] = None  # its memory is free
