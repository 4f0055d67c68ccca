"""The supervisor's end of what is asked of a run: most runs are never asked, and load none of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.supervisor.control.asking import Ask, Left
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.control.answers import Answers


@dataclass
class Control:
    """What the answers are made from, and the answers themselves once somebody has asked."""

    plan: Plan
    state: RunState
    channels: Mapping[int, Channel]
    records: Records
    inbox: Inbox
    secrets: Mapping[str, str]
    _answers: Answers | None = field(default=None, init=False)

    @property
    def env(self) -> dict[str, str]:
        """What processes of the run have in their environment."""
        return {**self.plan.env, **self.secrets}

    def note(self, entry: Ask | Left) -> None:
        if self._answers is None:
            from hostmesh.launcher.supervisor.control.answers import Answers

            self._answers = Answers(self)
        self._answers.note(entry)

    def note_event(self, host: HostState, event: Any) -> bool:
        """Whether the event was only for somebody who had asked."""
        return self._answers is not None and self._answers.note_event(host, event)

    def keep_time(self) -> None:
        if self._answers is not None:
            self._answers.keep_time()
