"""Asks the engine, in a thread of its own, why it took a host away; the verdict waits for that, but not for long."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from hostmesh.launcher.engines.base import Engine
from hostmesh.launcher.output.redact import redact_text
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState

# Seconds that a verdict waits.
TIMEOUT = 3.0


@dataclass(frozen=True)
class Explained:
    """What the engine says about host number `host`, which has had `life` agents; None where that is nothing."""

    host: int
    life: int
    said: str | None


def in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="explain", daemon=True).start()


class Explaining:
    """`begin` starts a piece of work that is not waited for."""

    def __init__(
        self,
        engine: Engine | None,
        state: RunState,
        records: Records,
        inbox: Inbox,
        begin: Callable[[Callable[[], None]], None] = in_background,
    ) -> None:
        self._engine, self._state, self._records, self._inbox = engine, state, records, inbox
        self.begin = begin

    def ask(self, host: HostState) -> None:
        if self._engine is None or host.explained_by > -math.inf:
            return
        host.explained_by = self._inbox.now() + TIMEOUT
        number, life, name, engine = host.number, host.life, host.name, self._engine

        def work() -> None:
            try:
                said = engine.explain(name)
            except Exception:
                said = None  # its word is a help, and no more
            self._inbox.put(Explained(number, life, said))

        self.begin(work)

    def note(self, answer: Explained) -> None:
        """An answer that is late, or about an earlier agent, explains nothing any more."""
        host = self._state.hosts[answer.host]
        if self._engine is None or answer.life != host.life:
            return
        host.explained_by = 0.0
        if answer.said is None:
            return
        said = redact_text(f"{self._engine.name} says: {answer.said}", self._records.run.hidden)
        self._records.tell("host explained", host=host.name, said=said)
        host.problem = f"{host.problem}; {said}" if host.problem else ""
        if host.loss is not None:
            told = replace(
                host.loss, message=f"{host.loss.message}; {said}", evidence=(*host.loss.evidence, said), cause=""
            )
            self._state.last_loss = told if self._state.last_loss is host.loss else self._state.last_loss
            host.loss = told
