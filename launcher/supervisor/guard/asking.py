"""Lets processes read rows again that they do not hold alike."""

from __future__ import annotations

from collections.abc import Mapping

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.state.run_state import RunState


def ask_rows(state: RunState, channels: Mapping[int, Channel], now: float) -> None:
    from hostmesh.launcher.supervisor.guard.rows import Rows  # few runs need it

    guard = state.guard
    if guard is None or not isinstance(finding := guard.finding, Rows):
        return
    guard.asked_at = now
    for process_id in finding.asked:
        host = state.host_of(process_id)
        if host.has_agent:
            channels[host.number].send(wire.AskRows(process_id, finding.question))
