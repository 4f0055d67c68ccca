"""From agents that say hello to hosts on which processes can start, or, for a check, to hosts that were inspected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.planning.plan import Plan
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.startup.coordinator import Coordinator
from hostmesh.launcher.supervisor.startup.port import CoordinatorPort
from hostmesh.launcher.supervisor.startup.preparing import Preparing
from hostmesh.launcher.supervisor.state.host import Answer, HostState, Phase, Silence
from hostmesh.launcher.supervisor.state.run_state import RunState

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.startup.code_sender import CodeSender
    from hostmesh.launcher.supervisor.startup.judgement import Judgement
    from hostmesh.launcher.sync.tree import Tree


class Startup:
    """Hears what agents answer and tells them what to do next.

    A run does nothing on a host before all hosts that take part have an agent, and judges them together when all are
    prepared. A host that comes later, or that is a spare, is prepared and judged by itself. A `thorough` start-up is
    that of a check: it inspects each host as soon as that has an agent, prepares none for processes, and leaves the
    judgement to its caller.
    """

    def __init__(
        self,
        plan: Plan,
        state: RunState,
        channels: Mapping[int, Channel],
        inbox: Inbox,
        *,
        secrets: Mapping[str, str] | None = None,
        pack_code: Callable[[], bytes] = bytes,
        tree: Tree | None = None,
        tell: Callable[..., object] = lambda *_, **__: None,
        note: Callable[[str], None] = lambda _: None,
        thorough: bool = False,
    ) -> None:
        """`tell` takes events of the run, `note` takes lines for the user."""
        self._plan, self._state, self._channels, self._inbox = plan, state, channels, inbox
        self._env = {**plan.env, **(secrets or {})}
        self._tell, self._note, self._thorough = tell, note, thorough
        self._preparing = Preparing(plan, self._env, channels, inbox, tree, tell, note)
        self._port = CoordinatorPort(plan.cluster, state, channels, self._note_answer, thorough)
        self._pack_code = pack_code
        self._code: bytes | None = None
        self._sender = self._make_sender(tree) if tree is not None else None

    def pack(self) -> bytes:
        """The workers' code as it is sent."""
        if self._code is None:
            self._code = wire.encode(wire.Code(self._pack_code()))
        return self._code

    def note_event(self, host: HostState, event: Any) -> None:
        match event:
            case wire.Hello():
                self._greet(host, event)
            case wire.FilesNeeded() if self._sender is not None:
                self._sender.send_wanted(host, event.numbers)
            case wire.BytesStored():
                self._channels[host.number].note_taken(event.size)
            case wire.Synced() if self._sender is not None:
                self._sender.note_synced(host, event)
                self._preparing.set_up(host)
            case wire.SetupDone():
                self._preparing.note_set_up(host, event)
            case wire.Ready():
                self._tell("host ready", host=host.name, python=event.python)
                self._note_answer(host, Answer.PYTHON)
            case wire.Inspected():
                self._note_facts(host, event.found)
            case wire.Reserved():
                self._port.note_reserved(host, event.ports)
                self._choose_address()
            case wire.Reached():
                self._port.note_reached(host, event.problems)
                self._choose_address()
            case wire.Refused():
                self._refuse_as_told(host, event)
            case _ if self._sender is not None:
                self._sender.note_event(host, event)

    def refuse(self, host: HostState, problem: str) -> None:
        from hostmesh.launcher.supervisor.startup.remedies import find_remedies

        problem = "\n".join([problem, *find_remedies(problem)])
        self._state.refuse(host, problem, self._inbox.now())
        self._tell("host refused", host=host.name, problem=problem)
        if not self._thorough and (self._state.spawned or not host.has_seat):
            self._note(f"launch: {host.name} cannot take part: {problem}")
        self._excuse_from_port(host)

    def _refuse_as_told(self, host: HostState, event: wire.Refused) -> None:
        from hostmesh.launcher.supervisor.startup.remedies import explain_refusal

        self.refuse(host, explain_refusal(event))

    def lose(self, host: HostState, why: str, said: str) -> None:
        """For a host whose agent never started, or, in a check, has not told what it found."""
        from hostmesh.launcher.supervisor.startup.remedies import explain_no_agent

        self.give_up(host, explain_no_agent(why, said, self._plan.cluster.agent_python))

    def give_up(self, host: HostState, problem: str) -> None:
        self._state.give_up(host, problem)
        self._tell("host unreachable", host=host.name, problem=problem)
        self._excuse_from_port(host)

    def _make_sender(self, tree: Tree) -> CodeSender:
        from hostmesh.launcher.supervisor.startup.code_sender import CodeSender

        return CodeSender(self._plan, self._state, self._channels, tree, self.refuse, self._tell, self._note)

    # One host.

    def _greet(self, host: HostState, hello: wire.Hello) -> None:
        host.phase, host.silence, host.waiting_for = Phase.GREETED, Silence(), ""
        host.addresses = tuple(hello.addresses)
        self._tell("host connected", host=host.name, agent_pid=hello.pid, guardian_pid=hello.guardian_pid)
        self._send(host, wire.Lease(self._plan.cluster.lease))
        if self._is_first(host) and (self.coordinator.needs_trial or not self._thorough):
            self._port.reserve()
        for each in self._find_next(host):
            self._begin(each)

    def _find_next(self, greeted: HostState) -> Sequence[HostState]:
        """Hosts on which something can be done now: a missing one leaves the others of a run alone."""
        if not self._is_together(greeted):
            return (greeted,)
        hosts = self._state.members
        return hosts if all(host.phase is Phase.GREETED for host in hosts) else ()

    def _is_together(self, host: HostState) -> bool:
        """Whether it is made ready with the others."""
        return not self._thorough and self._state.starts_together and host.has_seat

    def _is_first(self, host: HostState) -> bool:
        """Whether the coordinator will be there; where hosts come one by one, that is agreed on when all are ready."""
        return host is self._port.first and (self._thorough or self._state.starts_together)

    def _begin(self, host: HostState) -> None:
        host.phase, host.owed = Phase.PREPARING, self._list_owed(host)
        if self._is_first(host):
            self._port.note_held()
        elif Answer.PORT in host.owed:
            self._port.try_from(host)
        if self._thorough:
            self._preparing.look_around(host)
        elif self._sender is None:
            self._channels[host.number].send_encoded(self.pack())
            self._preparing.set_up(host)
        else:
            self._sender.begin(host)
            # After it: a process of its own on the host is busy with the sync.
            self._channels[host.number].send_encoded(self.pack())

    def _list_owed(self, host: HostState) -> set[Answer]:
        """In a check nobody waits for the first host's port, and without that host nobody can try it."""
        if self._is_together(host):
            return {Answer.PYTHON, *([Answer.PORT] if self._is_first(host) or self.coordinator.needs_trial else [])}
        if not self._thorough:
            return {Answer.PYTHON}
        can_try = host.number > 0 and self.coordinator.needs_trial and not self._port.is_lost
        return {Answer.FACTS, *([Answer.PORT] if can_try else [])}

    def _note_facts(self, host: HostState, facts: dict[str, Any]) -> None:
        from hostmesh.launcher.preflight.host_reports import measure_offset

        host.clock_offset = measure_offset(facts["time"], host.inspected_at, self._inbox.wall_clock())
        host.facts = facts
        self._note_answer(host, Answer.FACTS)

    # The coordinator's port.

    @property
    def coordinator(self) -> Coordinator:
        return self._port.coordinator

    def assemble(self) -> None:
        """For a later attempt: all hosts are ready, and agree on the coordinator's port."""
        self._state.is_assembling = True
        self._port.assemble()

    def _choose_address(self) -> None:
        """In a later attempt; the hosts of the first are judged in all respects at once."""
        if not self._state.is_assembling or not self.coordinator.is_chosen:
            return
        for number, problem in self.coordinator.problems().items():
            self.refuse(self._state.hosts[number], problem)
        if (place := self.coordinator.place) is not None:
            self._make_judgement(self._state.members).bypass_proxies(place[0])
            self._state.coordinator = place

    def _excuse_from_port(self, host: HostState) -> None:
        """In a check, where the others are inspected all the same."""
        if self._thorough and host.number == 0:
            for other in self._state.hosts[1:]:
                if other.phase is Phase.PREPARING:
                    self._note_answer(other, Answer.PORT)

    # All hosts.

    def _note_answer(self, host: HostState, answer: Answer) -> None:
        """The last answer of all makes a run judge its hosts together."""
        host.owed.discard(answer)
        if not host.owed:
            host.waiting_for = ""
        elif host.owed == {Answer.FACTS}:
            host.waiting_for = f"to answer: its Python {self._preparing.python_of(host)} has yet to start"
        if host.phase is not Phase.PREPARING:
            return
        if self._is_together(host):
            if all(each.phase is Phase.PREPARING and not each.owed for each in self._state.members):
                self._judge_all()
        elif not host.owed:
            self._judge_one(host)

    def begin_apart(self) -> None:
        """Hosts that were to be made ready together are so one by one from now on."""
        self._state.starts_together = False
        for host in self._state.members:
            host.owed.discard(Answer.PORT)
            if host.phase is Phase.GREETED:
                self._begin(host)
            elif host.phase is Phase.PREPARING and not host.owed:
                self._judge_one(host)

    def _judge_all(self) -> None:
        self._make_judgement(self._state.members).judge(self.coordinator)
        self._state.coordinator = self.coordinator.place
        self._port.note_tried()
        if not self._state.refused:
            for host in self._state.members:
                self._note_ready(host)
        for host in self._state.hosts:
            if host.phase is Phase.PREPARING and not host.owed:
                self._judge_one(host)

    def _judge_one(self, host: HostState) -> None:
        """A spare waits until those are judged with whom it is to agree."""
        if self._thorough:
            host.phase = Phase.READY
        elif not (self._state.starts_together and self._state.coordinator is None):
            self._make_judgement([host]).judge()
            if not host.refusals:
                self._note_ready(host)

    def _note_ready(self, host: HostState) -> None:
        host.phase, host.ready_at = Phase.READY, self._inbox.now()

    def _make_judgement(self, judged: Sequence[HostState]) -> Judgement:
        from hostmesh.launcher.supervisor.startup.judgement import Judgement

        return Judgement(self._plan, self._state.hosts, judged, self._env, self.refuse, self._note, self._tell)

    def _send(self, host: HostState, message: Any) -> None:
        self._channels[host.number].send(message)
