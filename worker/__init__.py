"""The half of hostmesh that runs inside each process; each name is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.checkpoint import Checkpoint
    from worker.distributed import join
    from worker.freed_memory import keep_freed_memory
    from worker.identity import Identity
    from worker.loader import Loader
    from worker.mesh import make_mesh
    from worker.metrics import flush_report, report
    from worker.order import Order
    from worker.placement import Placement
    from worker.preemption import stop_asked, watch_for_stop
    from worker.sources import as_stream, open_source
    from worker.stream import Stream

_HOMES = {
    "Checkpoint": "worker.checkpoint",
    "Identity": "worker.identity",
    "Loader": "worker.loader",
    "Order": "worker.order",
    "Placement": "worker.placement",
    "Stream": "worker.stream",
    "as_stream": "worker.sources",
    "flush_report": "worker.metrics",
    "join": "worker.distributed",
    "keep_freed_memory": "worker.freed_memory",
    "make_mesh": "worker.mesh",
    "open_source": "worker.sources",
    "report": "worker.metrics",
    "stop_asked": "worker.preemption",
    "watch_for_stop": "worker.preemption",
}

__all__ = [
    "Checkpoint",
    "Identity",
    "Loader",
    "Order",
    "Placement",
    "Stream",
    "as_stream",
    "flush_report",
    "join",
    "keep_freed_memory",
    "make_mesh",
    "open_source",
    "report",
    "stop_asked",
    "watch_for_stop",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'worker' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
