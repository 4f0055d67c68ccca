"""A process that did not end well, and which of several is the cause; pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hostmesh.launcher.supervisor.blame.tails import lines_worth_showing, tasks_named_by_jax, was_aborted_by_jax
from hostmesh.worker.identity import EXIT_PREEMPTED

LAST_LINES = 12
# How long a process that looks like a victim waits for somebody to look like the cause.
CAUSE_TIMEOUT = 2.0
# How long a process that was preempted waits for the others to leave as well.
OTHERS_TIMEOUT = 30.0
# The same where a process has left with exit code 0, which explains the victims well enough.
LEAVE_TIMEOUT = 1.0
# An agent sees an end a moment after it: a peer whose connection breaks may say so before.
NOTICED_LATE = 1.0
# How long a process that jax itself names, and that still runs, gets to end or its host to be lost.
NAMED_TIMEOUT = 4.0
# How processes end that the request to stop itself has ended.
REQUESTED = {code for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) for code in (-number, 128 + number)}
# What a crash record holds, for one that a process made up itself.
NO_CRASH = {
    "type": "an exception",
    "message": "",
    "place": None,
    "traceback": "",
    "lost_peer": False,
    "explained": False,
    "hint": None,
}
# What an agent tells of a process's memory, where it cannot tell.
NO_MEMORY = {
    **{"rss": None, "total": None, "available": None, "limit": None, "used": None},
    **{"cgroup_kills": None, "host_kills": None, "named": None},
}


@dataclass(frozen=True)
class Failure:
    """One process that did not end well: `code` is negative for a signal, `at` is when its trouble began.

    `at` may be wrong by `clock_error`, as hosts have clocks of their own. A `code` of 0 means that it left too early.
    """

    process_id: int
    host: str
    code: int
    at: float
    tail: str = ""
    crash: dict[str, Any] | None = None
    clock_error: float = 0.0
    memory: dict[str, Any] = field(default_factory=dict)  # as its agent tells it, see NO_MEMORY

    @property
    def lost_a_peer(self) -> bool:
        if self.crash is not None:
            return bool(self.crash["lost_peer"])
        return self.code == -signal.SIGABRT and was_aborted_by_jax(self.tail)

    @property
    def was_preempted(self) -> bool:
        return self.code == EXIT_PREEMPTED

    @property
    def is_a_cause(self) -> bool:
        return not self.lost_a_peer and not self.was_preempted

    def may_precede(self, other: Failure, late: float = 0.0) -> bool:
        """As far as their clocks can tell; `late` is how much later it may have been noticed."""
        return self.at - self.clock_error <= other.at + other.clock_error + late

    @property
    def ended_as_asked(self) -> bool:
        """By the signal that asked it to end, or by what Python and shells make of that."""
        is_interrupted = self.crash is not None and self.crash["type"] == "KeyboardInterrupt"
        return is_interrupted or self.code in REQUESTED

    @property
    def said(self) -> list[str]:
        return self.last_lines(LAST_LINES)

    def last_lines(self, most: int) -> list[str]:
        return lines_worth_showing(self.tail, most)

    @property
    def names(self) -> frozenset[int]:
        """Whom jax told this process it lost."""
        return tasks_named_by_jax(self.tail) | tasks_named_by_jax(str((self.crash or NO_CRASH)["message"]))

    def resembles(self, other: Failure) -> bool:
        if self.lost_a_peer != other.lost_a_peer:
            return False
        if self.crash is None or other.crash is None:
            return self.crash is other.crash and self.code == other.code
        return crashed_alike(self.crash, other.crash)


def crashed_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The same exception at the same place; one that explains itself may be raised anywhere, in the same words."""
    keys = ("type", "message") if one["explained"] else ("type", "place")
    return all(one[key] == other[key] for key in keys)


def find_culprit(failures: Sequence[Failure], now: float, final: bool) -> Failure | None:
    """The first failure that is a cause; else the first of all, when it is final or the time for a cause is over."""
    ordered = sorted(failures, key=lambda failure: failure.at)
    if causes := [failure for failure in ordered if failure.is_a_cause]:
        return _first_cause(causes)
    others_may_follow = any(failure.was_preempted for failure in ordered)
    timeout = OTHERS_TIMEOUT if others_may_follow else CAUSE_TIMEOUT
    if ordered and (final or now - ordered[0].at >= timeout):
        return ordered[0]
    return None


def _first_cause(causes: Sequence[Failure]) -> Failure:
    """By the clock; where clocks cannot tell two aborts apart, process 0's: its end makes jax abort all others."""
    first = causes[0]
    if first.code == -signal.SIGABRT:
        for failure in causes:
            if failure.process_id == 0 and failure.may_precede(first):
                return failure
    return first


def find_leaver(leavers: Sequence[Failure], victims: Sequence[Failure], now: float, final: bool) -> Failure | None:
    """The first process that left with exit code 0 before others lost a peer, when nothing else explains that."""
    if not victims or not all(victim.lost_a_peer for victim in victims):
        return None
    first = min(victims, key=lambda victim: victim.at)
    if not final and now - first.at < LEAVE_TIMEOUT:
        return None
    before = [each for each in leavers if each.may_precede(first, NOTICED_LATE)]
    return min(before, key=lambda each: each.at, default=None)


def find_named(victims: Sequence[Failure], running: Collection[int]) -> int | None:
    """The process that still runs, and that jax told most of its victims they lost."""
    votes = [number for victim in victims for number in victim.names if number in running]
    return min(set(votes), key=lambda number: (-votes.count(number), number), default=None)
