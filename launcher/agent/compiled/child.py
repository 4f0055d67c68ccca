"""A process that reads and stores compiled programs, so that a disk that does not answer does not silence the agent."""

from __future__ import annotations

import os
import selectors
import socket
from typing import Any, Callable, Optional

from hostmesh.launcher.agent.children.child_link import ChildLink
from hostmesh.launcher.agent.children.fresh_child import leave_parent, leave_stream
from hostmesh.launcher.protocol import wire

# Seconds between two looks at what process 0 has used.
LOOK_EVERY = 2.0
# The launcher waits for an answer before it sends the next piece; one that sends more than this is not heard.
MAX_WAITING = 16 << 20
# Whoever trains goes first.
NICENESS = 10


class CompiledChild:
    """The agent's end: messages go in, answers go to the launcher, and nothing blocks. The first message starts the
    child, and so does the next one after its end."""

    def __init__(
        self, selector: selectors.BaseSelector, send: Callable[[Any], None], base: Callable[[], str], used: str
    ) -> None:
        self._selector, self._send, self._base, self._used = selector, send, base, used
        self._link: Optional[ChildLink] = None

    def obey(self, message: Any) -> None:
        try:
            link = self._link or self._start()
        except OSError:
            return  # the launcher does not wait for ever
        if link.waiting < MAX_WAITING:
            link.give(message)
        self._watch(link)

    def _start(self) -> ChildLink:
        link, agent, base = ChildLink(), os.getpid(), self._base()
        if os.fork() == 0:
            link.socket.close()
            _keep_and_leave(agent, base, self._used, link.theirs)
        link.theirs.close()
        self._link = link
        self._selector.register(link.socket, selectors.EVENT_READ, self._serve)
        return link

    def _serve(self) -> None:
        link = self._link
        if link is None:
            return
        link.flush()
        self._watch(link)
        try:
            data = link.socket.recv(1 << 18)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(link.socket)
            link.socket.close()
            self._link = None
            return
        for answer in link.decoder.feed(data):
            self._send(answer)

    def _watch(self, link: ChildLink) -> None:
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting else 0)
        if self._selector.get_key(link.socket).events != wanted:
            self._selector.modify(link.socket, wanted, self._serve)


def _keep_and_leave(agent: int, base: str, used: str, link: socket.socket) -> None:
    try:
        leave_parent(agent)
        leave_stream()
        os.nice(NICENESS)
        from hostmesh.launcher.agent.compiled.keeper import Keeper

        serve(Keeper(base, used), link)
    finally:
        os._exit(0)


def serve(keeper: Any, link: socket.socket) -> None:
    """Until the agent's end of the link is closed."""
    decoder = wire.Decoder()
    while True:
        answers = []
        link.settimeout(LOOK_EVERY)
        try:
            data = link.recv(1 << 18)
        except socket.timeout:
            answers = keeper.look()
        else:
            if not data:
                return
            answers = [answer for message in decoder.feed(data) for answer in keeper.answer(message)]
        link.settimeout(None)
        for answer in answers:
            link.sendall(wire.encode(answer))
