"""For how long a training loop waited for input, and for what."""

from __future__ import annotations

from hostmesh.worker.reading.row_reader import Spent

# Less is no wait: it is what taking a batch costs that is there.
NO_WAIT = 1e-4


class Waiting:
    """What the loader is at is noted by the threads that read and transfer; the waits by the one that takes batches.

    A wait is shared out by what was spent on batches since the wait before. No lock is taken, which would cost as much
    as all else here: two transfers that end in the same instant may count as one.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._for_reading = self._for_mapping = self._for_transfer = 0.0
        self._reading = self._mapping = self._transfer = 0.0  # spent on all batches
        self._shared_out = 0.0, 0.0, 0.0

    def by_cause(self) -> dict[str, float]:
        """Seconds for `reading` records, `mapping` (and collating) them, and their `transfer` to the devices."""
        return {"reading": self._for_reading, "mapping": self._for_mapping, "transfer": self._for_transfer}

    def note_read(self, spent: Spent) -> None:
        self._reading += spent.reading
        self._mapping += spent.mapping

    def note_transfer(self, seconds: float) -> None:
        self._transfer += seconds

    def note_wait(self, seconds: float) -> None:
        self.total += seconds
        if seconds < NO_WAIT:
            self._for_transfer += seconds
            return
        reading, mapping, transfer = spent = self._reading, self._mapping, self._transfer
        before, self._shared_out = self._shared_out, spent
        reading, mapping, transfer = reading - before[0], mapping - before[1], max(0.0, transfer - before[2])
        whole = reading + mapping + transfer
        if not whole:  # the batch is still on its way
            reading = whole = 1.0
        share = seconds / whole
        self._for_reading += share * reading
        self._for_mapping += share * mapping
        self._for_transfer += share * transfer
