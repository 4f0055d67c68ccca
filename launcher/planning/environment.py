"""Refuses an environment that Linux gives to no process, before any host is contacted."""

from __future__ import annotations

from collections.abc import Mapping

from hostmesh.launcher.errors import UsageError

# Bytes of `NAME=value` and the zero byte at its end: MAX_ARG_STRLEN of Linux, whatever ulimit says.
MAX_VARIABLE = 128 << 10


def check_environment(env: Mapping[str, str]) -> None:
    """The message has names and sizes only: a value may be a secret."""
    sizes = {name: len(f"{name}={value}".encode("utf-8", "surrogateescape")) + 1 for name, value in env.items()}
    too_long = [f"{name} with {size:,} bytes" for name, size in sizes.items() if size > MAX_VARIABLE]
    if too_long:
        raise UsageError(
            f"the environment is too large: found {', '.join(too_long)}, and Linux takes {MAX_VARIABLE:,} for a "
            "variable and its name; put the value into a file that the hosts can read, and its path into the variable"
        )
