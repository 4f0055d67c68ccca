"""Optional packages: imported when something of theirs is opened, named with their extra where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from hostmesh.worker.errors import MissingPackageError


def load(module: str, package: str, extra: str, wanted_by: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        how = f"pip install 'hostmesh[{extra}]'"
        raise MissingPackageError(f"{wanted_by} needs {package}: {how} ({error})") from error
