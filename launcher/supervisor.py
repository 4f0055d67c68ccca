"""The launcher's one loop: events in, decisions out."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import verdict as verdicts
from launcher import wire
from launcher.arriving import redact_arrival
from launcher.channel import Channel, Ended, Heard, Stream, close_channels
from launcher.events import EventLog
from launcher.logs import ProcessLog
from launcher.plan import Plan
from launcher.preparation import Preparation, Readiness
from launcher.run import Run, write_aside
from launcher.screen import Screen
from launcher.transports import CLOSE_PATIENCE
from launcher.verdict import Failure, Verdict, crashed_alike
from worker.identity import EXIT_PREEMPTED

if TYPE_CHECKING:
    from launcher.tree import Tree

STOP_GRACE = 3.0
TICK = 0.5
WIND_UP_PATIENCE = 6.0
HINT_EVERY = 10.0
# Seconds for an agent to say hello on a host that is connected; all of them get their source from one launcher.
CONNECT_PATIENCE = 30.0
CONNECT_PATIENCE_A_HOST = 0.1
REFUSED_PATIENCE = 10.0
LOST_PATIENCE = 0.5
# Agents beat once a second.
QUIET = 3.0
COUNT_EVERY = 0.2


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
    joining: set[int] = field(default_factory=set)
    joined: set[int] = field(default_factory=set)
    exits: dict[int, int] = field(default_factory=dict)
    crashes: dict[int, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    lost: list[Verdict] = field(default_factory=list)
    nursery_death: Verdict | None = None
    interrupts: list[int] = field(default_factory=list)
    interrupted_at: float = 0.0
    save_seconds: float | None = None
    saved_step: int | None = None

    @property
    def everyone_ended(self) -> bool:
        return len(self.exits) == self.num_processes

    @property
    def all_exits_are_orderly(self) -> bool:
        return set(self.exits.values()) <= {0, EXIT_PREEMPTED}

    @property
    def was_preempted(self) -> bool:
        return self.everyone_ended and self.all_exits_are_orderly and EXIT_PREEMPTED in self.exits.values()

    @property
    def stop_grace(self) -> float:
        """A save takes every process: once one is gone in another way, there is nothing to wait for."""
        if self.save_seconds is None or not self.all_exits_are_orderly:
            return STOP_GRACE
        return self.save_seconds

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
    if state.was_preempted:
        return Decision("end", verdicts.preempted(state.saved_step))
    if state.nursery_death is not None:
        return Decision("end", state.nursery_death)
    culprit = verdicts.find_culprit(state.failures, now, state.everyone_ended)
    if culprit is not None and (culprit.is_a_cause or not (state.lost or state.cause_is_leaving or state.quiet)):
        return Decision("end", blame(culprit, state))
    if state.lost:
        return Decision("end", state.lost[0])
    if state.everyone_ended:
        return Decision("end", verdicts.succeeded(state.num_processes))
    return WAIT if state.spawned else decide_start(state, now)


def decide_start(state: State, now: float) -> Decision:
    """Every host's answer is waited for, so that all problems are told at once; but not for ever."""
    ready = state.readiness
    refused = {state.hosts[host]: problems for host, problems in sorted(ready.refused.items())}
    if ready.unreachable and ready.answered:
        problems = {state.hosts[host]: problem for host, problem in sorted(ready.unreachable.items())}
        return Decision("end", verdicts.unreachable(len(state.hosts), problems, refused))
    if refused and (not any(ready.doing.values()) or now - ready.refused_at > REFUSED_PATIENCE):
        return Decision("end", verdicts.refused(refused))
    return SPAWN if ready.complete else WAIT


def decide_stop(state: State, now: float) -> Decision:
    """Somebody asked the launcher to stop: the processes get some time, a second request ends it."""
    patient = len(state.interrupts) == 1 and state.spawned
    if patient and state.save_seconds is not None and (trouble := find_trouble_with_saving(state)):
        return Decision("end", trouble)
    in_time = now - state.interrupted_at < state.stop_grace
    if patient and in_time and not state.everyone_ended and not state.lost:
        return ASK_TO_STOP
    number, step = state.interrupts[0], state.saved_step
    if state.was_preempted and number == signal.SIGTERM:
        return Decision("end", verdicts.preempted(step))
    return Decision("end", verdicts.stopped_by(number, step, in_order=state.was_preempted))


def find_trouble_with_saving(state: State) -> Verdict | None:
    """A process that the request itself ended is none."""
    causes = [f for f in state.failures if f.is_a_cause and f.code != -signal.SIGTERM]
    if causes:
        return blame(min(causes, key=lambda failure: failure.at), state)
    return state.lost[0] if state.lost else None


def blame(culprit: Failure, state: State) -> Verdict:
    all_others = state.num_processes - 1
    others = all_others - sum(code == 0 for code in state.exits.values())
    same = find_alike(culprit, state)
    if len(same) == all_others:
        # They are all the cause; the first of them that said something speaks for them.
        alike = [f for f in state.failures if f.resembles(culprit)]
        culprit = min(alike, key=lambda failure: (not failure.said, failure.process_id))
    return verdicts.process_failed(culprit, all_others, others, len(same), state.logs)


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
        hosts = tuple(host.address for host in plan.cluster.hosts)
        self.state = State(hosts, len(plan.processes), f"{run.logs}/", self.preparation.readiness)
        self.asked_to_stop = self.stopping = False
        self.silences = [Silence() for _ in hosts]
        self.uncounted = 0.0
        self._connect_patience = CONNECT_PATIENCE + CONNECT_PATIENCE_A_HOST * len(hosts)
        self.gone: set[int] = set()
        self.lost: set[int] = set()
        self.began = self.hinted = time.monotonic()

    def run(self) -> Verdict:
        count, hosts = len(self.plan.processes), len(self.plan.cluster.hosts)
        on = self.state.hosts[0] if hosts == 1 else f"{hosts} hosts"
        what = "1 process" if count == 1 else f"{count} processes"
        self.screen.note(f"launch: {what} on {on}; logs in {self.state.logs}")
        self.events.add("run started", run=self.run_folder.id, processes=count)
        self._connect_all()
        try:
            verdict = self._watch()
            verdict = self._wind_up(verdict)
        finally:
            self._close_all()
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
            self.screen.follow(log, f"{process.process_id} {host.address}", process.process_id)
            identity = self.plan.identity(process, self.run_folder.id, 1, *self.state.readiness.coordinator)
            is_python = self.plan.job.command is None
            found = self.preparation.env_of(process.host, process.local_process_id)
            env = {**found, **process.env, **identity.to_env()}
            order = wire.Spawn(process.process_id, env, self.plan.argv(), is_python)
            self.channels[process.host].send(order)

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

    def _take_in(self, patience: float) -> bool:
        """One entry of the inbox into the state; False when none came."""
        began = time.monotonic()
        try:
            entry = self.inbox.get(timeout=patience)
        except queue.Empty:
            entry = None
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
            patience = self.plan.cluster.lease if number in greeted else self._connect_patience
            if number not in self.gone and self.silences[number].seconds > patience:
                said = "" if number in greeted else redact_arrival(Ended(number, channel.said), self.hidden).text
                self._lose(number, f"has been silent for {patience:g} s", said)
        self.state.quiet = any(self.silences[number].seconds > QUIET for number in greeted - self.gone)

    def _note_interrupt(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self.screen.note("launch: a run cannot be suspended: its agents would miss the launcher; Ctrl-C stops it")
            return
        if not self.state.interrupts:
            self.state.interrupted_at = time.monotonic()
            self.screen.note(f"launch: {verdicts.name_signal(number)}: {self._say_what_stops()} (again: at once)")
        self.state.interrupts.append(number)
        self.events.add("interrupted", signal=number)

    def _say_what_stops(self) -> str:
        if self.state.save_seconds is None:
            return "stopping the processes"
        return f"asked the processes to save and stop; up to {self.state.save_seconds:g} s"

    def _note_end(self, end: Ended) -> None:
        if end.unreachable is None:
            self._lose(end.host, "lost its agent", end.text)
        elif end.host not in self.gone:
            self._give_up(end.host, end.unreachable)

    def _lose(self, host: int, why: str, said: str) -> None:
        if host in self.gone:
            return
        from launcher.remedies import explain_no_agent, find_remedies

        if host not in self.state.readiness.greeted:
            self._give_up(host, explain_no_agent(why, said, self.plan.cluster.agent_python))
            return
        self.gone.add(host)
        self.lost.add(host)
        address = self.state.hosts[host]
        self.state.lost.append(
            verdicts.host_lost(address, why, "\n".join([said, *find_remedies(said)]), self.state.logs)
        )
        self.events.add("host lost", host=address, why=why)

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
                self.events.add("process started", **event._asdict(), host=state.hosts[host])
            case wire.Exited():
                self._note_exit(host, event)
            case wire.Drained():
                self.logs[event.process_id].close()
                self.screen.wake()
            case wire.Stacks() if event.process_id not in state.crashes:
                self._save(self.run_folder.stacks_of(event.process_id), event.data)
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
        return self.setup_logs[host]

    def _note_output(self, event: wire.Output) -> None:
        log = self.logs[event.process_id]
        was_fine = log.error is None
        log.write(event.data)
        self.screen.wake()
        if was_fine and log.error is not None:
            self.screen.note(f"launch: {log.path} cannot be written any more: {log.error.strerror}; the run goes on")
            self.events.add("log lost", process_id=event.process_id, why=str(log.error))

    def _note_exit(self, host: int, event: wire.Exited) -> None:
        state = self.state
        if event.process_id in state.exits:
            return
        state.exits[event.process_id] = event.code
        self.events.add("process exited", process_id=event.process_id, host=state.hosts[host], code=event.code)
        is_our_doing = self.stopping and event.code == -signal.SIGKILL
        if event.code != 0 and not is_our_doing:
            tail = last_whole_lines(event.data)
            at, crash = state.crashes.get(event.process_id, (time.monotonic(), None))
            failure = Failure(event.process_id, state.hosts[host], event.code, at, tail, crash)
            state.failures.append(failure)

    def _note_fact(self, host: int, fact: wire.Fact) -> None:
        address = self.state.hosts[host]
        if fact.process_id is not None:
            self._note_process_fact(fact.process_id, fact.name, fact.detail)
        elif fact.name == "nursery_failed":
            self.screen.note(f"launch: no warm start on {address}: {fact.detail['problem']}; starting cold")
        elif fact.name == "nursery_died":
            count = self.plan.cluster.hosts[host].processes
            self.state.nursery_death = verdicts.nursery_died(address, fact.detail["problem"], count, self.state.logs)
        if fact.name != "metrics" or fact.process_id == 0:  # those of all processes would fill a disk
            self.events.add(fact.name, host=address, process_id=fact.process_id, detail=fact.detail)

    def _note_process_fact(self, process_id: int, name: str, detail: dict[str, Any]) -> None:
        state = self.state
        match name, detail:
            case "crash", _:
                self._note_crash(process_id, detail)
            case "joining", _:
                state.joining.add(process_id)
            case "joined", _:
                state.joined.add(process_id)
            case "saves_when_stopped", {"seconds": int(seconds) | float(seconds)}:
                state.save_seconds = max(state.save_seconds or 0.0, seconds)
            case "saved", {"step": int(step)}:
                state.saved_step = step
            case "summary", _ if process_id == 0:
                self._save(self.run_folder.summary, self.run_folder.encode_json(detail))

    def _note_crash(self, process_id: int, detail: dict[str, Any]) -> None:
        crash = {**verdicts.NO_CRASH, **detail}
        self.state.crashes[process_id] = time.monotonic(), crash
        if crash["lost_peer"] or crash["explained"]:  # the process itself does not print it
            self._save(self.run_folder.stacks_of(process_id), str(crash["traceback"]).encode())

    def _save(self, path: Path, data: bytes) -> None:
        try:
            write_aside(path, data)
        except OSError as error:
            self.screen.note(f"launch: {path} cannot be written: {error.strerror}")

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
            channel.send(wire.Signal(signal.SIGTERM))

    def _living(self) -> list[Channel]:
        """Of hosts that have an agent; the others hear of the end when their streams are closed."""
        return [self.channels[number] for number in self.state.readiness.greeted - self.gone]

    def _wind_up(self, verdict: Verdict) -> Verdict:
        """Stop every host and take in what is still on its way; who else failed only becomes known now."""
        failed = verdict.outcome in ("failed", "host lost")
        culprit = next((f for f in self.state.failures if f.process_id == verdict.process_id), None)
        interrupts = len(self.state.interrupts)
        for process_id, log in self.logs.items():
            if culprit is not None and process_id != culprit.process_id:
                self.screen.mute(log)  # from here on the others would only complain of a lost peer
        self.stopping = True
        for channel in self._living():
            channel.send(wire.Stop(stacks=failed))
        deadline = time.monotonic() + WIND_UP_PATIENCE
        while self._living() and time.monotonic() < deadline:
            if self._take_in(TICK):
                deadline = time.monotonic() + WIND_UP_PATIENCE
            if len(self.state.interrupts) > max(interrupts, 1):
                break
        if culprit is not None:
            return blame(culprit, self.state)
        return verdict

    def _close_all(self) -> None:
        patience = {channel: self._patience_with(number) for number, channel in self.channels.items()}
        close_channels(patience, 3 * WIND_UP_PATIENCE)
        for log in (*self.logs.values(), *self.setup_logs.values()):
            log.close()
        self.screen.wake()

    def _patience_with(self, host: int) -> float:
        return LOST_PATIENCE if host in self.lost else CLOSE_PATIENCE


def last_whole_lines(tail: bytes) -> str:
    """Without the first line of a full tail: it may begin in the middle of a secret."""
    whole = tail.partition(b"\n")[2] if len(tail) >= wire.TAIL_LENGTH else tail
    return whole.decode("utf-8", "replace")


def name_some(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) if len(hosts) <= 4 else f"{', '.join(hosts[:3])} and {len(hosts) - 3} other hosts"
