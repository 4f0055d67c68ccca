"""Commands that a user runs on the hosts of a run, beside its processes."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.control.asking import Reply
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState


@dataclass
class Request:
    reply: Reply
    left: dict[int, HostState]  # hosts on which it has not ended, by the number of the host


class Commands:
    """Each has a number, which is the same on all of its hosts."""

    def __init__(
        self, workdir: str | None, env: Mapping[str, str], state: RunState, channels: Mapping[int, Channel]
    ) -> None:
        self._workdir, self._env, self._state, self._channels = workdir, dict(env), state, channels
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count(1)

    def begin(self, question: Mapping[str, Any], reply: Reply) -> None:
        argv, wanted = question.get("argv"), question.get("hosts")
        hosts = [host for host in self._state.with_agent if wanted is None or host.name in wanted]
        unknown = sorted(set(wanted or ()) - {host.name for host in hosts})
        if problem := find_problem(argv, hosts, unknown, self._state):
            reply.send(error=problem)
            reply.end()
            return
        assert isinstance(argv, list)
        number = next(self._numbers)
        self._requests[number] = Request(reply, {host.number: host for host in hosts})
        reply.send(hosts=[host.name for host in hosts])
        for host in hosts:
            self._channels[host.number].send(wire.Execute(number, argv, self._workdir, self._env))

    def note_event(self, host: HostState, event: Any) -> bool:
        match event:
            case wire.Printed():
                if (request := self._requests.get(event.number)) is not None:
                    request.reply.send(host=host.name, data=base64.b64encode(event.data).decode())
            case wire.Executed():
                self._note_end(event.number, host, {"code": event.code})
            case _:
                return False
        return True

    def keep_time(self) -> None:
        """A host that is lost will say nothing more."""
        for number, request in list(self._requests.items()):
            for host in [each for each in request.left.values() if not each.has_agent]:
                self._note_end(number, host, {"lost": True})

    def cancel(self, reply: Reply) -> None:
        """Who asked has gone: nothing of it may stay on the hosts."""
        for number, request in list(self._requests.items()):
            if request.reply is reply:
                for host in request.left.values():
                    self._channels[host.number].send(wire.CancelExecute(number))
                del self._requests[number]

    def _note_end(self, number: int, host: HostState, how: dict[str, Any]) -> None:
        request = self._requests.get(number)
        if request is None or request.left.pop(host.number, None) is None:
            return
        request.reply.send(host=host.name, **how)
        if not request.left:
            request.reply.end()
            del self._requests[number]


def find_problem(argv: Any, hosts: list[HostState], unknown: list[str], state: RunState) -> str | None:
    if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
        return "found no command"
    if unknown:
        names = ", ".join(host.name for host in state.with_agent)
        return f"found no host {', '.join(unknown)} in this run, wanted one of {names or 'none'}"
    return None if hosts else "no host of this run has an agent now"
