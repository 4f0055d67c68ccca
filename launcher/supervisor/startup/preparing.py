"""What is done on one host that has its code: setup, the workers' Python, a look around."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.state.host import Answer, HostState

if TYPE_CHECKING:
    from hostmesh.launcher.sync.tree import Tree


class Preparing:
    """`env` is what processes get on every host; `tell` takes events of the run, `note` takes lines for the user."""

    def __init__(
        self,
        plan: Plan,
        env: dict[str, str],
        channels: Mapping[int, Channel],
        inbox: Inbox,
        tree: Tree | None,
        tell: Callable[..., object],
        note: Callable[[str], None],
    ) -> None:
        self._plan, self._env, self._channels, self._inbox = plan, env, channels, inbox
        self._tree, self._tell, self._note = tree, tell, note

    def set_up(self, host: HostState) -> None:
        cluster = self._plan.cluster
        if not cluster.setup.run:
            self._prepare(host)
            return
        host.waiting_for = "to be set up"
        order = wire.RunSetup(list(cluster.setup.run), self._setup_key, cluster.workdir, self._env)
        self._channels[host.number].send(order)

    @cached_property
    def _setup_key(self) -> str:
        from hostmesh.launcher.supervisor.startup.setup_key import make_key

        return make_key(self._plan.cluster.setup, self._plan.env, self._tree)

    def note_set_up(self, host: HostState, event: wire.SetupDone) -> None:
        if event.ran:
            self._note(f"launch: set up {host.name} in {event.seconds:.1f} s")
        self._tell("host set up", host=host.name, **event._asdict())
        self._prepare(host)

    def _prepare(self, host: HostState) -> None:
        host.waiting_for = "to be ready"
        cluster, python = self._plan.cluster, self.python_of(host)
        warm, preload = self._plan.is_warm(cluster.hosts[host.number]), list(cluster.preload)
        later = cluster.goes_on and not warm and self._plan.can_be_warm
        order = wire.PrepareWorkers(python, cluster.workdir, self._env, warm, preload, later)
        self._channels[host.number].send(order)
        if (watch := cluster.preemption) is not None:
            self._channels[host.number].send(wire.WatchNotices(watch.file, watch.command, watch.every))
        # CPU processes on this machine need no inspection: it would cost a tenth of their start.
        if cluster.transport != "local" or self._plan.env.get("JAX_PLATFORMS") != "cpu":
            host.owed.add(Answer.FACTS)
            self._inspect(host, [], thorough=False)

    def look_around(self, host: HostState) -> None:
        """For a check: also whether it can resolve what the hosts call each other, where that is not a number."""
        inner = [host.internal_address for host in self._plan.cluster.hosts if host.internal_address]
        self._inspect(host, [name for name in inner if not is_number(name)], thorough=True)

    def _inspect(self, host: HostState, names: list[str], thorough: bool) -> None:
        host.inspected_at = self._inbox.wall_clock()
        order = wire.Inspect(self.python_of(host), self._plan.cluster.workdir, self._env, names, thorough)
        self._channels[host.number].send(order)

    def python_of(self, host: HostState) -> str:
        return self._plan.cluster.hosts[host.number].python or default_python(self._plan.cluster.transport)


def default_python(transport: str) -> str:
    return sys.executable if transport == "local" else "python3"


def is_number(address: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
