"""What an agent may say, by the phase that its host is in; pure."""

from __future__ import annotations

from typing import Any

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.state.host import HostState, Phase

OF_PROCESSES = (
    wire.Started,
    wire.Output,
    wire.Exited,
    wire.Drained,
    wire.Stacks,
    wire.Observed,
    wire.Examined,
    wire.Fact,
)
# What comes only from an agent that was told to prepare or to inspect its host.
ANSWERS = (
    *(wire.FilesNeeded, wire.BytesStored, wire.Synced, wire.SetupOutput, wire.SetupDone),
    *(wire.Ready, wire.Reached, wire.Inspected),
    *(wire.CompiledUsed, wire.CompiledLacking, wire.CompiledPiece, wire.CompiledStored),
)
FROM_HOSTS = frozenset(wire.KINDS.values())


def is_ignored(host: HostState, event: Any) -> bool:
    """Of a host that is lost only its processes are heard, of one that has left or was given up nothing."""
    if isinstance(event, wire.Fact) and not isinstance(event.process_id, int | None):
        return True  # any process of the run may say what it likes
    if host.phase is Phase.LOST:
        return not isinstance(event, OF_PROCESSES)
    return host.is_gone


def find_violation(host: HostState, event: Any, spawned: bool, is_ending: bool = False) -> str | None:
    """What is wrong with this event of this host; None for what an agent may say. `is_ending` while processes are
    stopped."""
    name = type(event).__name__
    if type(event) not in FROM_HOSTS:
        return None  # a thread of the launcher reports it
    if isinstance(event, wire.Hello):
        return None if host.phase is Phase.CONNECTING else "it said hello a second time"
    if host.phase is Phase.CONNECTING:
        return f"it said {name} before its hello"
    if isinstance(event, OF_PROCESSES) and event.process_id is not None:
        if not spawned or event.process_id not in host.process_ids:
            return f"it said {name} of process {event.process_id}, which it does not have"
        if isinstance(event, wire.Exited) and not isinstance(event.code, int):
            return f"it said that process {event.process_id} exited with {event.code!r}"
    if isinstance(event, ANSWERS) and host.phase is Phase.GREETED:
        return f"it said {name}, and nobody asked"
    if isinstance(event, wire.Cleared) and (not is_ending or host.phase is not Phase.RUNNING):
        return "it said Cleared, and nobody asked"
    return find_wrong_answer(host, event)


def find_wrong_answer(host: HostState, event: Any) -> str | None:
    match event:
        case wire.Reserved() if wire.Reserve not in host.asked:
            return "it said Reserved, and nobody asked"
        case wire.Reserved() if not event.ports:
            return "it said Reserved, and no port"
        case wire.CompiledUsed() if not _is_text(event.folder) or not _are_sizes(event.sizes):
            return "it said CompiledUsed, and no sizes"
        case wire.CompiledLacking() if not isinstance(event.names, list) or not _is_text(event.folder, *event.names):
            return "it said CompiledLacking, and no names"
        case wire.CompiledUsed() | wire.CompiledPiece() if wire.ShareCompiled not in host.asked:
            return f"it said {type(event).__name__}, and nobody asked"
        case wire.Reached() if wire.Reach not in host.asked:
            return "it said Reached, and nobody asked"
        case wire.Inspected() if not isinstance(event.found.get("time"), int | float):
            return "it said Inspected, and nothing of the time"
    return None


def _is_text(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, dict) and all(type(size) is int for size in value.values())
