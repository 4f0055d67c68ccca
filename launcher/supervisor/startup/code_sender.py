"""The code of a run on its way to the hosts: what each of them lacks, file by file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState
from hostmesh.launcher.sync.sending import LeftOut, Sending, Unsendable

if TYPE_CHECKING:
    from hostmesh.launcher.sync.tree import Tree


class CodeSender:
    def __init__(
        self,
        plan: Plan,
        state: RunState,
        channels: Mapping[int, Channel],
        tree: Tree,
        refuse: Callable[[HostState, str], None],
        tell: Callable[..., object],
        note: Callable[[str], None],
    ) -> None:
        self._plan, self._state, self._channels, self._tree = plan, state, channels, tree
        self._refuse, self._tell, self._note = refuse, tell, note
        job = plan.job
        needed = {*filter(None, [job.script, *(job.command or ())]), *job.args}
        self._sending = Sending(tree, needed)

    @cached_property
    def _manifest(self) -> bytes:
        return self._tree.encode()

    def begin(self, host: HostState) -> None:
        """Tells the host what its code is to be; it answers with what it lacks."""
        assert self._plan.cluster.workdir is not None
        host.waiting_for = "to look at its code"
        self._channels[host.number].send(wire.Sync(self._plan.cluster.workdir, self._manifest))

    def send_wanted(self, host: HostState, numbers: list[int]) -> None:
        if numbers:
            host.waiting_for = f"to receive {len(numbers)} files"
        if (problem := self._sending.note_wanted(numbers)) is not None:
            self.note_event(host, problem)
            return
        channel = self._channels[host.number]
        channel.send_pieces(self._sending.pieces(numbers, channel.report))

    def note_synced(self, host: HostState, synced: wire.Synced) -> None:
        host.is_synced = True
        if all(each.is_synced for each in self._state.hosts):
            self._tree.kept.clear()
        self._tell("host synced", host=host.name, code=self._tree.digest, **synced._asdict())

    def note_event(self, host: HostState, event: Any) -> None:
        """What the threads report that read the files. Where others have the code already, a host does without."""
        match event:
            case LeftOut():
                self._note(f"launch: {event.path} was left out: {event.why}")
                self._tell("file left out", path=event.path, why=event.why)
            case Unsendable() if not self._state.starts_together:
                self._refuse(host, event.problem)
            case Unsendable():
                self._state.unsendable = self._state.unsendable or event.problem
