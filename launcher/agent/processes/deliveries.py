"""What processes tell of the steps they have delivered, held back: a later word of a stretch replaces those before."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Tuple

from hostmesh.launcher import wire

DELIVERED = "delivered"
# Seconds between two words of a process that are passed on, and the share of its time so far that they grow to: a run
# of weeks has some hundred lines of each process.
PASS_EVERY = 5.0
SHARE = 0.01
# A process may say anything; what it says of more loaders than that is passed on at once.
MAX_HELD = 64


class Deliveries:
    """A process that may go on from every step tells every step, and may be killed after any: its agent has it all."""

    def __init__(self, send: Callable[[Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._held: Dict[int, Dict[Any, Dict[str, Any]]] = {}  # by process, then by loader
        self._times: Dict[int, Tuple[float, float]] = {}  # by process: of its first word, and of the next to pass on

    def add(self, process_id: int, detail: Dict[str, Any]) -> None:
        is_urgent = bool(detail.pop("now", False))
        held = self._held.setdefault(process_id, {})
        loader = detail["loader"]
        before = held.pop(loader, None)
        if before is not None and before.get("stretch") != detail.get("stretch"):
            self._send(wire.Fact(DELIVERED, process_id, before))
        held[loader] = detail
        now = self._clock()
        began, due = self._times.setdefault(process_id, (now, now))
        if is_urgent or now >= due or len(held) > MAX_HELD:
            self._times[process_id] = began, now + max(PASS_EVERY, SHARE * (now - began))
            self._pass_held(process_id)

    def pass_on(self, process_id: int) -> None:
        """The process has ended: what is held of it is its last word."""
        self._pass_held(process_id)
        self._times.pop(process_id, None)

    def _pass_held(self, process_id: int) -> None:
        for detail in self._held.pop(process_id, {}).values():
            self._send(wire.Fact(DELIVERED, process_id, detail))
