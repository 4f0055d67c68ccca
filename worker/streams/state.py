"""The state of a stream as plain JSON: the position in each shard, and those of all processes as one."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

from hostmesh.worker.errors import DisagreementError
from hostmesh.worker.process.coordination import exchange
from hostmesh.worker.streams.stream import Stream

# Of a source the batches delivered; of a stream {"step": …, "shards": {"0": …}}, for the shards a process answers for.
# With `sharded=True` also "sharded": how many shards there are, because each needs the process that reads it.
LoaderState: TypeAlias = "int | Mapping[str, Any]"

SHARDED = "sharded"
BYTES = "base64"
# What all processes together may give to a checkpoint: it passes through the coordinator.
MAX_BYTES = 1 << 20

_told: set[str] = set()  # streams whose states were too large


def encode_state(state: Any) -> str | None:
    """None where it has none, or one that plain JSON values and bytes cannot hold."""
    try:
        text = json.dumps(state, default=_encode_bytes)
    except (TypeError, ValueError):
        return None
    # Keys that are no text, or tuples, would come back as something else.
    return text if state is not None and decode_state(text) == state else None


def decode_state(text: str) -> Any:
    return json.loads(text, object_hook=_decode_bytes)


def _encode_bytes(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {BYTES: base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _decode_bytes(found: dict[str, Any]) -> Any:
    return base64.b64decode(found[BYTES]) if found.keys() == {BYTES} else found


def split_state(state: Any) -> tuple[Any, dict[str, Any]]:
    """The step, and the position in each shard; a step alone has none, and is reached by reading from the start."""
    if isinstance(state, Mapping) and state.keys() - {SHARDED} == {"step", "shards"}:
        return state["step"], dict(state["shards"])
    return state, {}


def drop_large_positions(positions: Mapping[str, Any], stream: Stream) -> dict[str, Any]:
    """The positions that are small enough to be saved. A shard without one is read from its start."""
    most = MAX_BYTES // stream.shards
    sizes = {shard: len(json.dumps(position)) for shard, position in positions.items()}
    largest = max(sizes.values(), default=0)
    if largest > most and stream.name not in _told:
        _told.add(stream.name)
        found = f"{largest:,} bytes, wanted {most:,} at most"
        print(
            f"{stream.name}: the state of its iterator has {found}: not saved, so a restored loader reads it again",
            file=sys.stderr,
        )
    return {shard: position for shard, position in positions.items() if sizes[shard] <= most}


def merge_states(state: LoaderState) -> LoaderState:
    """What is saved: the step, and the positions that any process knows. Every process calls this."""
    if not isinstance(state, Mapping):
        return state
    found = exchange("save the place in a stream", {"step": state["step"], "shards": state["shards"]})
    if len(steps := {one["step"] for one in found}) > 1:
        shown = ", ".join(map(str, sorted(steps)))
        raise DisagreementError(f"wanted to save the place in a stream after one step; found {shown}")
    positions = {shard: position for one in found for shard, position in one["shards"].items()}
    return {**state, "shards": positions}
