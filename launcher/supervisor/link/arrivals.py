"""What comes from a host, with the secrets taken out before anybody else sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hostmesh.launcher.output.redact import redact_cut_bytes, redact_cut_json
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Ended, Heard

# Either no text of the host's own, or bytes of a stream that its log redacts piece by piece.
LEFT_ALONE = (
    *(
        wire.Beat,
        wire.Output,
        wire.SetupOutput,
        wire.Drained,
        wire.Hello,
        wire.FilesNeeded,
        wire.BytesStored,
        wire.Synced,
    ),
    *(wire.SetupDone, wire.Reserved, wire.Reached, wire.Listening, wire.Started, wire.Bye),
    *(wire.CompiledUsed, wire.CompiledLacking, wire.CompiledPiece, wire.CompiledStored),
)
FROM_HOSTS = frozenset(wire.KINDS.values())
# Facts of a host that decide what a run does. They are short, and told only by what redacts all it tells.
NEEDED_AS_THEY_ARE = ("time", "platforms", "proxies", "names", "devices", "visible")


def redact_arrival(entry: Any, secrets: Sequence[str]) -> Any:
    """Texts that may have been cut on the host lose part of a secret at their ends as well."""
    if isinstance(entry, Heard):
        if not secrets or isinstance(entry.event, LEFT_ALONE) or type(entry.event) not in FROM_HOSTS:
            return entry
        return replace(entry, event=_redact_event(entry.event, secrets))
    if isinstance(entry, Ended):
        said, why = redact_cut_json((entry.said, entry.unreachable), secrets)
        return replace(entry, said=said, unreachable=why)
    return entry


def _redact_event(event: Any, secrets: Sequence[str]) -> Any:
    if isinstance(event, wire.Inspected):
        kept = {name: event.found[name] for name in NEEDED_AS_THEY_ARE if name in event.found}
        return event._replace(found={**redact_cut_json(event.found, secrets), **kept})
    fields = event._asdict()
    data = fields.pop("data", None)
    fields = redact_cut_json(fields, secrets)
    return event._replace(**fields) if data is None else event._replace(**fields, data=redact_cut_bytes(data, secrets))
