"""step -> global positions, for each way to treat the tail of an epoch; pure."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.choices import TAILS, require_choice, require_count


@dataclass(frozen=True)
class Schedule:
    """Position p is record p % length of epoch p // length; a step takes `batch_size` positions or, padded, fewer.

    With `carry` the remainder of an epoch begins the next one, and that of the last epoch, fewer than a batch, is left
    out: no record is used more often than there are epochs.
    """

    length: int
    batch_size: int
    tail: str = "carry"
    epochs: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        require_choice("tail", self.tail, TAILS)
        for name in ("batch_size", "epochs", "steps"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, require_count(name, value))
        object.__setattr__(self, "length", index(self.length))
        if self.length < 1:
            raise DataError(
                "the source has no records, wanted at least one: is its file complete, does a filter keep any?"
            )
        if self.tail != "pad" and self.length < self.batch_size:
            raise ValueError(
                f"the source has {self.length} records, fewer than one batch of {self.batch_size}:"
                " wanted a smaller batch_size, or tail='pad'"
            )

    @property
    def total(self) -> int | None:
        """All steps, or None without end."""
        if self.epochs is None:
            return self.steps
        carried = self.epochs * self.length // self.batch_size
        total = carried if self.tail == "carry" else self.epochs * self.steps_per_epoch
        return total if self.steps is None else min(total, self.steps)

    @property
    def left_out(self) -> int | None:
        """Records, each counted once an epoch, that are in no batch because they would not fill one; None without end.

        Those that were not asked for, because `steps` ends before the epochs do, do not count.
        """
        if self.tail == "drop":
            return None if self.total is None else self.total // self.steps_per_epoch * (self.length % self.batch_size)
        if self.tail == "pad" or self.epochs is None:
            return 0
        whole, rest = divmod(self.epochs * self.length, self.batch_size)
        return rest if self.total == whole else 0

    @property
    def steps_per_epoch(self) -> int:
        """Of an epoch's own steps; with `carry` epochs share steps, and this is rounded down."""
        return -(-self.length // self.batch_size) if self.tail == "pad" else self.length // self.batch_size

    def positions(self, step: int) -> tuple[int, int]:
        """Start and stop of a step's positions."""
        if self.tail == "carry":
            return step * self.batch_size, (step + 1) * self.batch_size
        epoch, nth = divmod(step, self.steps_per_epoch)
        start = epoch * self.length + nth * self.batch_size
        return start, self.stop(start)

    def stop(self, start: int) -> int:
        """Where the positions of a step stop that start there."""
        if self.tail == "carry":
            return start + self.batch_size
        return min(start + self.batch_size, (start // self.length + 1) * self.length)


def check_step(step: object, total: int | None) -> int:
    """A step that a loader can be restored to."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0 or (total is not None and step > total):
        upto = "" if total is None else f" to {total}"
        raise DataError(f"a loader's state wants a number of batches from 0{upto}, found {step!r}")
    return step
