"""The launcher's one loop: events in, decisions out."""

from __future__ import annotations

import math
import queue
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from hostmesh.launcher import wire
from hostmesh.launcher.output.events import EventLog
from hostmesh.launcher.output.logs import ProcessLog
from hostmesh.launcher.output.metrics import Metrics
from hostmesh.launcher.output.run_folder import Run, try_write
from hostmesh.launcher.output.screen import Screen
from hostmesh.launcher.plan import Plan, describe_devices
from hostmesh.launcher.supervisor import verdict as verdicts
from hostmesh.launcher.supervisor.arrivals import redact_arrival
from hostmesh.launcher.supervisor.channel import Channel, Ended, Heard, Stream, close_channels
from hostmesh.launcher.supervisor.clocks import Clock, same_clock
from hostmesh.launcher.supervisor.startup import Preparation, Readiness
from hostmesh.launcher.supervisor.verdict import Failure, Others, Verdict, crashed_alike
from hostmesh.launcher.transports import CLOSE_TIMEOUT
from hostmesh.worker.identity import EXIT_PREEMPTED, GRACE

if TYPE_CHECKING:
    from hostmesh.launcher.sync.tree import Tree

TICK = 0.5
# From the end of a run on: until its processes have ended, and until all that they printed is here. The latter may
# take its time over a slow link; who asked the run to stop does not want to wait for it.
WIND_UP_TIMEOUT = 6.0
OUTPUT_TIMEOUT = {"succeeded": 300.0, "stopped": 3.0}
OUTPUT_TIMEOUT_OTHERWISE = 30.0
# Then the verdict is told before all output is here.
TELL_AFTER = 1.0
HINT_EVERY = 10.0
# In a run that goes on; all of them are in its events.
MAX_FAILURES_TOLD = 8
# Seconds for an agent to say hello on a host that is connected; all of them get their source from one launcher.
CONNECT_TIMEOUT = 30.0
CONNECT_TIMEOUT_PER_HOST = 0.1
REFUSED_TIMEOUT = 10.0
LOST_TIMEOUT = 0.5
# Agents beat once a second.
QUIET = 3.0
COUNT_EVERY = 0.2
ORDERLY = frozenset({0, EXIT_PREEMPTED})
# This share of a lease without a look at the inbox: agents may have given the launcher up.
LONG_ABSENCE = 0.8


@dataclass(frozen=True)
class Interrupt:
    """The user or the system asked the launcher to stop."""

    number: int


@dataclass
class Silence:
    """How long nothing has come from a host: only the supervisor's own waiting counts."""

    seconds: float = 0.0
    chunks: int = 0

    def count(self, chunks: int, seconds: float) -> None:
        self.seconds = self.seconds + seconds if chunks == self.chunks else 0.0
        self.chunks = chunks


@dataclass
class State:
    """All that is known about a run; `decide` looks at nothing else. `quiet` means that a host has missed beats."""

    hosts: tuple[str, ...]
    num_processes: int
    logs: str
    readiness: Readiness
    spawned: bool = False
    quiet: bool = False
    grace: float = 3.0
    keep_going: bool = False
    process_hosts: dict[int, str] = field(default_factory=dict)
    joining: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    separate: set[int] = field(default_factory=set)
    exits: dict[int, int] = field(default_factory=dict)
    crashes: dict[int, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    leavers: list[Failure] = field(default_factory=list)
    lost: list[Verdict] = field(default_factory=list)
    lost_processes: set[int] = field(default_factory=set)
    nursery_death: Verdict | None = None
    interrupts: list[int] = field(default_factory=list)
    interrupted_at: float = 0.0
    ended_before: set[int] = field(default_factory=set)  # processes that had ended when the run was asked to stop
    save_seconds: float | None = None
    saved_step: int | None = None

    @property
    def everyone_ended(self) -> bool:
        return len(self.exits.keys() | self.lost_processes) == self.num_processes

    @property
    def nobody_is_waited_for(self) -> bool:
        """Who has lost a peer only waits for its own end."""
        waiting = {number for number, (_, crash) in self.crashes.items() if crash["lost_peer"]}
        return len(self.exits.keys() | self.lost_processes | waiting) == self.num_processes

    @property
    def was_preempted(self) -> bool:
        codes = set(self.exits.values())
        return len(self.exits) == self.num_processes and codes <= ORDERLY and EXIT_PREEMPTED in codes

    @property
    def stop_grace(self) -> float:
        """A save takes every process: once one is gone in another way, there is nothing to wait for."""
        left = [code for number, code in self.exits.items() if number not in self.ended_before]
        if self.save_seconds is None or not ORDERLY.issuperset(left):
            return self.grace
        return max(self.grace, self.save_seconds)

    @property
    def request(self) -> int:
        """The signal that asks processes to stop: what the launcher got; SIGTERM where that makes them save."""
        is_ctrl_c = self.interrupts[0] == signal.SIGINT
        return signal.SIGINT if is_ctrl_c and self.save_seconds is None else signal.SIGTERM

    @property
    def victims(self) -> list[Failure]:
        """Also those that have said so and have not ended yet."""
        known = {failure.process_id for failure in self.failures}
        hosts = self.process_hosts
        told = [
            Failure(number, hosts.get(number, ""), 1, at, "", crash)
            for number, (at, crash) in self.crashes.items()
            if number not in known and crash["lost_peer"]
        ]
        return [*self.failures, *told]

    @property
    def early_leavers(self) -> list[Failure]:
        """Who never joined the others cannot be missed by them."""
        return [each for each in self.leavers if not self.joined or each.process_id in self.joined]

    @property
    def cause_is_leaving(self) -> bool:
        """A process has raised an exception of its own and runs its exit handlers, for which it has some seconds."""
        leaving = [crash for process_id, (_, crash) in self.crashes.items() if process_id not in self.exits]
        return any(not crash["lost_peer"] for crash in leaving)


@dataclass(frozen=True)
class Decision:
    """Wait; spawn all processes; ask them to stop; or end the run with a verdict."""

    do: str
    verdict: Verdict | None = None


WAIT, SPAWN, ASK_TO_STOP = Decision("wait"), Decision("spawn"), Decision("ask to stop")


def decide(state: State, now: float) -> Decision:
    if state.interrupts:
        return decide_stop(state, now)
    if state.keep_going and state.spawned and not state.everyone_ended:
        return WAIT
    if state.was_preempted:
        return Decision("end", verdicts.preempted(state.saved_step))
    if state.nursery_death is not None:
        return Decision("end", state.nursery_death)
    culprit = verdicts.find_culprit(state.failures, now, state.everyone_ended)
    if culprit is not None and culprit.is_a_cause:
        return Decision("end", blame(culprit, state))
    more_may_come = not state.everyone_ended and (state.cause_is_leaving or state.quiet)
    if not (state.lost or more_may_come):
        if (told := decide_absent(state, now)) is not None:
            return told
        if culprit is not None:
            return Decision("end", blame(culprit, state))
    if state.lost:
        return Decision("end", blame_lost_host(state))
    if state.everyone_ended:
        return Decision("end", verdicts.succeeded(state.num_processes, len(state.separate)))
    return WAIT if state.spawned else decide_start(state, now)


def decide_absent(state: State, now: float) -> Decision | None:
    """Victims without a cause: has somebody left as if all were done, or does jax name one that still runs?"""
    victims = state.victims
    if leaver := verdicts.find_leaver(state.early_leavers, victims, now, state.everyone_ended):
        return Decision("end", verdicts.process_left(leaver, victims, state.logs))
    named = verdicts.find_named(victims, set(range(state.num_processes)) - state.exits.keys())
    if named is None:
        return None
    if now - min(victim.at for victim in victims) < verdicts.NAMED_TIMEOUT:
        return WAIT
    host = state.process_hosts.get(named, "")
    return Decision("end", verdicts.process_unheard(named, host, len(victims), state.logs))


def decide_start(state: State, now: float) -> Decision:
    """Every host's answer is waited for, so that all problems are told at once; but not for ever."""
    ready = state.readiness
    refused = {state.hosts[host]: problems for host, problems in sorted(ready.refused.items())}
    if ready.unreachable and ready.answered:
        problems = {state.hosts[host]: problem for host, problem in sorted(ready.unreachable.items())}
        return Decision("end", verdicts.unreachable(len(state.hosts), problems, refused))
    if ready.unsendable is not None:
        return Decision("end", verdicts.unsendable(ready.unsendable))
    if refused and (not any(ready.doing.values()) or now - ready.refused_at > REFUSED_TIMEOUT):
        return Decision("end", verdicts.refused(refused))
    return SPAWN if ready.complete else WAIT


def decide_stop(state: State, now: float) -> Decision:
    """Somebody asked the launcher to stop: the processes get some time, a second request ends it."""
    patient = len(state.interrupts) == 1 and state.spawned
    if patient and state.save_seconds is not None and (trouble := find_trouble_with_saving(state)):
        return Decision("end", trouble)
    in_time = now - state.interrupted_at < state.stop_grace
    is_lost = bool(state.lost) and not state.keep_going
    if patient and in_time and not state.nobody_is_waited_for and not is_lost:
        return ASK_TO_STOP
    number, step = state.interrupts[0], state.saved_step
    if state.was_preempted and number == signal.SIGTERM:
        return Decision("end", verdicts.preempted(step))
    failures = [] if len(state.interrupts) > 1 else find_own_failures(state)
    return Decision("end", verdicts.stopped_by(number, step, state.was_preempted, failures, state.logs))


def find_own_failures(state: State) -> list[Failure]:
    """The first one first; a process that the request itself ended is none."""
    own = [f for f in state.failures if f.is_a_cause and not f.ended_as_asked]
    return sorted(own, key=lambda failure: failure.at)


def find_trouble_with_saving(state: State) -> Verdict | None:
    """In a run that goes on, what went wrong before the request is none."""
    causes = [f for f in find_own_failures(state) if f.process_id not in state.ended_before]
    if causes:
        return blame(causes[0], state)
    return state.lost[0] if state.lost and not state.keep_going else None


def blame(culprit: Failure, state: State) -> Verdict:
    others = state.num_processes - 1
    same = find_alike(culprit, state)
    if len(same) == others:
        # They are all the cause; the first of them that said something speaks for them.
        alike = [f for f in state.failures if f.resembles(culprit)]
        culprit = min(alike, key=lambda failure: (not failure.said, failure.process_id))
    lost = len(state.lost_processes) if state.keep_going else 0
    became = Others(others, len(same), count_succeeded(state), lost, state.keep_going)
    return verdicts.process_failed(culprit, became, state.logs)


def blame_lost_host(state: State) -> Verdict:
    if not (state.keep_going and state.spawned):
        return state.lost[0]
    lost = len(state.lost_processes)
    elsewhere = Others(state.num_processes - lost, succeeded=count_succeeded(state), went_on=True)
    return verdicts.with_others(state.lost[0], len(state.lost), lost, elsewhere)


def count_succeeded(state: State) -> int:
    return sum(code == 0 for code in state.exits.values())


def find_alike(culprit: Failure, state: State) -> set[int]:
    """Others that failed in the same way, also if they were killed on their way out."""
    alike = {failure.process_id for failure in state.failures if failure.resembles(culprit)}
    if culprit.crash is not None:
        alike |= {number for number, (_, crash) in state.crashes.items() if crashed_alike(culprit.crash, crash)}
    return {number for number in alike if number != culprit.process_id and state.exits.get(number) != 0}


class Supervisor:
    def __init__(
        self,
        plan: Plan,
        run: Run,
        streams: Sequence[Stream],
        package: bytes,
        code: bytes,
        secrets: dict[str, str],
        tree: Tree | None,
        screen: Screen,
        events: EventLog,
    ) -> None:
        self.plan, self.run_folder, self.screen, self.events = plan, run, screen, events
        self.streams, self.package, self.secrets = streams, package, secrets
        self.hidden = tuple(secrets.values())
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.channels: dict[int, Channel] = {}
        self.logs: dict[int, ProcessLog] = {}
        self.setup_logs: dict[int, ProcessLog] = {}
        self.preparation = Preparation(plan, self.channels, secrets, code, tree, events.add, screen.note)
        self.metrics = Metrics(plan.cluster.metrics == "all", events.add, screen.note)
        cluster, count = plan.cluster, len(plan.processes)
        hosts = tuple(host.address for host in cluster.hosts)
        self.state = State(
            *(hosts, count, f"{run.logs}/", self.preparation.readiness),
            grace=cluster.grace,
            keep_going=cluster.keep_going,
        )
        self.asked_to_stop = self.stopping = False
        is_here = cluster.transport == "local"
        self.clocks = [same_clock() if is_here else Clock() for _ in hosts]
        self.silences = [Silence() for _ in hosts]
        self.uncounted = 0.0
        self._connect_timeout = CONNECT_TIMEOUT + CONNECT_TIMEOUT_PER_HOST * len(hosts)
        self.gone: set[int] = set()
        self.dumped: set[int] = set()
        self.unwritable: set[Path] = set()
        self.looked = count_awake_or_not()
        self.away = self.away_until = 0.0
        self.lost: set[int] = set()
        self.started: set[int] = set()
        self.has_told = False
        self.failures_told = 0
        self.on_spawn: Callable[[], None] = lambda: None
        self.began = self.hinted = time.monotonic()

    def run(self) -> Verdict:
        count, hosts = len(self.plan.processes), len(self.plan.cluster.hosts)
        on = self.state.hosts[0] if hosts == 1 else f"{hosts} hosts"
        what = "1 process" if count == 1 else f"{count} processes"
        self.screen.note(f"launch: {what} on {on}{describe_devices(self.plan)}; logs in {self.state.logs}")
        self.events.add("run started", run=self.run_folder.id, processes=count)
        self._connect_all()
        try:
            verdict = self._watch()
            verdict = self._wind_up(verdict)
        finally:
            self._close_all()
        verdict = verdicts.with_remarks(verdict, self.metrics.remarks())
        self.events.add("run ended", outcome=verdict.outcome, exit_code=verdict.exit_code, message=verdict.text())
        return verdict

    def interrupt(self, number: int) -> None:
        """Safe in a signal handler."""
        self.inbox.put(Interrupt(number))

    def asked_again(self) -> bool:
        """After the run: has somebody lost patience with a reader of our output that does not read?"""
        while self._take_in(0):
            pass
        return len(self.state.interrupts) > 1

    # Starting.

    def _connect_all(self) -> None:
        for number, stream in enumerate(self.streams):
            self.channels[number] = Channel(number, stream, self.package, self.plan.cluster.lease, self.inbox)

    def _spawn_all(self) -> None:
        self.state.spawned = True
        assert self.state.readiness.coordinator is not None
        for process in self.plan.processes:
            host = self.plan.host_of(process)
            log = ProcessLog(self.run_folder.log_of(process.process_id), self.secrets.values())
            self.logs[process.process_id] = log
            self._note_log_error(log, process.process_id)
            self.screen.follow(log, f"{process.process_id} {host.address}", process.process_id)
            identity = self.plan.identity(process, self.run_folder.id, 1, *self.state.readiness.coordinator)
            is_python = self.plan.job.command is None
            found = self.preparation.env_of(process.host, process.local_process_id)
            env = {**found, **process.env, **identity.to_env(), GRACE: f"{self.state.grace:g}"}
            self.state.process_hosts[process.process_id] = host.address
            order = wire.Spawn(process.process_id, env, self.plan.argv(), is_python, time.time())
            self.channels[process.host].send(order)
        self.on_spawn()

    # Watching.

    def _watch(self) -> Verdict:
        while True:
            self._take_in(TICK)
            decision = decide(self.state, time.monotonic())
            if decision.verdict is not None:
                return decision.verdict
            if decision is SPAWN:
                self._spawn_all()
            elif decision is ASK_TO_STOP and not self.asked_to_stop:
                self._ask_to_stop()
            self._hint()

    def _take_in(self, timeout: float) -> bool:
        """One entry of the inbox into the state; False when none came."""
        began = time.monotonic()
        try:
            entry = self.inbox.get(timeout=timeout)
        except queue.Empty:
            entry = None
        self._note_absence()
        # A launcher that was itself suspended must not count its own absence as the hosts' silence.
        self._count_silence(min(time.monotonic() - began, 2 * TICK))
        entry = redact_arrival(entry, self.hidden)
        if isinstance(entry, Interrupt):
            self._note_interrupt(entry.number)
        elif isinstance(entry, Ended):
            self._note_end(entry)
        elif isinstance(entry, Heard):
            self._note_event(entry.host, entry.event)
            self.channels[entry.host].handled(entry.event)
        return entry is not None

    def _note_absence(self) -> None:
        """The agents, which count as well, end their processes after a lease without a word."""
        now = count_awake_or_not()
        gap, self.looked = now - self.looked, now
        if gap > LONG_ABSENCE * self.plan.cluster.lease:
            self.away, self.away_until = gap, now
            self.events.add("launcher was away", seconds=round(gap, 1))

    def _lose_by_absence(self, host: int) -> bool:
        """Whoever is lost within a lease after this launcher came back is not to blame."""
        lease = self.plan.cluster.lease
        if not self.away or self.looked - self.away_until > lease + QUIET:
            return False
        why = f"the launcher was away for {self.away:.1f} s"
        self._note_lost(host, why, verdicts.launcher_was_away(self.away, lease, self.state.logs))
        return True

    def _count_silence(self, seconds: float) -> None:
        """Not at every event: a thousand agents beat a thousand times a second."""
        self.uncounted += seconds
        if self.uncounted < COUNT_EVERY:
            return
        seconds, self.uncounted = self.uncounted, 0.0
        greeted = self.state.readiness.greeted
        for number, channel in self.channels.items():
            if channel.is_open:  # a transport that is still connecting has a limit of its own
                # Before its hello a host may print what it likes: it is no sign of an agent.
                self.silences[number].count(channel.chunks if number in greeted else 0, seconds)
            timeout = self.plan.cluster.lease if number in greeted else self._connect_timeout
            if number not in self.gone and self.silences[number].seconds > timeout:
                said = "" if number in greeted else redact_arrival(Ended(number, channel.said), self.hidden).text
                self._lose(number, f"has been silent for {timeout:g} s", said)
        self.state.quiet = any(self.silences[number].seconds > QUIET for number in greeted - self.gone)

    def _note_interrupt(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self.screen.note("launch: a run cannot be suspended: its agents would miss the launcher; Ctrl-C stops it")
            return
        if not self.state.interrupts:
            self.state.interrupted_at = time.monotonic()
            self.state.ended_before = set(self.state.exits)
            self.screen.note(f"launch: {verdicts.name_signal(number)}: {self._say_what_stops()} (again: at once)")
        self.state.interrupts.append(number)
        self.events.add("interrupted", signal=number)

    def _say_what_stops(self) -> str:
        if not self.state.spawned:
            return "stopping"
        what = "stop" if self.state.save_seconds is None else "save and stop"
        return f"asked the processes to {what}; up to {self.state.stop_grace:g} s"

    def _note_end(self, end: Ended) -> None:
        if end.unreachable is None:
            self._lose(end.host, "lost its agent", end.text)
        elif end.host not in self.gone:
            self._give_up(end.host, end.unreachable)

    def _lose(self, host: int, why: str, said: str) -> None:
        if host in self.gone or self._lose_by_absence(host):
            return
        from hostmesh.launcher.supervisor.remedies import explain_no_agent, find_remedies

        if host not in self.state.readiness.greeted:
            self._give_up(host, explain_no_agent(why, said, self.plan.cluster.agent_python))
            return
        said = "\n".join([said, *find_remedies(said)])
        self._note_lost(host, why, verdicts.host_lost(self.state.hosts[host], why, said, self.state.logs))

    def _note_lost(self, host: int, why: str, verdict: Verdict) -> None:
        self.gone.add(host)
        self.lost.add(host)
        self.state.lost.append(verdict)
        there = {process.process_id for process in self.plan.processes if process.host == host}
        self.state.lost_processes |= there - self.state.exits.keys()
        self.events.add("host lost", host=self.state.hosts[host], why=why)
        self._tell_who_goes_on(f"{self.state.hosts[host]} {why}")

    def _give_up(self, host: int, problem: str) -> None:
        """It never had an agent."""
        self.gone.add(host)
        self.lost.add(host)
        self.preparation.lose(host, problem)
        self.events.add("host unreachable", host=self.state.hosts[host], problem=problem)

    def _note_event(self, host: int, event: Any) -> None:
        state = self.state
        match event:
            case wire.Output():
                self._note_output(event)
            case wire.SetupOutput():
                self._setup_log(host).write(event.data)
            case wire.Started():
                self.started.add(event.process_id)
                self.events.add("process started", **event._asdict(), host=state.hosts[host])
            case wire.Exited():
                self._note_exit(host, event)
            case wire.Drained():
                self.logs[event.process_id].close()
                self.screen.wake()
            case wire.Stacks() if event.process_id not in state.crashes:
                if self._save(self.run_folder.stacks_of(event.process_id), event.data):
                    self.dumped.add(event.process_id)
            case wire.Fact():
                self._note_fact(host, event)
            case wire.Bye():
                self.gone.add(host)
                self.events.add("host left", host=state.hosts[host], survivors=event.survivors)
                if event.survivors:
                    pids = " ".join(map(str, event.survivors))
                    self.screen.note(f"launch: on {state.hosts[host]} SIGKILL did not end process {pids}")
            case _ if not self.stopping:
                self.preparation.note_event(host, event)

    def _setup_log(self, host: int) -> ProcessLog:
        if host not in self.setup_logs:
            self.setup_logs[host] = ProcessLog(self.run_folder.setup_log_of(host), self.secrets.values())
            self._note_log_error(self.setup_logs[host])
        return self.setup_logs[host]

    def _note_output(self, event: wire.Output) -> None:
        log = self.logs[event.process_id]
        was_fine = log.error is None
        log.write(event.data)
        self.screen.wake()
        if was_fine:
            self._note_log_error(log, event.process_id)

    def _note_log_error(self, log: ProcessLog, process_id: int | None = None) -> None:
        """The first is told at once, all of them at the end."""
        if log.error is None:
            return
        if log.path.parent not in self.unwritable:
            self.unwritable.add(log.path.parent)
            self.screen.note(f"launch: {log.path} cannot be written any more: {log.error.strerror}; the run goes on")
        self.events.add("log lost", process_id=process_id, why=str(log.error))

    def _note_lost_logs(self) -> None:
        dropped = {str(number): log.dropped for number, log in self.logs.items() if log.dropped}
        setups = sum(log.dropped for log in self.setup_logs.values())
        if dropped:
            who = (
                f"process {next(iter(dropped))}'s output"
                if len(dropped) == 1
                else f"output of {len(dropped)} processes"
            )
            self.screen.note(f"launch: {sum(dropped.values()):,} bytes of {who} could not be written")
        if setups:
            self.screen.note(f"launch: {setups:,} bytes of what setup said could not be written")
        if dropped or setups:
            self.events.add("output dropped", bytes=dropped, setup_bytes=setups)
        if self.logs and not self.run_folder.logs.is_dir():
            self.screen.note(f"launch: {self.run_folder.logs} is gone: somebody deleted it during the run")

    def _note_exit(self, host: int, event: wire.Exited) -> None:
        state = self.state
        if event.process_id in state.exits:
            return
        state.exits[event.process_id] = event.code
        at, give = self._when(host, event)
        address, known = state.hosts[host], state.crashes.get(event.process_id)
        detail = {"code": event.code, "at": round(at, 3)}
        self.events.add("process exited", process_id=event.process_id, host=address, **detail)
        if self.stopping and event.code == -signal.SIGKILL:
            return  # our own doing
        tail = last_whole_lines(event.data)
        began, crash = known or (to_monotonic(at), None)
        if crash is not None and is_number(crash.get("at")):  # the host's clock may be better known by now
            began = to_monotonic(self.clocks[host].bring_here(crash["at"], time.time())[0])
        failure = Failure(event.process_id, address, event.code, began, tail, crash, give)
        (state.failures if event.code != 0 else state.leavers).append(failure)
        if event.code != 0:
            self._tell_who_goes_on(f"process {event.process_id} on {address} {verdicts.how_it_ended(event.code)}")

    def _tell_who_goes_on(self, failed: str) -> None:
        """A thousand failures would bury what the others print."""
        state = self.state
        if not state.keep_going or state.interrupts or state.everyone_ended or not state.spawned:
            return
        self.failures_told += 1
        if self.failures_told <= MAX_FAILURES_TOLD:
            more = "" if self.failures_told < MAX_FAILURES_TOLD else "; further failures are told at the end"
            self.screen.note(f"launch: {failed}; the others go on{more}")

    def _when(self, host: int, event: wire.Exited) -> tuple[float, float]:
        """When a process ended, by this machine's clock, and how far that may be wrong."""
        clock, now = self.clocks[host], time.time()
        clock.note_heard(event.at, now)
        if event.ahead is not None:
            clock.note_sent(event.ahead)
        return clock.bring_here(event.at, now)

    def _note_fact(self, host: int, fact: wire.Fact) -> None:
        address = self.state.hosts[host]
        if fact.process_id is not None:
            self._note_process_fact(host, fact.process_id, fact.name, fact.detail)
        elif fact.name == "nursery_failed":
            self.screen.note(f"launch: no warm start on {address}: {fact.detail['problem']}; starting cold")
        elif fact.name == "nursery_died":
            count = self.plan.cluster.hosts[host].processes
            self.state.nursery_death = verdicts.nursery_died(address, fact.detail["problem"], count, self.state.logs)
        if not self.metrics.note_fact(address, fact):
            self.events.add(fact.name, host=address, process_id=fact.process_id, detail=fact.detail)

    def _note_process_fact(self, host: int, process_id: int, name: str, detail: dict[str, Any]) -> None:
        state = self.state
        match name, detail:
            case "crash", _:
                self._note_crash(host, process_id, detail)
            case "joining", _:
                state.joining.add(process_id)
            case "joined", _:
                state.joined.add(process_id)
            case "ran_separately", _:
                state.separate.add(process_id)
            case "saves_when_stopped", {"seconds": int(seconds) | float(seconds)}:
                state.save_seconds = max(state.save_seconds or 0.0, seconds)
            case "saved", {"step": int(step)}:
                state.saved_step = step
            case "dropped", {"facts": int(facts), "bytes": int(count)}:
                self._note_dropped(process_id, facts, count)
            case "summary", _ if process_id == 0:
                self._save(self.run_folder.summary, self.run_folder.encode_json(detail))

    def _note_dropped(self, process_id: int, facts: int, count: int) -> None:
        if facts:
            self.screen.note(f"launch: {facts} reports of process {process_id} were dropped: they came too fast")
        if count:
            why = "the temporary folder of its host has no room"
            self.screen.note(f"launch: {count:,} bytes that process {process_id} printed were lost: {why}")

    def _note_crash(self, host: int, process_id: int, detail: dict[str, Any]) -> None:
        crash = {**verdicts.NO_CRASH, **detail}
        at = time.time()
        if is_number(there := crash.get("at")):
            at, _ = self.clocks[host].bring_here(there, at)
        self.state.crashes[process_id] = to_monotonic(at), crash
        is_one_of_many = crash["type"] == "KeyboardInterrupt" and self.state.num_processes > 1
        if crash["lost_peer"] or crash["explained"] or is_one_of_many:  # the process itself does not print it
            self._save(self.run_folder.stacks_of(process_id), str(crash["traceback"]).encode())

    def _save(self, path: Path, data: bytes) -> bool:
        """A note for the first file of a folder that cannot be written: a thousand of them would bury the verdict."""
        problem = try_write(path, data)
        if problem is not None and path.parent not in self.unwritable:
            self.unwritable.add(path.parent)
            self.screen.note(problem)
        return problem is None

    def _hint(self) -> None:
        """Nobody should wonder what a run is waiting for."""
        now = time.monotonic()
        if now - self.hinted < HINT_EVERY:
            return
        self.hinted = now
        state = self.state
        waited = f"after {now - self.began:.0f} s"
        if not state.spawned:
            self._hint_at_hosts(waited)
        elif left := sorted(failure.process_id for failure in state.failures if failure.was_preempted):
            names = " ".join(map(str, left))
            self.screen.note(f"launch: {waited} waiting for the others to leave as well as {names} (preempted)")
        elif waiting := {p.host for p in self.plan.processes} - {
            p.host for p in self.plan.processes if p.process_id in self.started or p.process_id in state.exits
        }:
            hosts = name_some([state.hosts[host] for host in sorted(waiting)])
            self.screen.note(f"launch: {waited} waiting for {hosts} to start processes")
        elif state.joining - state.joined:
            for process_id in sorted(set(range(state.num_processes)) - state.joining):
                what = "ended without calling" if process_id in state.exits else "has not called"
                self.screen.note(
                    f"launch: {waited} process {process_id} {what} jax.distributed.initialize; others wait"
                )

    def _hint_at_hosts(self, waited: str) -> None:
        """`after 20 s waiting for host-2, host-3 to be set up`."""
        doing = self.state.readiness.doing
        for what in dict.fromkeys(filter(None, doing.values())):
            hosts = [self.state.hosts[number] for number, each in doing.items() if each == what]
            self.screen.note(f"launch: {waited} waiting for {name_some(hosts)} {what}")

    # Ending.

    def _ask_to_stop(self) -> None:
        self.asked_to_stop = True
        for channel in self._living():
            channel.send(wire.Signal(self.state.request))

    def _living(self) -> list[Channel]:
        """Of hosts that have an agent; the others hear of the end when their streams are closed."""
        return [self.channels[number] for number in self.state.readiness.greeted - self.gone]

    def _wind_up(self, verdict: Verdict) -> Verdict:
        """Stop every host and take in what is still on its way; who else failed only becomes known now."""
        # Whoever is still there when the grace after a Ctrl-C is over is stuck; after a second one nothing waits.
        was_patient = verdict.outcome == "stopped" and len(self.state.interrupts) == 1
        stuck = len(self._unended()) if was_patient and not self.state.nobody_is_waited_for else 0
        stacks, grace = bool(stuck) or verdict.outcome in ("failed", "host lost"), self.state.stop_grace
        culprit = next((f for f in self.state.failures if f.process_id == verdict.process_id), None)
        for process_id, log in self.logs.items():
            if verdict.process_id not in (None, process_id):
                self.screen.mute(log)  # from here on the others would only complain of a lost peer
        self.stopping = True
        for channel in self._living():
            channel.send(wire.Stop(stacks))
        began = time.monotonic()
        self._await_ends(began + WIND_UP_TIMEOUT)
        if culprit is not None:
            verdict = blame(culprit, self.state)
        elif stuck:
            where = f"{self.run_folder.stacks}/" if self.dumped else None
            verdict = verdicts.not_stopped(verdict, stuck, grace, where)
        self._await_output(verdict, began)
        return verdict

    def _await_ends(self, deadline: float) -> None:
        interrupts = max(len(self.state.interrupts), 1)
        while self._unended() and time.monotonic() < deadline and len(self.state.interrupts) <= interrupts:
            self._take_in(TICK)

    def _unended(self) -> list[int]:
        """Processes, on hosts that have an agent, of which no exit is known."""
        return [process_id for process_id in self._within_reach() if process_id not in self.state.exits]

    def _await_output(self, verdict: Verdict, began: float) -> None:
        """Over a slow link what processes printed comes long after their end."""
        limit = began + OUTPUT_TIMEOUT.get(verdict.outcome, OUTPUT_TIMEOUT_OTHERWISE)
        interrupts, hinted = len(self.state.interrupts), began
        heard = time.monotonic()
        while self._living() and time.monotonic() < min(limit, heard + WIND_UP_TIMEOUT):
            if self._take_in(TICK):
                heard = time.monotonic()
            if len(self.state.interrupts) > interrupts:
                break
            now = time.monotonic()
            if now - began > TELL_AFTER and verdict.exit_code != 0 and not self.has_told:
                self.has_told = True
                self.screen.note(f"launch: {verdict.text()}")
            if now - hinted > HINT_EVERY:
                hinted = now
                self.screen.note(f"launch: still fetching what processes on {self._name_living()} printed")
        if left := self._unfetched():
            names = " ".join(map(str, left))
            self.screen.note(f"launch: not all that process {names} printed was fetched from {self._name_living()}")

    def _name_living(self) -> str:
        return name_some([self.state.hosts[number] for number in sorted(self.state.readiness.greeted - self.gone)])

    def _unfetched(self) -> list[int]:
        """Processes of whose output more may be on a host that still has its agent."""
        return [process_id for process_id in self._within_reach() if not self.logs[process_id].ended]

    def _within_reach(self) -> list[int]:
        """Processes that were to start, on hosts that have an agent."""
        living = self.state.readiness.greeted - self.gone
        ids = [process.process_id for process in self.plan.processes if process.host in living]
        return [process_id for process_id in ids if process_id in self.logs]

    def _close_all(self) -> None:
        timeout = {channel: self._close_timeout(number) for number, channel in self.channels.items()}
        close_channels(timeout, 3 * WIND_UP_TIMEOUT)
        for log in (*self.logs.values(), *self.setup_logs.values()):
            log.close()
        self._note_lost_logs()
        self.screen.wake()

    def _close_timeout(self, host: int) -> float:
        return LOST_TIMEOUT if host in self.lost else CLOSE_TIMEOUT


def count_awake_or_not() -> float:
    """Seconds by a clock that also runs while the machine sleeps, which the monotonic one need not do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()


def to_monotonic(at: float) -> float:
    return time.monotonic() + (at - time.time())


def is_number(value: Any) -> TypeGuard[float]:
    """What a process says about itself may be anything."""
    return isinstance(value, int | float) and math.isfinite(value)


def last_whole_lines(tail: bytes) -> str:
    """Without the first line of a full tail: it may begin in the middle of a secret."""
    whole = tail.partition(b"\n")[2] if len(tail) >= wire.TAIL_LENGTH else tail
    return whole.decode("utf-8", "replace")


def name_some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} other hosts"
