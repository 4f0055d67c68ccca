"""Which rows of which steps are compared: a function of the step alone, so that all processes choose the same."""

from __future__ import annotations

from dataclasses import dataclass

# Comparing some rows of a step takes so many seconds, and may take such a share of the time in which a batch is loaded:
# so many seconds for any, and one for so many bytes, where they come fast.
COST = 120e-6
SHARE = 0.005
STEP_SECONDS, BYTES_PER_SECOND = 30e-6, 6e9
MAX_PERIOD = 64
# One launcher hears all processes: each of more than so many tells of fewer steps.
PROCESSES_TOLD = 64
# So many first steps are all compared: most of what can be wrong is so from the beginning.
FIRST_STEPS = 8
# A part of a batch is cut into so many blocks of rows at most. A sample has no smaller ones than this, which are
# hashed in no time.
MAX_BLOCKS = {"every": 32, "sample": 64}
MIN_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Sampling:
    """With `every` all blocks of all steps; else all of the first step, and then one block of the next few and of every
    n-th step, each block in its turn."""

    every: bool
    first: int
    period: int

    @classmethod
    def of(cls, mode: str, first: int, batch_bytes: float, processes: int) -> Sampling:
        """`first` is the step from which a loader reads, `batch_bytes` the size of a batch on one of its processes."""
        seconds = STEP_SECONDS + batch_bytes / BYTES_PER_SECOND
        least = max(COST / (SHARE * seconds), processes / PROCESSES_TOLD)
        period = 1
        while period < MAX_PERIOD and least > period:
            period *= 2
        return cls(mode == "every", first, period)

    def is_compared(self, step: int) -> bool:
        return self.every or step < self.first + FIRST_STEPS or step % self.period == 0

    def is_whole(self, step: int) -> bool:
        return self.every or step == self.first

    def turn(self, step: int) -> int:
        """Of which block it is the turn, modulo their number."""
        return step if step < self.first + FIRST_STEPS else step // self.period


def count_blocks(mode: str, rows: int, size: int, most: int) -> int:
    """Of a part with so many rows and bytes."""
    wanted = most if mode == "every" else min(most, size // MIN_SAMPLE)
    return max(1, min(rows, wanted))


def cut(rows: int, count: int) -> list[tuple[int, int]]:
    """Even blocks of rows: where each begins and ends."""
    ends = [rows * number // count for number in range(count + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))
