"""The launcher's one loop: events in, decisions out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.output.metrics import Metrics
from hostmesh.launcher.planning.plan import Plan, describe_start
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor import decisions
from hostmesh.launcher.supervisor.blame import verdict as verdicts
from hostmesh.launcher.supervisor.blame.verdict import Verdict
from hostmesh.launcher.supervisor.compiled import CompiledCarrier
from hostmesh.launcher.supervisor.control.asking import Ask, Left
from hostmesh.launcher.supervisor.control.control import Control
from hostmesh.launcher.supervisor.ending import WIND_UP_TIMEOUT, Ending
from hostmesh.launcher.supervisor.going_on.explaining import Explained, Explaining
from hostmesh.launcher.supervisor.going_on.losses import Losses
from hostmesh.launcher.supervisor.going_on.seating import seat_hosts
from hostmesh.launcher.supervisor.guard.asking import ask_rows
from hostmesh.launcher.supervisor.hints import Hinting
from hostmesh.launcher.supervisor.interrupts import Interrupt, note_interrupt
from hostmesh.launcher.supervisor.link.arrivals import redact_arrival
from hostmesh.launcher.supervisor.link.channel import Channel, Ended, Heard, close_channels
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.link.liveness import Absence, Liveness
from hostmesh.launcher.supervisor.link.protocol import find_violation, is_ignored
from hostmesh.launcher.supervisor.policy import decide
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.reports import Reports
from hostmesh.launcher.supervisor.spawning import spawn_all
from hostmesh.launcher.supervisor.startup.machine import Startup
from hostmesh.launcher.supervisor.state.host import QUIET, HostState, Phase
from hostmesh.launcher.supervisor.state.run_state import begin_state
from hostmesh.launcher.supervisor.stuck.handling import HangWatch
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT, LOST_TIMEOUT, Stream

if TYPE_CHECKING:
    from hostmesh.launcher.engines.base import Engine
    from hostmesh.launcher.supervisor.going_on.attempts import Attempts
    from hostmesh.launcher.supervisor.going_on.rejoining import Open, Rejoining
    from hostmesh.launcher.sync.tree import Tree

TICK = 0.5
# This share of a lease without a look at the inbox: agents may have given the launcher up.
LONG_ABSENCE = 0.8


@dataclass(frozen=True)
class Shipment:
    """What travels to every host: the agent, what workers import, and the user's code where that is synced."""

    agent: bytes
    pack_code: Callable[[], bytes]
    tree: Tree | None = None


class Supervisor:
    """One thread runs this and owns the state. All others, and signal handlers, only put entries into the inbox."""

    def __init__(
        self,
        plan: Plan,
        streams: Sequence[Stream],
        shipment: Shipment,
        records: Records,
        *,
        secrets: Mapping[str, str],
        on_spawn: Callable[[], None] = lambda: None,
        reopen: Open | None = None,
        inbox: Inbox | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.plan, self.streams, self.shipment, self.records = plan, streams, shipment, records
        self.hidden = tuple(secrets.values())
        self.on_spawn = on_spawn
        self.inbox = inbox or Inbox()
        self.channels: dict[int, Channel] = {}
        self.state = begin_state(plan, f"{records.run.logs}/", f"{records.run.stacks}/")
        self.metrics = Metrics(plan.cluster.metrics == "all", records.tell, records.note)
        self.reports = Reports(self.state, records, self.metrics, self.inbox)
        self.startup = Startup(
            *(plan, self.state, self.channels, self.inbox),
            secrets=secrets,
            pack_code=shipment.pack_code,
            tree=shipment.tree,
            tell=records.tell,
            note=records.note,
        )
        lease, hosts = plan.cluster.lease, self.state.hosts
        self.liveness = Liveness(hosts, self.channels, lease)
        self.absence = Absence(self.inbox, lease, QUIET)
        self.explaining = Explaining(engine, self.state, records, self.inbox)
        self.losses = Losses(
            *(self.state, self.startup, self.reports, records, self.absence, self.inbox, lease), self.explaining
        )
        self.ending = Ending(
            *(self.state, records, self.channels, self.inbox), lambda: self._take_in(TICK), self.losses.lose
        )
        self.hang_watch = HangWatch(plan.cluster, records, self.channels)
        self.carrier = CompiledCarrier(plan.cluster, self.state, self.channels, records, self.inbox, self.reports)
        self.attempts = self._make_attempts() if plan.cluster.goes_on else None
        self.rejoining = self._make_rejoining(reopen) if plan.cluster.goes_on and reopen is not None else None
        self.control = Control(plan, self.state, self.channels, records, self.inbox, secrets)
        self._is_over = False  # no other attempt follows
        self._asked_to_stop = False
        self.hinting = Hinting(records, self.inbox)

    def run(self) -> Verdict:
        what = describe_start(self.plan, [host.name for host in self.state.members])
        self.records.note(f"launch: {what}; logs in {self.state.logs}")
        self.records.tell("run started", run=self.records.run.id, processes=len(self.plan.processes))
        for number, stream in enumerate(self.streams):
            self.channels[number] = self._connect(number, stream)
        self.startup.pack()  # while agents come up
        try:
            verdict = self._watch_attempts()
            self.reports.is_ending = self._is_over = True
            verdict = self.ending.wind_up(verdict)
            verdict = verdict if self.attempts is None else self.attempts.finish(verdict)
        finally:
            self._close_all()
        verdict = verdicts.with_remarks(verdict, self.metrics.remarks())
        of_host = [number for host in self.state.hosts if host.name == verdict.host for number in host.process_ids]
        verdict = verdicts.with_last_step(verdict, self.state.steps, of_host)
        outcome = {"outcome": verdict.outcome, "kind": verdict.kind, "exit_code": verdict.exit_code}
        self.records.tell("run ended", **outcome, message=verdict.text())
        return verdict

    def interrupt(self, number: int) -> None:
        """Safe in a signal handler."""
        self.inbox.put(Interrupt(number))

    def asked_again(self) -> bool:
        """After the run: was the launcher asked to stop again while it waited for a reader of its output?"""
        while self._take_in(0):
            pass
        return len(self.state.interrupts) > 1

    @property
    def found_python(self) -> Mapping[str, Any]:
        """Of process 0, where its host was inspected: its version, and those of its packages."""
        return (self.state.members[0].facts or {}).get("python") or {}

    # Decisions.

    def _watch_attempts(self) -> Verdict:
        verdict = self._watch()
        while self._goes_on(verdict):
            verdict = self._watch()
        return verdict

    def _make_attempts(self) -> Attempts:
        from hostmesh.launcher.supervisor.going_on.attempts import Attempts  # most runs start sooner without
        from hostmesh.launcher.supervisor.going_on.restarts import Budgets

        budgets = Budgets.of(self.plan.cluster)
        return Attempts(budgets, self.state, self.records, self.ending, self.inbox, self._begin_attempt)

    def _make_rejoining(self, reopen: Open) -> Rejoining:
        from hostmesh.launcher.supervisor.going_on.rejoining import Rejoining

        is_here = self.plan.cluster.transport == "local"
        return Rejoining(
            *(self.state, self.channels, self.startup, self.records, self.inbox), reopen, self._connect, is_here
        )

    def _connect(self, number: int, stream: Stream, life: int = 1) -> Channel:
        return Channel(number, stream, self.shipment.agent, self.plan.cluster.lease, self.inbox, life)

    def _goes_on(self, verdict: Verdict) -> bool:
        if self.attempts is None:
            return False
        self.reports.is_ending = True  # its processes are killed
        try:
            return self.attempts.goes_on(verdict)
        finally:
            self.reports.is_ending = False

    def _begin_attempt(self, pause: float) -> None:
        self.state.begin_attempt(self.inbox.now() + pause)
        self.losses.leave_warned()
        self.state.logs, self.state.stacks = f"{self.records.run.logs}/", f"{self.records.run.stacks}/"
        self.hang_watch = HangWatch(self.plan.cluster, self.records, self.channels)
        self._asked_to_stop = False

    def _watch(self) -> Verdict:
        while True:
            self._take_in(TICK)
            if self.rejoining is not None:
                self.rejoining.look()
            self.reports.tell_disagreement()
            match decide(self.state, self.inbox.now()):
                case decisions.End(verdict):
                    return verdict
                case decisions.Spawn():
                    spawn_all(self.plan, self.state, self.records, self.channels, self.inbox)
                    self.carrier.begin()
                    self.on_spawn()
                case decisions.Seat() as order:
                    self.plan = seat_hosts(order, self.plan, self.state, self.records)
                    self.startup.begin_apart()
                case decisions.Assemble():
                    self.startup.assemble()
                case decisions.AskToStop(number):
                    self._ask_to_stop(number)
                case decisions.Examine() | decisions.Tell() | decisions.TryNetwork() as order:
                    self.hang_watch.act(order, self.state, self.inbox.now())
                case decisions.AskRows():
                    ask_rows(self.state, self.channels, self.inbox.now())
                case decisions.Wait():
                    self.hang_watch.look(self.state, self.inbox.now())
            self.hinting.look(self.state)

    def _ask_to_stop(self, number: int) -> None:
        if self._asked_to_stop:
            return
        self._asked_to_stop = True
        for host in self.state.with_agent:
            self.channels[host.number].send(wire.Signal(number))

    # Events.

    def _take_in(self, timeout: float) -> bool:
        """One entry of the inbox into the state; False when none came."""
        began = self.inbox.now()
        entry = self.inbox.take(timeout)
        if self.absence.look(LONG_ABSENCE):
            self.records.tell("launcher was away", seconds=round(self.absence.seconds, 1))
        for host, limit in self.liveness.count(self.inbox.now() - began):
            self.losses.lose(host, f"has been silent for {limit:g} s", self._find_said(host))
        match redact_arrival(entry, self.hidden):
            case Ask() | Left() as asked:
                self.control.note(asked)
            case Interrupt(number):
                note_interrupt(number, self.state, self.records, self.inbox)
            case Explained() as answer:
                self.explaining.note(answer)
            case Ended(life=life) as end if life == self.state.hosts[end.host].life:
                self.losses.note_end(self.state.hosts[end.host], end)
            case Heard(number, event, life) if life == self.state.hosts[number].life:
                self._note_event(self.state.hosts[number], event)
                self.channels[number].handled(event)
        self.control.keep_time()
        return entry is not None

    def _find_said(self, host: HostState) -> str:
        """What a host has printed that has no agent."""
        if host.has_agent:
            return ""
        end: Ended = redact_arrival(Ended(host.number, self.channels[host.number].said), self.hidden)
        return end.text

    def _note_event(self, host: HostState, event: Any) -> None:
        if is_ignored(host, event):
            return
        if (violation := find_violation(host, event, self.state.spawned, self.reports.is_ending)) is not None:
            self.losses.lose(host, "broke the agent protocol", violation)
        elif isinstance(event, wire.SetupOutput):
            self.records.add_setup_output(host.number, event.data)
        elif isinstance(event, wire.Bye):
            self._note_bye(host, event)
        elif isinstance(event, wire.Notice):
            self.losses.note_warning(host, event.reason)
        elif isinstance(event, wire.Cleared):
            host.phase = Phase.READY
            self._tell_survivors(host, event.survivors)
        elif any(part.note_event(host, event) for part in (self.control, self.carrier, self.reports)):
            return
        elif not self._is_over:
            self.startup.note_event(host, event)

    def _note_bye(self, host: HostState, bye: wire.Bye) -> None:
        if not self._is_over:
            return  # the end of its stream follows, which is a loss
        host.phase = Phase.LEFT
        self.records.tell("host left", host=host.name, survivors=bye.survivors)
        self._tell_survivors(host, bye.survivors)

    def _tell_survivors(self, host: HostState, survivors: Sequence[int]) -> None:
        if survivors:
            pids = " ".join(map(str, survivors))
            self.records.note(f"launch: on {host.name} SIGKILL did not end process {pids}")

    def _close_all(self) -> None:
        timeouts = {self.channels[host.number]: self._close_timeout(host) for host in self.state.hosts}
        close_channels(timeouts, 3 * WIND_UP_TIMEOUT)
        if self.rejoining is not None:
            self.rejoining.finish(WIND_UP_TIMEOUT)
        self.records.close()

    def _close_timeout(self, host: HostState) -> float:
        return LOST_TIMEOUT if host.phase in (Phase.LOST, Phase.UNREACHABLE) else CLOSE_TIMEOUT
