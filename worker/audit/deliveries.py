"""What a loader has handed out, told to the agent: often enough that a killed process leaves no resume point untold."""

from __future__ import annotations

import atexit
import json
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from hostmesh.worker.audit.last_word import LastWord, open_last_word
from hostmesh.worker.audit.used import WORD, Used, sum_hashes
from hostmesh.worker.identity import FACTS_SOCKET, Identity
from hostmesh.worker.process.facts import TIMEOUT, note_dropped, offer_fact

# Seconds of steps after which they are told, and until the next try when the agent is busy.
TELL_EVERY = 1.0
TRY_AGAIN = 0.1
# The agent's socket holds ten messages, and it takes one within a fraction of a millisecond.
WAIT = 0.0005
# Records whose hashes are computed together; a step with fewer than that many counts as if it had them.
COUNT_AT_ONCE, FEW = 1 << 15, 256
# A loader that is iterated or restored more often is not followed any further.
MAX_STRETCHES = 1000


@dataclass
class Stretch:
    """What a loader hands out step after step, since it was made, restored or begun again after its last batch."""

    number: int = -1
    first: int = 1
    last: int = 0
    steps: int = 0
    rows: int = 0
    sum: int = 0
    is_again: bool = False
    restored: int | None = None  # the step whose saved state the program goes on from, if it restored one
    uncounted: dict[int, Used] = field(default_factory=dict)  # by step

    def add(self, step: int, used: Used) -> None:
        self.last = step
        self.steps += 1
        self.rows += len(used)
        self.uncounted[step] = used
        if len(self.uncounted) * max(len(used), FEW) >= COUNT_AT_ONCE:
            self.count()

    def count(self) -> None:
        if self.uncounted:
            self.sum += sum_hashes(list(self.uncounted), list(self.uncounted.values()))
            self.uncounted = {}

    def describe(self) -> dict[str, Any]:
        self.count()
        began = {"again": True} if self.is_again else {}
        restored = {} if self.restored is None else {"restored": self.restored}
        steps = {"stretch": self.number, "first": self.first, "last": self.last, "steps": self.steps}
        return {**steps, "rows": self.rows, "sum": f"{self.sum & WORD:016x}", **began, **restored}


class Ledger:
    """What the loaders of this process have in common; there is one."""

    def __init__(self) -> None:
        self.numbers = count()
        self.first: int | None = None  # the loader that handed out a batch first
        self.untold: dict[int, Deliveries] = {}
        self.kept: dict[int, Deliveries] = {}
        # What was restored and not gone on from yet: for each kind of data the step that the state has seen.
        self.restored: dict[int, int] = {}

    def note_first(self, number: int) -> None:
        if self.first is None:
            self.first = number
            atexit.register(self.tell_all)

    def tell_all(self) -> None:
        for each in list(self.untold.values()):
            each.tell()

    def tell_saved(self) -> None:
        """Before a save that may outlive this host becomes complete."""
        for each in list(self.kept.values()):
            each.tell_at_once()

    def words(self) -> list[dict[str, Any]]:
        """What `tell_saved` has told, to be saved as well: an agent that is stopped, or lost, passes nothing on."""
        return [each.describe() for each in self.kept.values()] if is_wanted() else []

    def describe_saved(self, words: list[list[dict[str, Any]]]) -> dict[str, Any]:
        """The words of all processes, as a save holds them."""
        identity = Identity.from_env()
        return {} if identity is None else {"run": identity.run_id, "attempt": identity.attempt, "words": words}

    def tell_before(self, saved: Mapping[str, Any]) -> None:
        """What a save says that was delivered until then, in an attempt of this run that is over: once more."""
        identity = Identity.from_env()
        if not is_wanted() or identity is None or saved.get("run") != identity.run_id:
            return
        for process_id, words in enumerate(saved["words"]):
            for word in words:
                offer("delivered before", True, {"attempt": saved["attempt"], "process": process_id, "word": word})

    def note_restored(self, step: int, data_spec: Mapping[str, Any]) -> None:
        """A state was restored that has seen so many batches: the loader of that data has to go on with the next."""
        if is_wanted():
            self.restored[hash_spec(data_spec)] = step


LEDGER: Final = Ledger()


class Deliveries:
    """Of one loader. Each message says all of a stretch so far, so a later one replaces those before it.

    A loader tells if its state was ever taken or restored, or if it is the first that handed out a batch: all others
    are for evaluation.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        rows: list[list[int]],
        data_spec: Mapping[str, Any],
        describe_data: Callable[[], Mapping[str, Any]] | None,
        ledger: Ledger = LEDGER,
    ) -> None:
        """`spec` says which records a step has, `rows` which of each batch this process answers for; `describe_data`
        gives what the source is, where this process is to tell that."""
        self._ledger, self._number = ledger, next(ledger.numbers)
        self._about = {"loader": self._number, "rows": rows, "spec": dict(spec)}
        self._describe_data = describe_data
        self._data = hash_spec(data_spec)
        self._stretch = Stretch()
        self._is_introduced = self._begins_again = self._is_behind = False
        self._must_begin = True
        self._due = 0.0
        self._last_word: LastWord | None = None

    def note(self, step: int, used: Used) -> None:
        """A batch is handed out; steps count from 1."""
        stretch = self._stretch
        if self._must_begin or self._data in self._ledger.restored:
            stretch = self._begin(step)
        stretch.add(step, used)
        self._ledger.untold[self._number] = self
        if (now := time.monotonic()) >= self._due:
            self._due = now + (TELL_EVERY if self._tell(wait=False) else TRY_AGAIN)

    def keep(self) -> None:
        """Its state is taken. A run may go on from here, so all of it must be known outside of this process."""
        if self._number not in self._ledger.kept:
            self._ledger.kept[self._number] = self._ledger.untold[self._number] = self
        if self._number not in self._ledger.untold:
            return
        if self._last_word is None:
            self._tell(wait=True)
            self._last_word = open_last_word(self._number) if self._is_introduced else None
        elif not self._last_word.write(self.describe()):
            self._tell(wait=True)

    def tell(self) -> None:
        if self._number in self._ledger.untold:
            self._tell(wait=True)

    def begin_anew(self, step: int, is_again: bool) -> None:
        """The loader goes to just after a step: by `restore`, or again to its start because it was at its end.

        To its start anybody may go, also a loader for evaluation.
        """
        if step > 0:
            self._ledger.kept[self._number] = self
        self.tell()
        self._must_begin, self._begins_again = True, is_again

    def tell_at_once(self) -> None:
        """To the launcher itself, because this host may be lost before its agent would pass it on."""
        self._tell(wait=True, now=True)

    def _begin(self, step: int) -> Stretch:
        self.tell()
        self._ledger.note_first(self._number)
        restored = self._ledger.restored.pop(self._data, None)
        number = self._stretch.number + 1
        self._stretch = Stretch(number, step, step - 1, is_again=self._begins_again, restored=restored)
        self._must_begin = self._begins_again = False
        return self._stretch

    def describe(self) -> dict[str, Any]:
        return {"loader": self._number, **self._stretch.describe(), "kept": self._number in self._ledger.kept}

    def _introduction(self) -> dict[str, Any]:
        data = {} if self._describe_data is None else {"data": self._describe_data()}
        return {**self._about, **data}

    def _tell(self, wait: bool, **more: Any) -> bool:
        """Whether nothing is left to tell."""
        is_followed = self._number in self._ledger.kept or self._number == self._ledger.first
        if is_followed and 0 <= self._stretch.number < MAX_STRETCHES:
            # An agent that did not take it within a second is not waited for again at every step.
            wait = wait and not self._is_behind
            self._is_introduced = self._is_introduced or offer("loading", wait, self._introduction())
            if not (self._is_introduced and offer("delivered", wait, {**self.describe(), **more})):
                self._is_behind = self._is_behind or wait
                return False
            self._is_behind = False
        self._ledger.untold.pop(self._number, None)
        return True


def is_wanted() -> bool:
    """Whether there is anybody to tell."""
    return FACTS_SOCKET in os.environ


def hash_spec(data_spec: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(dict(data_spec), sort_keys=True).encode())


def offer(name: str, wait: bool, detail: Mapping[str, Any]) -> bool:
    """Whether the agent has it. One that is busy is waited for, for a second at most."""
    deadline = time.monotonic() + TIMEOUT
    while not offer_fact(name, **detail):
        if not wait:
            return False
        if time.monotonic() >= deadline:
            note_dropped()
            return False
        time.sleep(WAIT)
    return True
