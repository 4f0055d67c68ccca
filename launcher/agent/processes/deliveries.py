"""What processes tell of the steps they have delivered, held back: a later word of a stretch replaces those before."""

from __future__ import annotations

import glob
import os
import time
from typing import Any, Callable, Dict, Tuple

from hostmesh.launcher.agent.files import read_if_there, remove_file
from hostmesh.launcher.protocol import wire
from hostmesh.worker.audit.last_word import read_last_word

DELIVERED = "delivered"
# Seconds between two words of a process that are passed on, and the share of its time so far that they grow to: a run
# of weeks has some hundred lines of each process.
PASS_EVERY = 5.0
SHARE = 0.01
# A process may say anything; what it says of more loaders than that is passed on at once.
MAX_HELD = 64


class Deliveries:
    """A process that may go on from every step tells every step, and may be killed after any: its agent has it all."""

    def __init__(self, folder: str, send: Callable[[Any], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._send, self._clock = folder, send, clock
        self._held: Dict[int, Dict[Any, Dict[str, Any]]] = {}  # by process, then by loader
        self._times: Dict[int, Tuple[float, float]] = {}  # by process: of its first word, and of the next to pass on

    def add(self, process_id: int, detail: Dict[str, Any]) -> None:
        is_urgent = bool(detail.pop("now", False))
        held = self._held.setdefault(process_id, {})
        loader = detail["loader"]
        before = held.pop(loader, None)
        if before is not None and before.get("stretch") != detail.get("stretch"):
            self._send(wire.Fact(DELIVERED, process_id, before))
        elif before is not None and before["last"] > detail["last"]:
            detail = before
        held[loader] = detail
        now = self._clock()
        began, due = self._times.setdefault(process_id, (now, now))
        if is_urgent or now >= due or len(held) > MAX_HELD:
            self._times[process_id] = began, now + max(PASS_EVERY, SHARE * (now - began))
            self._pass_held(process_id)

    def pass_on(self, process_id: int) -> None:
        """The process has ended: what is held of it, and what it wrote for its agent, are its last words."""
        for path in glob.glob(os.path.join(glob.escape(self._folder), f"last-word-{process_id}-*")):
            try:
                if word := read_last_word(read_if_there(path)):
                    self.add(process_id, word)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                pass  # any process of the run may write there, in any way it likes
            remove_file(path)
        self._pass_held(process_id)
        self._times.pop(process_id, None)

    def _pass_held(self, process_id: int) -> None:
        for detail in self._held.pop(process_id, {}).values():
            self._send(wire.Fact(DELIVERED, process_id, detail))
