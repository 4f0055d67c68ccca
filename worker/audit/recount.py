"""What the order says of steps: how many records each share of a batch has, their fingerprint, and none of them twice.

`python -m hostmesh.worker.audit.recount` reads questions from stdin, a line of JSON each, and answers on stdout. The
launcher asks after a run, and does not import numpy itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.audit.used import hash_records
from hostmesh.worker.mixing.mixture_order import AnyOrder, MixtureOrder
from hostmesh.worker.ordering.order import Order, Words
from hostmesh.worker.ordering.schedule import Schedule

# Records that are computed at once.
AT_ONCE = 1 << 18
SCHEDULE = [field.name for field in fields(Schedule)]


def recount(question: dict[str, Any]) -> dict[str, Any]:
    """`shares` are rows of a batch with the segments of steps to sum up, `passes` the first and last step of each."""
    spec, passes = question["spec"], question["passes"]
    order = make_order(spec)
    schedule = Schedule(**{name: spec[name] for name in SCHEDULE})
    shares = question["shares"]
    ranges = [*passes, *(segment for share in shares for segment in share["segments"])]
    first, last = min(step for step, _ in ranges), max(step for _, step in ranges)
    sums = Sums([share["rows"] for share in shares], [share["segments"] for share in shares], first)
    uses = UsesOfParts(order) if isinstance(order, MixtureOrder) else Uses(order.length)
    for step, start, block in blocks(order, schedule, first, last):
        sums.add(step, block)
        uses.add(start, block.ravel())
    parts = {"parts": len(order.lengths)} if isinstance(order, MixtureOrder) else {}
    return {
        **parts,
        "segments": [sums.answers(number) for number in range(len(shares))],
        "twice": uses.finish(),
        "records": sum(count_records(schedule, *each) for each in passes),
        "epochs": sum(count_epochs(schedule, *each) for each in passes),
        "left_out": sum(count_left_out(schedule, *each) for each in passes),
    }


def make_order(spec: dict[str, Any]) -> AnyOrder:
    if "mixture" in spec:
        return MixtureOrder.of_steps(spec["mixture"], spec["seed"], spec["shuffle"])
    return Order(spec["length"], spec["seed"], spec["shuffle"])


def blocks(order: AnyOrder, schedule: Schedule, first: int, last: int) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """The records of many steps at once: the first of them, its global position, and a row of ids for each step."""
    size, step = schedule.batch_size, first
    while step <= last:
        start, stop = schedule.positions(step - 1)
        count = min(last - step + 1, max(1, AT_ONCE // size))
        if schedule.tail != "carry":
            nth = (step - 1) % schedule.steps_per_epoch
            count = min(count, max(1, schedule.length // size - nth))  # whole batches of this epoch
        rows = stop - start
        yield step, start, order.ids(start, start + count * rows).reshape(count, rows)
        step += count


class Sums:
    """For each share the records and hashes of all steps so far, kept where a segment begins or ends."""

    def __init__(self, shares: list[list[list[int]]], segments: list[list[list[int]]], first: int) -> None:
        self._segments = segments
        self._runs = np.array([run for share in shares for run in share], np.int64).reshape(-1, 2)
        self._cuts = np.cumsum([0, *(len(share) for share in shares)])
        self._rows = np.zeros(len(shares), np.uint64)
        self._words = np.zeros(len(shares), np.uint64)
        ends = {(end, number) for number, each in enumerate(segments) for a, b in each for end in (a - 1, b)}
        self._wanted = sorted(ends)
        self._found: dict[tuple[int, int], tuple[int, int]] = {}
        self._next = 0
        self._keep(first - 1, np.zeros((1, len(shares)), np.uint64), np.zeros((1, len(shares)), np.uint64))

    def add(self, step: int, block: NDArray[np.int64]) -> None:
        count, rows = block.shape
        steps = np.arange(step, step + count, dtype=np.uint64)[:, None]
        upto = np.zeros((count, rows + 1), np.uint64)
        np.cumsum(hash_records(steps, block), axis=1, out=upto[:, 1:])
        runs = np.minimum(self._runs, rows)
        words = self._by_share(upto[:, runs[:, 1]] - upto[:, runs[:, 0]])
        counts = self._by_share(np.broadcast_to((runs[:, 1] - runs[:, 0]).astype(np.uint64), (count, len(runs))))
        words, counts = np.cumsum(words, axis=0) + self._words, np.cumsum(counts, axis=0) + self._rows
        self._keep(step, counts, words)
        self._rows, self._words = counts[-1], words[-1]

    def answers(self, share: int) -> list[list[Any]]:
        """Records and fingerprint of each of its segments."""
        ends = [(self._found[first - 1, share], self._found[last, share]) for first, last in self._segments[share]]
        return [[b[0] - a[0], f"{(b[1] - a[1]) % (1 << 64):016x}"] for a, b in ends]

    def _by_share(self, by_run: Words) -> Words:
        upto = np.zeros((len(by_run), len(self._runs) + 1), np.uint64)
        np.cumsum(by_run, axis=1, out=upto[:, 1:])
        return upto[:, self._cuts[1:]] - upto[:, self._cuts[:-1]]

    def _keep(self, step: int, counts: Words, words: Words) -> None:
        while self._next < len(self._wanted) and self._wanted[self._next][0] < step + len(counts):
            end, share = self._wanted[self._next]
            self._found[end, share] = int(counts[end - step, share]), int(words[end - step, share])
            self._next += 1


class Uses:
    """Whether the order has a record twice in an epoch: every position is looked up in a table of all records."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._is_used = np.zeros(length, bool)
        self._epoch, self._marked, self._twice = -1, 0, 0

    def add(self, start: int, ids: NDArray[np.int64]) -> None:
        at = 0
        while at < len(ids):
            epoch, offset = divmod(start + at, self._length)
            if epoch != self._epoch:
                self._close_epoch()
                self._epoch = epoch
            part = ids[at : at + self._length - offset]
            self._is_used[part] = True
            self._marked += len(part)
            at += len(part)

    def finish(self) -> int:
        self._close_epoch()
        return self._twice

    def _close_epoch(self) -> None:
        self._twice += self._marked - int(np.count_nonzero(self._is_used))
        self._is_used[:] = False
        self._marked = 0


class UsesOfParts:
    """Whether the order of a mixture has a record of a part twice in an epoch of that part, or draws a part more or
    less often than its weight says."""

    def __init__(self, order: MixtureOrder) -> None:
        self._order, self._uses = order, [Uses(length) for length in order.lengths]
        self._wrong = 0

    def add(self, start: int, ids: NDArray[np.int64]) -> None:
        order = self._order
        first, last = order.period.count_before(start), order.period.count_before(start + len(ids))
        for part, uses in enumerate(self._uses):
            own = ids[(ids >= order.starts[part]) & (ids < order.starts[part] + order.lengths[part])]
            uses.add(first[part], own - order.starts[part])
            self._wrong += max(0, len(own) - (last[part] - first[part]))

    def finish(self) -> int:
        return self._wrong + sum(uses.finish() for uses in self._uses)


def count_records(schedule: Schedule, first: int, last: int) -> int:
    """Of these steps; padding is none, and with `drop` some are left out in between."""
    if schedule.tail == "drop":
        return (last - first + 1) * schedule.batch_size
    return schedule.positions(last - 1)[1] - schedule.positions(first - 1)[0]


def count_epochs(schedule: Schedule, first: int, last: int) -> int:
    """Those that some of these steps are of."""
    start, stop = schedule.positions(first - 1)[0], schedule.positions(last - 1)[1]
    return -(-stop // schedule.length) - start // schedule.length


def count_left_out(schedule: Schedule, first: int, last: int) -> int:
    """Records that are in no batch, of the epochs that ended within these steps."""
    if schedule.tail == "drop":
        epochs = last // schedule.steps_per_epoch - (first - 1) // schedule.steps_per_epoch
        return epochs * (schedule.length % schedule.batch_size)
    return (schedule.left_out or 0) if last == schedule.total else 0


def main() -> None:
    for question in sys.stdin:
        print(json.dumps(recount(json.loads(question))), flush=True)


if __name__ == "__main__":
    main()
