"""For how long a training loop waited for input, and for what."""

from __future__ import annotations

import threading

from hostmesh.worker.reading.row_reader import Spent

# Less is no wait: it is what taking a batch costs that is there.
NO_WAIT = 1e-4


class Waiting:
    """What the loader is at is noted by the threads that read and transfer; the waits by the one that takes batches.

    A wait is shared out by what was spent on batches since the wait before.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._for = {"reading": 0.0, "mapping": 0.0, "transfer": 0.0}
        self._spent = dict(self._for)
        self._lock = threading.Lock()

    def by_cause(self) -> dict[str, float]:
        """Seconds for `reading` records, `mapping` (and collating) them, and their `transfer` to the devices."""
        return dict(self._for)

    def note_read(self, spent: Spent) -> None:
        with self._lock:
            self._spent["reading"] += spent.reading
            self._spent["mapping"] += spent.mapping

    def note_transfer(self, seconds: float) -> None:
        with self._lock:
            self._spent["transfer"] += seconds

    def note_wait(self, seconds: float) -> None:
        self.total += seconds
        if seconds < NO_WAIT:
            self._for["transfer"] += seconds
            return
        with self._lock:
            spent, self._spent = self._spent, dict.fromkeys(self._spent, 0.0)
        whole = sum(spent.values())
        if not whole:  # the batch is still on its way
            spent, whole = {"reading": 1.0}, 1.0
        for cause, part in spent.items():
            self._for[cause] += seconds * part / whole
