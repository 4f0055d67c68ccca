"""From agents that say hello to hosts on which processes can start, or, for a check, to hosts that were inspected."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hostmesh.launcher import wire
from hostmesh.launcher.plan import Plan
from hostmesh.launcher.supervisor.host import Answer, HostState, Phase, Silence
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.run_state import RunState
from hostmesh.launcher.supervisor.startup.coordinator import Coordinator

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.startup.code_sender import CodeSender
    from hostmesh.launcher.sync.tree import Tree


class Startup:
    """Hears what agents answer and tells them what to do next.

    A run does nothing on a host before all hosts have an agent, and judges them together when all are prepared. A
    `thorough` start-up is that of a check: it inspects each host as soon as that has an agent, prepares none for
    processes, and leaves the judgement to its caller.
    """

    def __init__(
        self,
        plan: Plan,
        state: RunState,
        channels: Mapping[int, Channel],
        inbox: Inbox,
        *,
        secrets: Mapping[str, str] | None = None,
        code: bytes = b"",
        tree: Tree | None = None,
        tell: Callable[..., object] = lambda *_, **__: None,
        note: Callable[[str], None] = lambda _: None,
        thorough: bool = False,
    ) -> None:
        """`tell` takes events of the run, `note` takes lines for the user."""
        self.coordinator = Coordinator(plan)
        self._plan, self._state, self._channels, self._inbox = plan, state, channels, inbox
        self._env = {**plan.env, **(secrets or {})}
        self._tree, self._tell, self._note, self._thorough = tree, tell, note, thorough
        self._code = wire.encode(wire.Code(code))
        self._sender = self._make_sender(tree) if tree is not None else None

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
                self._set_up(host)
            case wire.SetupDone():
                self._note_set_up(host, event)
            case wire.Ready():
                self._tell("host ready", host=host.name, python=event.python)
                self._note_answer(host, Answer.PYTHON)
            case wire.Inspected():
                self._note_facts(host, event.found)
            case wire.Reserved():
                self._note_reserved(event.ports)
            case wire.Reached():
                self.coordinator.note_reached(host.number, event.problems)
                host.has_tried_port = True
                self._note_answer(host, Answer.PORT)
            case wire.Refused():
                self.refuse(host, explain_refusal(event))
            case _ if self._sender is not None:
                self._sender.note_event(event)

    def refuse(self, host: HostState, problem: str) -> None:
        from hostmesh.launcher.supervisor.startup.remedies import find_remedies

        problem = "\n".join([problem, *find_remedies(problem)])
        self._state.refuse(host, problem, self._inbox.now())
        self._tell("host refused", host=host.name, problem=problem)
        self._excuse_from_port(host)

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

        return CodeSender(self._plan, self._state, self._channels, tree, self._tell, self._note)

    # One host.

    def _greet(self, host: HostState, hello: wire.Hello) -> None:
        host.phase, host.silence, host.waiting_for = Phase.GREETED, Silence(), ""
        host.addresses = tuple(hello.addresses)
        self._tell("host connected", host=host.name, agent_pid=hello.pid, guardian_pid=hello.guardian_pid)
        self._send(host, wire.Lease(self._plan.cluster.lease))
        if host.number == 0 and (self.coordinator.needs_trial or not self._thorough):
            self._send(host, self.coordinator.reserve(hello.addresses))
        for each in self._find_next(host):
            self._begin(each)

    def _find_next(self, greeted: HostState) -> Sequence[HostState]:
        """Hosts on which something can be done now: a missing one leaves the others of a run alone."""
        if self._thorough:
            return (greeted,)
        hosts = self._state.hosts
        return hosts if all(host.phase is Phase.GREETED for host in hosts) else ()

    def _begin(self, host: HostState) -> None:
        host.phase, host.owed = Phase.PREPARING, self._list_owed(host)
        if host.number == 0:
            self._note_port()
        else:
            self._try_port(host)
        if self._thorough:
            self._inspect(host, self._list_names())
        elif self._sender is None:
            self._channels[host.number].send_encoded(self._code)
            self._set_up(host)
        else:
            self._sender.begin(host)
            # After it: a process of its own on the host is busy with the sync.
            self._channels[host.number].send_encoded(self._code)

    def _list_owed(self, host: HostState) -> set[Answer]:
        """In a check nobody waits for the first host's port, and without that host nobody can try it."""
        if not self._thorough:
            return {Answer.PYTHON, *([Answer.PORT] if host.number == 0 or self.coordinator.needs_trial else [])}
        can_try = host.number > 0 and self.coordinator.needs_trial and not self._has_no_port()
        return {Answer.FACTS, *([Answer.PORT] if can_try else [])}

    def _set_up(self, host: HostState) -> None:
        cluster = self._plan.cluster
        if not cluster.setup.run:
            self._prepare(host)
            return
        host.waiting_for = "to be set up"
        self._send(host, wire.RunSetup(list(cluster.setup.run), self._setup_key, cluster.workdir, self._env))

    @cached_property
    def _setup_key(self) -> str:
        from hostmesh.launcher.supervisor.startup.setup_key import make_key

        return make_key(self._plan.cluster.setup, self._plan.env, self._tree)

    def _note_set_up(self, host: HostState, event: wire.SetupDone) -> None:
        if event.ran:
            self._note(f"launch: set up {host.name} in {event.seconds:.1f} s")
        self._tell("host set up", host=host.name, **event._asdict())
        self._prepare(host)

    def _prepare(self, host: HostState) -> None:
        host.waiting_for = "to be ready"
        cluster = self._plan.cluster
        warm, preload = self._plan.is_warm(cluster.hosts[host.number]), list(cluster.preload)
        later = cluster.restarts > 0 and not warm and self._plan.can_be_warm
        self._send(host, wire.PrepareWorkers(self._python_of(host), cluster.workdir, self._env, warm, preload, later))
        # CPU processes on this machine need no inspection: it would cost a tenth of their start.
        if cluster.transport != "local" or self._plan.env.get("JAX_PLATFORMS") != "cpu":
            host.owed.add(Answer.FACTS)
            self._inspect(host, [])

    def _inspect(self, host: HostState, names: list[str]) -> None:
        host.inspected_at = self._inbox.wall_clock()
        python, workdir = self._python_of(host), self._plan.cluster.workdir
        self._send(host, wire.Inspect(python, workdir, self._env, names, self._thorough))

    def _list_names(self) -> list[str]:
        """What the hosts call each other, where that is not a number."""
        inner = [host.internal_address for host in self._plan.cluster.hosts if host.internal_address]
        return [name for name in inner if not is_number(name)]

    def _python_of(self, host: HostState) -> str:
        return self._plan.cluster.hosts[host.number].python or default_python(self._plan.cluster.transport)

    def _note_facts(self, host: HostState, facts: dict[str, Any]) -> None:
        from hostmesh.launcher.preflight.host_reports import measure_offset

        host.clock_offset = measure_offset(facts["time"], host.inspected_at, self._inbox.wall_clock())
        host.facts = facts
        self._note_answer(host, Answer.FACTS)

    # The coordinator's port.

    def renew_port(self, address: str) -> None:
        """For another attempt: the same address, which all hosts have reached, and another port."""
        self._send(self._state.hosts[0], wire.Reserve([address], listen=False))

    def _note_reserved(self, ports: dict[str, int]) -> None:
        if self._state.attempt > 1:
            self._state.coordinator = next(iter(ports.items()))
            return
        self.coordinator.note_reserved(ports)
        for host in self._state.hosts[1:]:
            if host.phase is Phase.PREPARING:
                self._try_port(host)
        self._note_port()

    def _note_port(self) -> None:
        first = self._state.hosts[0]
        if self.coordinator.is_reserved and first.phase is Phase.PREPARING:
            self._note_answer(first, Answer.PORT)

    def _try_port(self, host: HostState) -> None:
        if (order := self.coordinator.reach()) is not None:
            self._send(host, order)

    def _has_no_port(self) -> bool:
        first = self._state.hosts[0]
        return first.is_gone or first.phase is Phase.REFUSED

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
            host.waiting_for = f"to answer: its Python {self._python_of(host)} has yet to start"
        if self._thorough:
            if not host.owed and host.phase is Phase.PREPARING:
                host.phase = Phase.READY
        elif all(each.phase is Phase.PREPARING and not each.owed for each in self._state.hosts):
            self._judge()

    def _judge(self) -> None:
        from hostmesh.launcher.supervisor.startup.judgement import Judgement

        Judgement(self._plan, self._state.hosts, self._env, self.refuse, self._note, self._tell).judge(self.coordinator)
        self._state.coordinator = self.coordinator.place
        if not self._state.refused:
            for host in self._state.hosts:
                host.phase = Phase.READY

    def _send(self, host: HostState, message: Any) -> None:
        self._channels[host.number].send(message)


def default_python(transport: str) -> str:
    return sys.executable if transport == "local" else "python3"


def explain_refusal(refused: wire.Refused) -> str:
    """With the end of what a program printed about it."""
    from hostmesh.launcher.supervisor.startup.remedies import last_lines

    return "\n".join([refused.problem, *("  " + line for line in last_lines(refused.said))])


def is_number(address: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True
