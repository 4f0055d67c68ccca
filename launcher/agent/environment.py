"""Why a program does not start, where that is its environment and not the program."""

from __future__ import annotations

import errno
import os
from typing import List, Mapping

LARGEST_SHOWN = 3


def explain_start(error: OSError, env: Mapping[str, str]) -> str:
    """Names and sizes only: a value may be a secret."""
    if error.errno != errno.E2BIG:
        return error.strerror or str(error)
    sizes = {name: len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in env.items()}
    largest: List[str] = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST_SHOWN]
    shown = ", ".join(f"{name} with {sizes[name]:,} bytes" for name in largest)
    return f"its environment of {sum(sizes.values()):,} bytes is too large for Linux; the largest are {shown}"
