"""Where a host keeps compiled programs, and where process 0 notes which of them it has used."""

from __future__ import annotations

import os
from typing import Mapping


def find_base(env: Mapping[str, str]) -> str:
    """As the XDG rules have it: a relative XDG_CACHE_HOME does not count."""
    cache = env.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = env.get("HOME", "")
        cache = os.path.join(home if os.path.isabs(home) else os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "hostmesh", "compiled")


def used_path(folder: str) -> str:
    return os.path.join(folder, "compiled-used")
