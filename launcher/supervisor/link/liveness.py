"""Which hosts have been silent for too long, and whether the launcher itself was away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.state.host import HostState

COUNT_EVERY = 0.2
# Seconds for an agent to say hello on a host that is connected; all of them get their source from one launcher.
HELLO_TIMEOUT, HELLO_TIMEOUT_PER_HOST = 45.0, 0.1
# A wait that took longer than this was not the hosts' silence: the launcher itself was suspended.
MAX_WAIT = 1.0


@dataclass
class Liveness:
    """`lease` is for hosts that have an agent."""

    hosts: Sequence[HostState]
    channels: Mapping[int, Channel]
    lease: float = math.inf
    uncounted: float = 0.0

    def count(self, seconds: float) -> list[tuple[HostState, float]]:
        """Hosts whose time is over, and how long it was. `seconds` are what the launcher has just waited.

        Not at every event: a thousand agents beat a thousand times a second.
        """
        self.uncounted += min(seconds, MAX_WAIT)
        if self.uncounted < COUNT_EVERY:
            return []
        seconds, self.uncounted = self.uncounted, 0.0
        return [(host, limit) for host in self.hosts if (limit := self._find_limit(host, seconds)) is not None]

    def _find_limit(self, host: HostState, seconds: float) -> float | None:
        channel = self.channels[host.number]
        if channel.is_open:  # a transport that is still connecting has a limit of its own
            # Before its hello a host may print what it likes: it is no sign of an agent.
            host.silence.count(channel.chunks if host.has_agent else 0, seconds)
        limit = self.lease if host.has_agent else HELLO_TIMEOUT + HELLO_TIMEOUT_PER_HOST * len(self.hosts)
        return limit if host.silence.seconds > limit and not host.is_gone else None


class Absence:
    """Agents end their processes after a lease without a word of the launcher: no host is to blame for that."""

    def __init__(self, inbox: Inbox, lease: float, margin: float) -> None:
        """`margin` is how much later than a lease the end of such an agent may be heard of."""
        self._inbox, self._lease, self._margin = inbox, lease, margin
        self._looked = inbox.awake_or_not()
        self._until = 0.0
        self.seconds = 0.0

    def look(self, share: float) -> bool:
        """Whether the launcher was away for this share of a lease since it last looked."""
        now = self._inbox.awake_or_not()
        gap, self._looked = now - self._looked, now
        if gap <= share * self._lease:
            return False
        self.seconds, self._until = gap, now
        return True

    @property
    def explains_a_loss(self) -> bool:
        """Within a lease after the launcher came back."""
        return bool(self.seconds) and self._looked - self._until <= self._lease + self._margin
