"""The record that a process keeps of what it does, as bytes in a file that its agent reads; stdlib only, Python 3.9.

It is 64 integers of 8 bytes and three texts. The process writes it without a system call, so it can be read even when
the process is stuck in native code, and it stays when the process has ended.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

VERSION = 2
MAGIC = 0x686D0000 + VERSION
INTEGERS = 64
NAME_AT, NAME_SIZE = 8 * INTEGERS, 128
SOURCE_AT, SOURCE_SIZE = NAME_AT + NAME_SIZE, 384
PLACE_AT, PLACE_SIZE = SOURCE_AT + SOURCE_SIZE, 128
SIZE = PLACE_AT + PLACE_SIZE


class Slot(IntEnum):
    """Where an integer is. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a host share."""

    MAGIC = 0
    PID = 1  # whose record it is
    KEPT = 2  # 1 when the program tells its steps, which only one that uses hostmesh does
    STEP = 3  # the last one that began; 0 before the first
    PHASE = 4
    SINCE = 5  # when the phase began
    CHANGES = 6  # how often step or phase have changed: while this stands still, so does the process
    LOADING = 7  # nanoseconds in all that the program waited for input
    READ_STEP = 8  # what the reading thread is at, and since when: the step, and the first of its rows
    READ_ROW = 9
    READ_SINCE = 10


class Phase(IntEnum):
    """What a process is doing. A phase of the user's own is NAMED."""

    STARTING = 0
    JOINING = 1
    RUNNING = 2  # between the phases that have a name
    COMPILING = 3
    LOADING = 4
    STEP = 5
    SAVING = 6
    EVALUATING = 7
    RESTORING = 8
    LEAVING = 9
    NAMED = 10


class Record(NamedTuple):
    pid: int
    is_kept: bool
    step: int
    phase: str
    since: int
    changes: int
    loading: int
    read_step: int
    read_row: int
    read_since: int
    source: str
    read_place: str


def parse_record(data: bytes) -> Record | None:
    """None for one that its process has not begun."""
    if len(data) < SIZE:
        return None
    slots = memoryview(data)[: 8 * INTEGERS].cast("q")
    if slots[Slot.MAGIC] != MAGIC:
        return None
    number = slots[Slot.PHASE]
    named = _text(data, NAME_AT, NAME_SIZE) if number == Phase.NAMED else ""
    return Record(
        pid=slots[Slot.PID],
        is_kept=bool(slots[Slot.KEPT]),
        step=slots[Slot.STEP],
        phase=named or (Phase(number).name.lower() if 0 <= number < Phase.NAMED else "running"),
        since=slots[Slot.SINCE],
        changes=slots[Slot.CHANGES],
        loading=slots[Slot.LOADING],
        read_step=slots[Slot.READ_STEP],
        read_row=slots[Slot.READ_ROW],
        read_since=slots[Slot.READ_SINCE],
        source=_text(data, SOURCE_AT, SOURCE_SIZE),
        read_place=_text(data, PLACE_AT, PLACE_SIZE),
    )


def _text(data: bytes, at: int, size: int) -> str:
    return bytes(data[at : at + size]).partition(b"\0")[0].decode("utf-8", "replace")
