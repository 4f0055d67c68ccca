"""Where a host keeps compiled programs, and where process 0 notes which of them it has used."""

from __future__ import annotations

import os
from typing import Mapping

from hostmesh.launcher.agent.files import find_cache


def find_base(env: Mapping[str, str]) -> str:
    return os.path.join(find_cache(env), "compiled")


def used_path(folder: str) -> str:
    return os.path.join(folder, "compiled-used")
