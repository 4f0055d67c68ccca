"""The stacks of all processes of a run, for whoever asks, while the processes go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.control.asking import Reply
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState

# Agents wait a second for a process that does not dump its stacks; then over a slow link.
TIMEOUT = 8.0


@dataclass
class Request:
    reply: Reply
    awaited: set[int]  # processes of which nothing has come
    until: float


class StackRequests:
    def __init__(self, state: RunState, channels: Mapping[int, Channel], inbox: Inbox) -> None:
        self._state, self._channels, self._inbox = state, channels, inbox
        self._requests: list[Request] = []

    def begin(self, reply: Reply) -> None:
        running = self._state.started - self._state.exits.keys()
        if not running:
            reply.send(error="no process runs now")
            reply.end()
            return
        for host in self._state.with_agent:
            self._channels[host.number].send(wire.Examine())
        self._requests.append(Request(reply, set(running), self._inbox.now() + TIMEOUT))

    def note_examined(self, host: HostState, event: wire.Examined) -> None:
        for request in self._requests:
            if event.process_id in request.awaited:
                request.awaited.remove(event.process_id)
                stacks = event.data.decode(errors="replace")
                known = {"process_id": event.process_id, "host": host.name, "found": event.found}
                request.reply.send(**known, stacks=stacks)
        self.keep_time()

    def forget(self, reply: Reply) -> None:
        self._requests = [request for request in self._requests if request.reply is not reply]

    def keep_time(self) -> None:
        """Ends those that have all they wait for, or have waited long enough."""
        gone = self._state.exits.keys() | self._state.lost_processes
        for request in list(self._requests):
            if request.awaited <= gone or self._inbox.now() > request.until:
                request.reply.send(missing=sorted(request.awaited))
                request.reply.end()
                self._requests.remove(request)
