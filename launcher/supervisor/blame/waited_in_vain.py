"""Verdicts of runs that jax ended because processes had waited in vain for others that still ran; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hostmesh.launcher.errors import EXIT_HANG
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.words import agree, count_things


def given_up(hang: Verdict, victims: Sequence[int]) -> Verdict:
    """jax gave up before the timeout of a hang, and the one that was waited for is known."""
    who = "another process" if len(victims) == 1 else f"{len(victims)} others"
    message = f"the run failed: {hang.cause or hang.message}; jax in {who} gave up waiting"
    return replace(hang, message=message, victims=len(victims), victim_ids=tuple(victims))


def network_broken(problem: str, victims: Sequence[int], logs: str) -> Verdict:
    """Processes lost peers that still ran: no process is to blame."""
    count = len(victims)
    detail = [
        f"{count_things(count, 'process')} {agree('was', count)} ended by jax for that.",
        f"Logs: {logs}",
    ]
    return Verdict(
        *("hang", EXIT_HANG, f"the run failed: {problem}", None, None, count, detail),
        kind=kinds.HANG,
        sure=kinds.LIKELY,
        evidence=("their agents tried to connect", "processes lost peers that still ran"),
        victim_ids=tuple(victims),
    )
