"""What the processes of a run have told of the steps they delivered, read from its events; pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

# Only lines with one of these are looked at: of a run that goes on for weeks the events are mostly metrics.
MARKS = tuple(
    f'"event": "{name}"'.encode()
    for name in (
        "loading",
        "delivered",
        "delivered before",
        "process exited",
        "attempt ended",
        "attempt began",
        "run ended",
    )
)
# A process tells of no more stretches of a loader than that (worker/audit/deliveries.py).
MAX_STRETCHES = 1000


@dataclass(frozen=True)
class Segment:
    """Steps, first to last, that a process delivered between two words of it: how many, and of which records."""

    first: int
    last: int
    steps: int
    rows: int
    sum: int


@dataclass
class Stretch:
    """What one process delivered step after step. It begins at a step of its own, after a restore, or `is_again` at the
    first one because the data was at its end. `restored` is the step whose saved state the program went on from."""

    first: int
    is_again: bool
    restored: int | None
    segments: list[Segment] = field(default_factory=list)
    _so_far: tuple[int, int, int] = (0, 0, 0)  # steps, rows and sum

    @property
    def last(self) -> int:
        return self.segments[-1].last if self.segments else self.first - 1

    def add(self, last: int, steps: int, rows: int, words: int) -> None:
        """A word says all of the stretch so far; only one that says more than those before counts."""
        if last <= self.last:
            return
        before = self._so_far
        more = steps - before[0], rows - before[1], (words - before[2]) % (1 << 64)
        self.segments.append(Segment(self.last + 1, last, *more))
        self._so_far = steps, rows, words


@dataclass
class Account:
    """What one process said of one loader in one attempt; `rows` are those of each batch that it answers for.

    `data` says what the source is, where the process told it.
    """

    spec: dict[str, Any]
    rows: list[tuple[int, int]]
    data: dict[str, Any] | None = None
    is_kept: bool = False
    stretches: dict[int, Stretch] = field(default_factory=dict)


@dataclass
class Attempt:
    """`loaders` has for the number of each loader what each process said. `last_step` is what all of them had begun."""

    number: int
    loaders: dict[int, dict[int, Account]] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    last_step: int | None = None


@dataclass
class Told:
    attempts: list[Attempt] = field(default_factory=lambda: [Attempt(1)])
    outcome: str | None = None

    def loaders(self) -> list[int]:
        """Those that are audited: whose state was taken or restored at some time or, where there is none, the first."""
        accounts = [
            (loader, account)
            for attempt in self.attempts
            for loader, by_process in attempt.loaders.items()
            for account in by_process.values()
            if account.stretches
        ]
        kept = {loader for loader, account in accounts if account.is_kept}
        return sorted(kept) or sorted({loader for loader, _ in accounts})[:1]


def read_told(lines: Iterable[bytes]) -> Told:
    """A line that is damaged, or says what makes no sense, is passed over: a later one says all that it said."""
    told = Told()
    for event in _parse(lines):
        _note(told, event)
    return told


def _parse(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if any(mark in line for mark in MARKS):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                yield event


def _note(told: Told, event: dict[str, Any]) -> None:
    attempt = told.attempts[-1]
    match event:
        case {"event": "attempt began", "attempt": int(number)}:
            told.attempts.append(Attempt(number))
        case {"event": "attempt ended", "last_step": int(step)}:
            attempt.last_step = step
        case {"event": "process exited", "process_id": int(process_id), "code": int(code)}:
            attempt.exits[process_id] = code
        case {"event": "run ended", "outcome": str(outcome)}:
            told.outcome = outcome
        case {"event": "loading", "process_id": int(process_id), "detail": dict(detail)}:
            _note_loading(attempt, process_id, detail)
        case {"event": "delivered", "process_id": int(process_id), "detail": dict(detail)}:
            _note_delivered(attempt, process_id, detail)
        case {
            "event": "delivered before",
            "detail": {"attempt": int(number), "process": int(process_id), "word": dict(word)},
        }:
            for before in told.attempts:
                if before.number == number:
                    _note_delivered(before, process_id, word)


def _note_loading(attempt: Attempt, process_id: int, detail: dict[str, Any]) -> None:
    match detail:
        case {"loader": int(loader), "spec": {"batch_size": int()} as spec, "rows": list(rows)}:
            runs = [(run[0], run[1]) for run in rows if _is_run(run)]
            if len(runs) == len(rows):
                data = detail.get("data")
                account = Account(spec, runs, data if isinstance(data, dict) else None)
                attempt.loaders.setdefault(loader, {})[process_id] = account


def _note_delivered(attempt: Attempt, process_id: int, detail: dict[str, Any]) -> None:
    counts = [detail.get(name) for name in ("loader", "stretch", "first", "last", "steps", "rows")]
    words = _read_hex(detail.get("sum"))
    if words is None or not _are_counts(counts):
        return
    loader, number, first, last, steps, rows = counts
    account = attempt.loaders.get(loader, {}).get(process_id)
    if account is not None:
        restored = detail.get("restored")
        begins = Stretch(first, detail.get("again") is True, restored if isinstance(restored, int) else None)
        account.is_kept = account.is_kept or detail.get("kept") is True
        account.stretches.setdefault(number, begins).add(last, steps, rows, words)


def _are_counts(values: list[Any]) -> TypeGuard[list[int]]:
    return all(isinstance(each, int) and each >= 0 for each in values)


def _is_run(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _are_counts(value) and value[0] < value[1]


def _read_hex(value: Any) -> int | None:
    try:
        return int(value, 16) if isinstance(value, str) else None
    except ValueError:
        return None
