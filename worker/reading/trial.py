"""Whether several threads may read a source, and whether that is faster: tried out on the first steps of a loader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.reader import SourceReader, StepRows, flatten_rows
from hostmesh.worker.loading.rows import leaves
from hostmesh.worker.reading.parallel import ParallelReader

Arrays = list[list[NDArray[Any]]]

# Several threads are tried where a step takes one thread longer than this: handing out pieces costs some 0.3 ms.
WORTH = 2e-3
MEASURED = 3  # steps by one thread, and then by several
# After so many steps that took less nothing is tried any more: measuring them costs a few microseconds each.
MAX_QUICK = 1000
MIN_GAIN = 1.15
TRIES, STEPS_BETWEEN = 3, 50
# Threads that take turns so often meet in every piece of code that is not made for several.
SHORT_TURN = 1e-5

WHY = (
    "`map`, `collate` or the source keeps something between calls (a buffer, an open file), or a row depends on the"
    " other rows of its block"
)
UNSAFE = f"rows that several threads read at once differ from those that one reads: {WHY}"
VARIES = "rows differ each time they are read (`map` should use `rng`), so it cannot be checked"


class Verdict(Enum):
    OPEN = auto()
    ONE_THREAD = auto()
    SEVERAL = auto()


class Trial:
    """Of one loader; it outlives its readers. `is_asked` is for a number of threads that the user asked for: then only
    wrong rows stand against it."""

    def __init__(self, name: str, is_asked: bool) -> None:
        self.verdict = Verdict.OPEN
        self._name, self._is_asked = name, is_asked
        self._is_safe = False
        self._tries_left, self._rest = TRIES, 0  # steps until the next try
        self._quick = 0  # steps in which several would not be worth their while
        self._one: list[float] = []  # seconds that steps took, by one thread
        self._several: list[float] = []

    def read(self, step: int, serial: SourceReader, parallel: ParallelReader, layout: Layout) -> StepRows:
        """A step, by one thread or by several, whose times are compared."""
        began = perf_counter()
        if self._is_safe and self._is_time:
            rows = parallel.read_alone(step)
            self._several.append(perf_counter() - began)
            self._compare()
            return rows
        rows = serial.read(step)
        arrays = flatten_rows(rows, layout, step)
        self._one = [*self._one[1 - MEASURED :], perf_counter() - began]
        self._rest -= 1
        if not self._is_safe and (self._is_asked or self._is_time):
            self._check(step, arrays, serial, parallel, layout)
        elif self._one[-1] <= WORTH:
            self._quick += 1
            self.verdict = Verdict.ONE_THREAD if self._quick == MAX_QUICK else self.verdict
        return rows._replace(arrays=arrays)

    @property
    def _is_time(self) -> bool:
        return self._rest < 0 and len(self._one) == MEASURED and min(self._one) > WORTH

    def _check(self, step: int, arrays: Arrays, serial: SourceReader, parallel: ParallelReader, layout: Layout) -> None:
        problem = find_problem(step, arrays, serial, parallel)
        self._is_safe = problem is None
        if problem is None:
            self.verdict = Verdict.SEVERAL if self._is_asked else Verdict.OPEN
            return
        if not are_equal(arrays, flatten_rows(serial.read(step), layout, step)):
            problem = VARIES
        if self._is_asked and problem is not VARIES:
            raise DataError(f"step {step}: {self._name}: {problem}; wanted workers=0, or processes=N")
        self.verdict = Verdict.SEVERAL if self._is_asked else Verdict.ONE_THREAD
        if not self._is_asked:
            print(f"{self._name} is read by one thread: {problem}; workers=0 says so", file=sys.stderr, flush=True)

    def _compare(self) -> None:
        if len(self._several) < MEASURED:
            return
        if min(self._several) * MIN_GAIN < min(self._one):
            self.verdict = Verdict.SEVERAL
            return
        self._tries_left -= 1
        self.verdict = Verdict.OPEN if self._tries_left else Verdict.ONE_THREAD
        self._one, self._several, self._rest = [], [], STEPS_BETWEEN


class TriedReader:
    """Reads with one thread until several are known to be safe and faster, and then with several."""

    def __init__(self, trial: Trial, serial: SourceReader, parallel: ParallelReader, layout: Layout) -> None:
        self._trial, self._serial, self._parallel, self._layout = trial, serial, parallel, layout
        self._chosen = self._choose()

    def read(self, step: int) -> StepRows:
        if self._chosen is not None:
            return self._chosen.read(step)
        rows = self._trial.read(step, self._serial, self._parallel, self._layout)
        self._chosen = self._choose()
        if self._chosen is self._serial:
            self._parallel.close()
        return rows

    def _choose(self) -> SourceReader | ParallelReader | None:
        """None while the trial is open."""
        if self._trial.verdict is Verdict.OPEN:
            return None
        return self._parallel if self._trial.verdict is Verdict.SEVERAL else self._serial

    def close(self) -> None:
        self._serial.close()
        self._parallel.close()


def find_problem(step: int, arrays: Arrays, serial: SourceReader, parallel: ParallelReader) -> str | None:
    """Why several threads must not read what one thread has read as these arrays; None where nothing is known."""
    if returns_same_memory(serial, step):
        return UNSAFE
    try:
        with short_turns():
            found = parallel.read_alone(step).arrays
    except DataError as error:
        return f"{UNSAFE} ({error})"
    assert found is not None
    return None if are_equal(arrays, found) else UNSAFE


def returns_same_memory(serial: SourceReader, step: int) -> bool:
    """Whether a second read changes what a first one returned."""
    chunk = serial.plan(step).chunks[0]
    middle = len(chunk.ids) // 2
    if not middle:
        return False
    first = [np.asarray(leaf) for _, leaf in leaves(serial.rows.read(chunk.part(0, middle))[0])]
    before = [array.copy() for array in first]
    serial.rows.read(chunk.part(middle, len(chunk.ids)))
    return not are_equal([before], [first])


@contextmanager
def short_turns() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SHORT_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def are_equal(some: Arrays, others: Arrays) -> bool:
    """Byte by byte: numbers that are no numbers are equal to themselves here."""
    return all(
        one.tobytes() == other.tobytes()
        for pair in zip(some, others, strict=True)
        for one, other in zip(*pair, strict=True)
    )
