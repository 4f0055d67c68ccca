"""Keeps this process's record: a few stores into shared memory at every change, never a lock or a system call."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from threading import get_ident, main_thread
from time import monotonic_ns
from typing import Final

from hostmesh.worker.identity import RECORD_FILE
from hostmesh.worker.recording import record
from hostmesh.worker.recording.record import Phase, Slot

# As plain integers: an IntEnum as an index costs four times as much.
KEPT, STEP, SINCE = int(Slot.KEPT), int(Slot.STEP), int(Slot.SINCE)
READ_STEP, READ_ROW, READ_SINCE = int(Slot.READ_STEP), int(Slot.READ_ROW), int(Slot.READ_SINCE)
STARTING, RUNNING, NAMED = int(Phase.STARTING), int(Phase.RUNNING), int(Phase.NAMED)
IN_STEP, LOADING = int(Phase.STEP), int(Phase.LOADING)
# In these a loader's batch is the input of a training step; in all others it belongs to what is under way.
OUTERMOST = frozenset({STARTING, RUNNING, IN_STEP})
# Phase, since when, and the number of changes lie side by side, so that one call writes them.
WRITE_PHASE: Final = struct.Struct("=3q").pack_into
PHASE_AT: Final = 8 * Slot.PHASE
LOADING_TOTAL: Final = int(Slot.LOADING)
BY_NAME = {each.name.lower(): int(each) for each in Phase if each is not Phase.NAMED}


class Recorder:
    """One for a process; its main thread writes it. Elsewhere than under `launch` the record is private memory."""

    def __init__(self) -> None:
        self.on_step: Callable[[int], None] | None = None  # called when a step begins
        self.name = ""  # of the phase, where that is one of the user's own
        self._use(mmap.mmap(-1, record.SIZE))

    def _use(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._slots = memoryview(memory)[: 8 * record.INTEGERS].cast("q")
        self._phase, self._since, self._changes = STARTING, monotonic_ns(), 0

    def open(self) -> None:
        """Take the file that the agent made for this process. A program that the process starts inherits the variable,
        but the record has an owner already."""
        path = os.environ.get(RECORD_FILE)
        if path is None or self._slots[Slot.PID] == os.getpid():
            return  # there is none, or it is open
        try:
            with open(path, "r+b", buffering=0) as file:
                memory = mmap.mmap(file.fileno(), record.SIZE)
        except (OSError, ValueError):
            return  # nothing that a process does depends on its record
        slots = memoryview(memory)[: 8 * record.INTEGERS].cast("q")
        if slots[Slot.PID] in (0, os.getpid()) or not is_alive(slots[Slot.PID]):
            slots[Slot.PID], slots[SINCE], slots[Slot.MAGIC] = os.getpid(), monotonic_ns(), record.MAGIC
            self._use(memory)

    def close(self) -> None:
        """What this process does is not recorded any more: it is a child of the one that is."""
        self.on_step = None
        self._use(mmap.mmap(-1, record.SIZE))

    def enter(self, phase: int) -> int:
        """Begin a phase, and return the one before."""
        before, now = self._phase, monotonic_ns()
        if before == LOADING:
            self._slots[LOADING_TOTAL] += now - self._since
        self._phase, self._since = phase, now
        self._changes += 1
        WRITE_PHASE(self._memory, PHASE_AT, phase, now, self._changes)
        return before

    def begin_step(self, step: int) -> None:
        """The input of a step is there, and the program goes on with it."""
        slots = self._slots
        slots[STEP] = step
        slots[KEPT] = 1
        self.enter(IN_STEP)
        if self.on_step is not None:
            self.on_step(step)

    def begin_loading(self) -> int:
        """Returns the phase before, for `end_loading`."""
        return self.enter(LOADING)

    def end_loading(self, before: int, step: int | None) -> None:
        """A batch is there, for this step; or there is none."""
        if before not in OUTERMOST:
            self.enter(before)
        elif step is None:
            self.enter(RUNNING)
        else:
            self.begin_step(step)

    def note_step(self, step: int) -> None:
        """The program says itself at which step it is; it may say so more than once."""
        if self._slots[STEP] != step and self._phase in OUTERMOST:
            self.begin_step(step)

    def note_reading(self, step: int, row: int) -> None:
        """What the thread that reads ahead is at; these slots are its own."""
        slots = self._slots
        slots[READ_STEP], slots[READ_ROW], slots[READ_SINCE] = step, row, monotonic_ns()

    def note_place(self, place: str) -> None:
        """The line of the user's code where a data process is that this one waits for."""
        self._write_text(place, record.PLACE_AT, record.PLACE_SIZE)

    def name_source(self, name: str) -> None:
        self._write_text(name, record.SOURCE_AT, record.SOURCE_SIZE)

    def name_phase(self, name: str) -> None:
        """Of the phase that is entered next, as NAMED."""
        self.name = name
        self._write_text(name, record.NAME_AT, record.NAME_SIZE)

    def _write_text(self, text: str, at: int, size: int) -> None:
        self._memory[at : at + size] = text.encode("utf-8", "replace")[: size - 1].ljust(size, b"\0")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


RECORDER: Final = Recorder()
os.register_at_fork(after_in_child=RECORDER.close)


class phase:  # it reads as a function
    """Tell what this process is doing: `with hostmesh.phase("evaluating"): …`.

    When a run stands still, the launcher says who is in which phase, and for how long; `hang_timeout:` in the cluster
    file may have a limit for it. Costs less than a microsecond. In other threads than the main one it does nothing.
    """

    __slots__ = ("_before", "_name", "_name_before", "_phase")

    def __init__(self, name: str) -> None:
        self._name, self._phase = name, BY_NAME.get(name, NAMED)
        self._before, self._name_before = -1, ""

    def __enter__(self) -> None:
        if get_ident() != main_thread().ident:
            return
        self._name_before = RECORDER.name
        if self._phase == NAMED:
            RECORDER.name_phase(self._name)
        self._before = RECORDER.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        if self._before < 0:
            return
        if self._before == NAMED:
            RECORDER.name_phase(self._name_before)
        RECORDER.enter(self._before)
        self._before = -1
