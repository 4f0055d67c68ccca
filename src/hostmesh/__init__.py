"""hostmesh: from a list of hosts to one JAX program. What a script may use is here; a name is loaded when it is used.

The code is in the folders launcher/ and worker/ of the repository, which are linked into this package.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `X as X` makes a name public for type checkers
    from hostmesh.worker.checkpoint import Checkpoint as Checkpoint
    from hostmesh.worker.distributed import join as join
    from hostmesh.worker.guard.check import check as check
    from hostmesh.worker.identity import Identity as Identity
    from hostmesh.worker.images.crops import crop_images as crop_images
    from hostmesh.worker.load_array import load_array as load_array
    from hostmesh.worker.loading.lengths import Lengths as Lengths
    from hostmesh.worker.loading.loader import Loader as Loader
    from hostmesh.worker.mesh import make_mesh as make_mesh
    from hostmesh.worker.metrics import flush_report as flush_report
    from hostmesh.worker.metrics import report as report
    from hostmesh.worker.mixing.joined import concatenate as concatenate
    from hostmesh.worker.mixing.mixture import mix as mix
    from hostmesh.worker.ordering.order import Order as Order
    from hostmesh.worker.placement import Placement as Placement
    from hostmesh.worker.preemption import handle_preemption as handle_preemption
    from hostmesh.worker.preemption import preemption_requested as preemption_requested
    from hostmesh.worker.process.freed_memory import keep_freed_memory as keep_freed_memory
    from hostmesh.worker.recording.recorder import phase as phase
    from hostmesh.worker.sources import as_stream as as_stream
    from hostmesh.worker.sources import open_source as open_source
    from hostmesh.worker.streams.stream import Stream as Stream
    from hostmesh.worker.text.packing import pack as pack
    from hostmesh.worker.text.windows import windows as windows

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "launcher")):
    # This is the copy that a process was sent: a script that launches something itself uses the installed launcher.
    from pkgutil import extend_path

    __path__ = extend_path(__path__, __name__)

_MODULES = {
    "Checkpoint": "checkpoint",
    "Identity": "identity",
    "Lengths": "loading.lengths",
    "Loader": "loading.loader",
    "Order": "ordering.order",
    "Placement": "placement",
    "Stream": "streams.stream",
    "as_stream": "sources",
    "check": "guard.check",
    "concatenate": "mixing.joined",
    "crop_images": "images.crops",
    "flush_report": "metrics",
    "handle_preemption": "preemption",
    "join": "distributed",
    "keep_freed_memory": "process.freed_memory",
    "load_array": "load_array",
    "make_mesh": "mesh",
    "mix": "mixing.mixture",
    "open_source": "sources",
    "pack": "text.packing",
    "phase": "recording.recorder",
    "preemption_requested": "preemption",
    "report": "metrics",
    "windows": "text.windows",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hostmesh' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hostmesh.worker.{_MODULES[name]}"), name)
