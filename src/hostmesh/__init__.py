"""hostmesh: from a list of hosts to one JAX program. What a script may use is here; a name is loaded when it is used.

The code is in the folders launcher/ and worker/ of the repository, which are linked into this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hostmesh.worker.checkpoint import Checkpoint
    from hostmesh.worker.distributed import join
    from hostmesh.worker.identity import Identity
    from hostmesh.worker.loading.loader import Loader
    from hostmesh.worker.loading.order import Order
    from hostmesh.worker.mesh import make_mesh
    from hostmesh.worker.metrics import flush_report, report
    from hostmesh.worker.placement import Placement
    from hostmesh.worker.preemption import handle_preemption, preemption_requested
    from hostmesh.worker.process.freed_memory import keep_freed_memory
    from hostmesh.worker.sources import as_stream, open_source
    from hostmesh.worker.streams.stream import Stream

__version__ = "0.1.0"

_MODULES = {
    "Checkpoint": "checkpoint",
    "Identity": "identity",
    "Loader": "loading.loader",
    "Order": "loading.order",
    "Placement": "placement",
    "Stream": "streams.stream",
    "as_stream": "sources",
    "flush_report": "metrics",
    "join": "distributed",
    "keep_freed_memory": "process.freed_memory",
    "make_mesh": "mesh",
    "open_source": "sources",
    "report": "metrics",
    "preemption_requested": "preemption",
    "handle_preemption": "preemption",
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
    "preemption_requested",
    "handle_preemption",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hostmesh' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hostmesh.worker.{_MODULES[name]}"), name)
