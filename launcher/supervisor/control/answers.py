"""The supervisor's answers to what is asked of a run: how it stands, its stacks, a command on its hosts, its end."""

from __future__ import annotations

import signal
from typing import Any

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.control.asking import Ask, Left, Reply
from hostmesh.launcher.supervisor.control.commands import Commands
from hostmesh.launcher.supervisor.control.control import Control
from hostmesh.launcher.supervisor.control.stacks import StackRequests
from hostmesh.launcher.supervisor.control.status import describe_status
from hostmesh.launcher.supervisor.interrupts import Interrupt
from hostmesh.launcher.supervisor.state.host import HostState


class Answers:
    """Only the thread of the supervisor calls this."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._stacks = StackRequests(control.state, control.channels, control.inbox)
        self._commands = Commands(control.plan.cluster.workdir, control.env, control.state, control.channels)

    def note(self, entry: Ask | Left) -> None:
        match entry:
            case Left(reply):
                self._stacks.forget(reply)
                self._commands.cancel(reply)
            case Ask(question, reply):
                self._answer(question, reply)

    def note_event(self, host: HostState, event: Any) -> bool:
        """Whether the event was an answer to a command of a user."""
        if isinstance(event, wire.Examined):
            self._stacks.note_examined(host, event)
            return False  # the run itself may have asked
        return self._commands.note_event(host, event)

    def keep_time(self) -> None:
        self._stacks.keep_time()
        self._commands.keep_time()

    def _answer(self, question: dict[str, Any], reply: Reply) -> None:
        match question.get("ask"):
            case "status":
                reply.send(**describe_status(self._control.state, self._control.records.run.id))
                reply.end()
            case "stop":
                self._stop(bool(question.get("now")))
                reply.send(stopping=True)
                reply.end()
            case "stacks":
                self._stacks.begin(reply)
            case "exec":
                self._commands.begin(question, reply)
            case other:
                reply.send(error=f"this run does not know {other!r}: it was started by another version")
                reply.end()

    def _stop(self, now: bool) -> None:
        """As if SIGTERM had come: a job that can save saves."""
        for _ in range(2 if now else 1):
            self._control.inbox.put(Interrupt(signal.SIGTERM))
