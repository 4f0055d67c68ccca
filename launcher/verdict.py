"""Who ended a run and why: the cause first, the victims only counted; pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import EXIT_HOST_LOST, EXIT_USAGE

LAST_LINES = 12
# How long a process that looks like a victim waits for somebody to look like the cause.
PATIENCE_FOR_A_CAUSE = 2.0
# How jax's native code ends a process that lost another: these words in its last lines, and an abort.
ABORTED = re.compile(r"coordination (service|agent)|distributed service detected|heartbeat|gloo", re.IGNORECASE)
# What a crash record holds, for one that a process made up itself.
NO_CRASH = {"type": "an exception", "message": "", "place": None, "traceback": "", "lost_peer": False}


@dataclass(frozen=True)
class Failure:
    """One process that did not end well: `code` is negative for a signal, `at` is when trouble was first heard of."""

    process_id: int
    host: str
    code: int
    at: float
    tail: str = ""
    crash: dict[str, Any] | None = None

    @property
    def lost_a_peer(self) -> bool:
        if self.crash is not None:
            return bool(self.crash["lost_peer"])
        return self.code == -signal.SIGABRT and bool(ABORTED.search(self.tail))

    def resembles(self, other: Failure) -> bool:
        if self.crash is None or other.crash is None:
            return self.crash is other.crash and self.code == other.code
        return all(self.crash[key] == other.crash[key] for key in ("type", "place"))


@dataclass(frozen=True)
class Verdict:
    outcome: str
    exit_code: int
    message: str
    process_id: int | None = None
    host: str | None = None
    victims: int = 0
    detail: list[str] = field(default_factory=list)

    def text(self) -> str:
        return "\n".join([self.message, *("  " + line for line in self.detail)])


def find_culprit(failures: Sequence[Failure], now: float, final: bool) -> Failure | None:
    """The first failure that is not a lost peer; else the first of all, when it is final or patience is over."""
    ordered = sorted(failures, key=lambda failure: failure.at)
    for failure in ordered:
        if not failure.lost_a_peer:
            return failure
    if ordered and (final or now - ordered[0].at >= PATIENCE_FOR_A_CAUSE):
        return ordered[0]
    return None


def succeeded(count: int) -> Verdict:
    return Verdict("succeeded", 0, "the process succeeded" if count == 1 else f"all {count} processes succeeded")


def process_failed(culprit: Failure, others: int, same: int, logs: str) -> Verdict:
    """`others` processes were stopped or lost; `same` of them failed in the same way by themselves."""
    message = f"the run failed: process {culprit.process_id} on {culprit.host} {how_it_ended(culprit.code)}"
    detail = _why(culprit)
    if same:
        detail.append(f"{_processes(same)} failed in the same way.")
    if others - same:
        detail.append(f"{_processes(others - same)} {'was' if others - same == 1 else 'were'} stopped.")
    detail.append(f"Logs: {logs}")
    code = culprit.code if culprit.code > 0 else 128 - culprit.code
    return Verdict("failed", code, message, culprit.process_id, culprit.host, others - same, detail)


def host_lost(host: str, why: str, said: str, logs: str) -> Verdict:
    detail = [*said.splitlines()[-LAST_LINES:], f"Logs: {logs}"]
    return Verdict("host lost", EXIT_HOST_LOST, f"the run failed: {host} {why}", None, host, 0, detail)


def refused(problems: Sequence[str]) -> Verdict:
    return Verdict("refused", EXIT_USAGE, "nothing was started", detail=list(problems))


def nursery_died(host: str, problem: str, victims: int, logs: str) -> Verdict:
    code = 128 + int(match[1]) if (match := re.search(r"signal (\d+)", problem)) else 1
    message = f"the run failed: the nursery on {host} died: {problem}"
    return Verdict(
        "failed", code, message, None, host, victims, [f"{_processes(victims)} died with it.", f"Logs: {logs}"]
    )


def stopped_by(number: int) -> Verdict:
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return Verdict("stopped", 128 + number, f"stopped by {name}")


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a real-time signal"
    hint = "; was the host out of memory?" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}){hint}"


def _why(failure: Failure) -> list[str]:
    if failure.crash is None:
        return [line.rstrip() for line in failure.tail.splitlines() if line.strip()][-LAST_LINES:]
    head, *rest = (failure.crash["message"] or "").splitlines() or [""]
    place = [f"  {failure.crash['place']}"] if failure.crash.get("place") else []
    return [f"{failure.crash['type']}: {head}".rstrip(": "), *rest[:3], *place]


def _processes(count: int) -> str:
    return "1 other process" if count == 1 else f"{count} other processes"
