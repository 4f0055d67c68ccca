"""Files in memory, without a name by which one could be left behind. Without jax: data processes use it too."""

from __future__ import annotations

import os

from hostmesh.worker.errors import DataError


def create_file(label: str) -> int:
    """The label is shown in the system's lists only."""
    if not hasattr(os, "memfd_create"):
        raise DataError("processes= needs Linux; use workers=N")
    return os.memfd_create(label)
