"""When this process does which of its faults: at a step, or some seconds after it began."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from collections import deque
from types import FrameType
from typing import TYPE_CHECKING, Any

from hostmesh.worker.chaos.acts import ACTS, IN_ANY_THREAD, OBSTACLES, Fault
from hostmesh.worker.errors import WorkerError
from hostmesh.worker.identity import CHAOS, Identity
from hostmesh.worker.loading import tampering
from hostmesh.worker.process.facts import send_fact
from hostmesh.worker.recording.recorder import RECORDER

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Makes the main thread act, between two instructions of Python. jax owns SIGTERM, and stack dumps another of these.
SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR1
# How many steps are looked at to know how long one takes.
STEPS_MEASURED = 9


def begin_faults() -> None:
    """Programs that this one starts are not to do them, nor is another attempt than the one they are for."""
    identity = Identity.from_env()
    attempt = identity.attempt if identity is not None else 1
    faults = [Fault(**each) for each in json.loads(os.environ.pop(CHAOS))]
    if faults := [fault for fault in faults if fault.attempt == attempt]:
        for fault in faults:
            _require_possible(fault)
        Schedule(faults).begin()


def _require_possible(fault: Fault) -> None:
    """Of a host's fault this is known at the start, and it is better told now than by a rehearsal of nothing."""
    if fault.kind == "drop network" and (why := OBSTACLES[fault.kind]()) is not None:
        raise WorkerError(f"--chaos: {fault.kind}: {why}")


class Schedule:
    def __init__(self, faults: list[Fault]) -> None:
        self._at_steps = sorted((each for each in faults if each.step is not None), key=lambda each: each.step or 0)
        self._at_times = sorted((each for each in faults if each.step is None), key=lambda each: each.after or 0.0)
        self._corrupting = [each for each in self._at_steps if each.kind == "corrupt row"]
        self._due: deque[Fault] = deque()  # for the main thread
        self._factor = 1.0
        self._took: deque[float] = deque(maxlen=STEPS_MEASURED)
        self._step_began: float | None = None

    def begin(self) -> None:
        RECORDER.on_step = self._note_step
        if self._corrupting:
            tampering.change_rows = self._change_rows
        if self._at_times:
            signal.signal(SIGNAL, self._do_due)
            threading.Thread(target=self._wait_for_times, name="hostmesh chaos", daemon=True).start()

    # At a step: in the main thread, inside of next(loader) or report().

    def _note_step(self, step: int) -> None:
        """A program that does not tell every step does a fault at the first one that it tells after it."""
        if self._step_began is not None:
            self._took.append(time.monotonic() - self._step_began)
        while self._at_steps and (self._at_steps[0].step or 0) <= step:
            fault = self._at_steps.pop(0)
            if fault.kind != "corrupt row":
                self._do(fault, step)
        if self._factor > 1 and self._took:
            time.sleep((self._factor - 1) * statistics.median(self._took))
        self._step_began = time.monotonic()

    def _change_rows(self, step: int, arrays: list[list[NDArray[Any]]]) -> None:
        """In the thread that reads ahead; `step` is counted from 0 there."""
        for fault in [each for each in self._corrupting if each.step == step + 1]:
            self._corrupting.remove(fault)
            _tell(fault, step + 1)
            corrupt(arrays[0], random.Random(f"{fault.seed}/{fault.number}"))

    # At a time.

    def _wait_for_times(self) -> None:
        began = time.monotonic()
        for fault in self._at_times:
            time.sleep(max(0.0, began + (fault.after or 0.0) - time.monotonic()))
            if fault.kind in IN_ANY_THREAD:
                self._do(fault)
                continue
            self._due.append(fault)
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, SIGNAL)  # to that thread, so that it also wakes from a sleep

    def _do_due(self, number: int, frame: FrameType | None) -> None:
        while self._due:
            self._do(self._due.popleft())

    # Now.

    def _do(self, fault: Fault, step: int | None = None) -> None:
        obstacle = OBSTACLES[fault.kind]() if fault.kind in OBSTACLES else None
        _tell(fault, step, obstacle)
        if obstacle is not None:
            return
        if fault.kind == "slow":
            self._factor = fault.factor
        elif fault.kind == "skip batch":
            tampering.skip_batch = True
        else:
            ACTS[fault.kind](fault)


def _tell(fault: Fault, step: int | None = None, problem: str | None = None) -> None:
    """Before it is done: of most faults nobody could tell afterwards."""
    why = {} if problem is None else {"problem": problem}
    send_fact("chaos", must_arrive=True, fault=fault.number, kind=fault.kind, step=step, at=time.time(), **why)


def corrupt(arrays: list[NDArray[Any]], chance: random.Random) -> None:
    """Change one value of one row: to NaN in an array that can hold it, if there is one, else to its opposite bits."""
    import numpy as np

    rows = [array for array in arrays if array.size]
    array = next((each for each in rows if np.issubdtype(each.dtype, np.inexact)), rows[0])
    flat, place = array.reshape(-1), chance.randrange(array.size)
    if np.issubdtype(array.dtype, np.inexact):
        flat[place] = np.nan
    elif array.dtype == np.bool_:
        flat[place] = not flat[place]
    else:
        flat[place : place + 1].view(np.uint8)[:] ^= 0xFF
