"""The supervisor's end of what is asked of a run: most runs are never asked, and load none of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.plan import Plan
from hostmesh.launcher.supervisor.control.asking import Ask, Left
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.control.answers import Answers


class Control:
    def __init__(
        self,
        plan: Plan,
        state: RunState,
        channels: Mapping[int, Channel],
        records: Records,
        inbox: Inbox,
        secrets: Mapping[str, str],
    ) -> None:
        self._plan, self._state, self._channels, self._records = plan, state, channels, records
        self._inbox, self._secrets = inbox, secrets
        self._answers: Answers | None = None

    def note(self, entry: Ask | Left) -> None:
        if self._answers is None:
            from hostmesh.launcher.supervisor.control.answers import Answers

            env = {**self._plan.env, **self._secrets}
            self._answers = Answers(self._plan, self._state, self._channels, self._records, self._inbox, env)
        self._answers.note(entry)

    def note_event(self, host: HostState, event: Any) -> bool:
        """Whether the event was only for somebody who had asked."""
        return self._answers is not None and self._answers.note_event(host, event)

    def keep_time(self) -> None:
        if self._answers is not None:
            self._answers.keep_time()
