"""The seam between the launcher and an engine, which owns the hosts of a cluster and hands them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

# Takes a line for the user: what an engine waits for, in its own words.
Note = Callable[[str], None]


class Engine(Protocol):
    name: str  # as users know it: `Kubernetes`

    def acquire(self) -> None:
        """Asks for the hosts and waits for them, telling why it waits. Raises a HostmeshError when there are none to
        be had. What was asked for until then, `release` gives back."""

    def explain(self, host_name: str) -> str | None:
        """Why the engine took a host away, in its own words; None where it did not, or says nothing. It may take
        seconds, so nobody waits for it who has something else to do."""

    def release(self) -> None:
        """Gives back all that was asked for, and returns within seconds. Raises nothing."""

    def describe(self) -> dict[str, Any]:
        """For engine.json in the run's folder, by which others find what to end."""
