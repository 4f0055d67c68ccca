"""The half of hostmesh that runs inside each process; each name is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker.distributed import join
    from worker.identity import Identity
    from worker.mesh import make_mesh
    from worker.order import Order
    from worker.placement import Placement

_HOMES = {
    "join": "worker.distributed",
    "Identity": "worker.identity",
    "make_mesh": "worker.mesh",
    "Order": "worker.order",
    "Placement": "worker.placement",
}

__all__ = ["Identity", "Order", "Placement", "join", "make_mesh"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'worker' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
