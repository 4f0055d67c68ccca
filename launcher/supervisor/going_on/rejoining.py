"""Hosts that are gone are connected again: for the attempt that waits for them, or to be there for the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping

from hostmesh.launcher.supervisor.link.channel import Channel, close_channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.startup.machine import Startup
from hostmesh.launcher.supervisor.state.host import HostState, Phase
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.transports.base import LOST_TIMEOUT, Stream

# Seconds until a host is tried again, from the first time on; while a start waits for it, it is tried more often.
WARNED_PAUSE = 30.0  # for a host that was to be taken away
FIRST_PAUSE, MAX_PAUSE, MAX_PAUSE_AWAITED = 0.25, 60.0, 4.0

Open = Callable[[int, int], Stream]  # to a host, by its number, for its agent of this life


class Rejoining:
    """`connect` makes a channel of a stream. `is_here` says that hosts are this machine, which nobody takes away."""

    def __init__(
        self,
        state: RunState,
        channels: MutableMapping[int, Channel],
        startup: Startup,
        records: Records,
        inbox: Inbox,
        open_stream: Open,
        connect: Callable[[int, Stream, int], Channel],
        is_here: bool,
    ) -> None:
        self._state, self._channels, self._startup = state, channels, startup
        self._records, self._inbox = records, inbox
        self._open, self._connect = open_stream, connect
        self._is_here = is_here
        self._pauses: dict[int, float] = {}
        self._next_at: dict[int, float] = {}
        self._closing: list[threading.Thread] = []

    def look(self) -> None:
        """A host whose processes are still part of an attempt stays lost until that has ended."""
        now = self._inbox.now()
        for host in tuple(self._state.troubled):
            if host.phase is Phase.READY:
                self._pauses.pop(host.number, None)
                self._next_at.pop(host.number, None)
            elif host.phase in (Phase.LOST, Phase.UNREACHABLE) and not (host.has_seat and self._state.spawned):
                self._look_at(host, now)

    def _look_at(self, host: HostState, now: float) -> None:
        if host.number not in self._next_at:
            first = WARNED_PAUSE if host.notice and not self._is_here else FIRST_PAUSE
            pause = self._pauses.get(host.number, first)
            longest = MAX_PAUSE_AWAITED if now < self._state.rejoin_until else MAX_PAUSE
            self._pauses[host.number] = min(2 * pause, longest)
            self._next_at[host.number] = now + pause
        elif now >= self._next_at[host.number]:
            del self._next_at[host.number]
            self._connect_again(host)

    def _connect_again(self, host: HostState) -> None:
        old = self._channels[host.number]
        closing = threading.Thread(target=close_channel, args=(old, LOST_TIMEOUT), daemon=True)
        closing.start()
        self._closing.append(closing)
        self._state.connect_again(host)
        if host.has_seat and self._state.starts_together:
            self._startup.begin_apart()
        self._records.tell("host is connected again", host=host.name, life=host.life)
        stream = self._open(host.number, host.life)
        self._channels[host.number] = self._connect(host.number, stream, host.life)

    def finish(self, timeout: float) -> None:
        """What earlier agents have left on this machine is cleaned up by then."""
        deadline = self._inbox.now() + timeout
        for closing in self._closing:
            closing.join(max(0.0, deadline - self._inbox.now()))
