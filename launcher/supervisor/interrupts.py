"""Requests to stop: the user or the system has sent the launcher a signal."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from hostmesh.launcher.supervisor.blame.verdict import name_signal
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.run_state import RunState


@dataclass(frozen=True)
class Interrupt:
    """In the inbox: this signal has come."""

    number: int


def note_interrupt(number: int, state: RunState, records: Records, inbox: Inbox) -> None:
    number = signal.SIGTERM if number == signal.SIGUSR1 else number
    if number == signal.SIGTSTP:
        records.note("launch: a run cannot be suspended: its agents would miss the launcher; Ctrl-C stops it")
        return
    if not state.interrupts:
        state.interrupted_at = inbox.now()
        state.ended_before = set(state.exits)
        records.note(f"launch: {name_signal(number)}: {say_what_stops(state)} (again: at once)")
    state.interrupts.append(number)
    records.tell("interrupted", signal=number)


def say_what_stops(state: RunState) -> str:
    if not state.spawned:
        return "stopping"
    what = "stop" if state.save_seconds is None else "save and stop"
    return f"asked the processes to {what}; up to {state.stop_grace:g} s"
