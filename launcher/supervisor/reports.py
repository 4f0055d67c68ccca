"""What agents report of processes, noted in the state of the run and told to the user."""

from __future__ import annotations

import math
import signal
from typing import Any, TypeGuard

from hostmesh.launcher.output.metrics import Metrics
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.blame import verdict
from hostmesh.launcher.supervisor.blame.failures import NO_CRASH, NO_MEMORY, Failure
from hostmesh.launcher.supervisor.going_on.restarts import tell_again
from hostmesh.launcher.supervisor.link.inbox import Inbox
from hostmesh.launcher.supervisor.records import Records
from hostmesh.launcher.supervisor.state.host import HostState
from hostmesh.launcher.supervisor.state.run_state import RunState

# In a run that goes on; all of them are in its events.
MAX_FAILURES_TOLD = 8
MAX_DISAGREEMENTS_TOLD = 8
ROW_FACTS = ("row parts", "rows", "rows again")
PROGRAM_FACTS = ("program", "program compiled", "programs not compared")


class Reports:
    """`is_ending` is True once the supervisor stops the processes itself."""

    def __init__(self, state: RunState, records: Records, metrics: Metrics, inbox: Inbox) -> None:
        self._state, self._records, self._metrics, self._inbox = state, records, metrics, inbox
        self._failures_told = self._disagreements_told = 0
        self._is_told_of_programs = False
        self.is_ending = False

    def note_event(self, host: HostState, event: Any) -> bool:
        """Whether the event was one about processes."""
        match event:
            case wire.Output():
                self._records.add_output(event.process_id, event.data)
                self._state.progress[event.process_id].note_sign_of_life(self._inbox.now())
            case wire.Observed():
                self._state.progress[event.process_id].note_observed(event, self._inbox.now())
            case wire.Examined():
                self._state.progress[event.process_id].note_examined(event, self._inbox.now())
            case wire.Started():
                self._state.started.add(event.process_id)
                self._records.tell("process started", **event._asdict(), host=host.name)
            case wire.Exited():
                self._note_exit(host, event)
            case wire.Drained():
                self._records.close_log(event.process_id)
            case wire.Stacks():
                if event.process_id not in self._state.crashes:
                    self._records.keep_stacks(event.process_id, event.data)
            case wire.Fact():
                self._note_fact(host, event)
            case wire.Listening() if self._state.network is not None:
                self._state.network.ports[host.number] = event.port
            case wire.Connected() if self._state.network is not None:
                self._state.network.problems[host.number] = event.problems
            case _:
                return False
        return True

    def tell_who_goes_on(self, failed: str) -> None:
        """A thousand failures would bury what the others print."""
        state = self._state
        if not state.keep_going or state.interrupts or state.everyone_ended or not state.spawned:
            return
        self._failures_told += 1
        if self._failures_told <= MAX_FAILURES_TOLD:
            more = "" if self._failures_told < MAX_FAILURES_TOLD else "; further failures are told at the end"
            self._records.note(f"launch: {failed}; the others go on{more}")

    def _note_exit(self, host: HostState, event: wire.Exited) -> None:
        state = self._state
        if event.process_id in state.exits:
            return
        state.exits[event.process_id] = event.code
        state.progress[event.process_id].moved_at = self._inbox.now()
        at, clock_error = self._when(host, event)
        known = state.crashes.get(event.process_id)
        detail = {"code": event.code, "at": round(at, 3), **({"memory": event.memory} if event.memory else {})}
        self._records.tell("process exited", process_id=event.process_id, host=host.name, **detail)
        if self.is_ending and event.code == -signal.SIGKILL:
            return  # the supervisor had it killed
        tail = last_whole_lines(event.data)
        began, crash = known or (self._inbox.to_now(at), None)
        if crash is not None and is_number(crash.get("at")):  # the host's clock may be better known by now
            began = self._inbox.to_now(host.clock.bring_here(crash["at"], self._inbox.wall_clock())[0])
        memory = {**NO_MEMORY, **event.memory} if event.memory else {}
        failure = Failure(event.process_id, host.name, event.code, began, tail, crash, clock_error, memory)
        (state.failures if event.code != 0 else state.leavers).append(failure)
        if event.code != 0:
            from hostmesh.launcher.supervisor.blame.cause import find_cause  # few runs need it

            ended = find_cause(failure, state.steps.get(event.process_id)).ended
            self.tell_who_goes_on(f"process {event.process_id} on {host.name} {ended}")

    def _when(self, host: HostState, event: wire.Exited) -> tuple[float, float]:
        """When a process ended, by this machine's clock, and how far that may be wrong."""
        now = self._inbox.wall_clock()
        host.clock.note_heard(event.at, now)
        if event.ahead is not None:
            host.clock.note_sent(event.ahead)
        return host.clock.bring_here(event.at, now)

    def _note_fact(self, host: HostState, fact: wire.Fact) -> None:
        if fact.process_id is not None:
            self._note_process_fact(host, fact.process_id, fact.name, fact.detail)
        elif fact.name == "nursery_failed":
            self._records.note(f"launch: no warm start on {host.name}: {fact.detail['problem']}; starting cold")
        elif fact.name == "nursery_died":
            problem, code = fact.detail["problem"], fact.detail["code"]
            logs = self._state.logs
            known = {**NO_MEMORY, **told} if (told := fact.detail.get("memory")) else {}
            self._state.nursery_death = verdict.nursery_died(host.name, problem, code, host.process_ids, logs, known)
        if fact.name in ROW_FACTS:
            self._note_rows(fact)
            return
        is_of_programs = fact.name in PROGRAM_FACTS
        if self._note_program(fact) if is_of_programs else not self._metrics.note_fact(host.name, fact):
            self._records.tell(fact.name, host=host.name, process_id=fact.process_id, detail=fact.detail)

    def _note_rows(self, fact: wire.Fact) -> None:
        """They are kept by nobody: there may be thousands a second."""
        state = self._state
        if fact.process_id is None:
            return
        if state.guard is None:
            from hostmesh.launcher.supervisor.guard.comparison import Guard

            state.guard = Guard(state.num_processes)
        state.guard.note(fact.process_id, fact.name, fact.detail, self._inbox.now())
        while state.guard.notes:
            text = state.guard.notes.pop(0)
            self._records.note(f"launch: {text}")
            self._records.tell("rows noted", message=text)

    def _note_program(self, fact: wire.Fact) -> bool:
        """Whether it is kept as an event: of a program only the first report is."""
        programs = self._state.programs
        if fact.process_id is not None and fact.name == "program":
            self._state.joined.add(fact.process_id)  # it computes with the others, whatever became of its word of that
        is_new = fact.process_id is not None and programs.note(
            fact.process_id, fact.name, fact.detail, self._inbox.now()
        )
        if programs.problem is not None and not self._is_told_of_programs:
            self._is_told_of_programs = True
            self._records.note(f"launch: programs are not compared: process {fact.process_id}: {programs.problem}")
        return is_new or fact.name == "programs not compared"

    def tell_disagreement(self) -> None:
        """In a run that goes on in spite of it."""
        state = self._state
        if state.ends_at_disagreement:
            return
        found = state.find_disagreement(self._inbox.now(), state.exits.keys())
        if found is None:
            return
        state.programs.accept(found)
        self._records.tell("disagreement", message=found.text(), minority=list(found.minority))
        self._disagreements_told += 1
        if self._disagreements_told <= MAX_DISAGREEMENTS_TOLD:
            more = "" if self._disagreements_told < MAX_DISAGREEMENTS_TOLD else "; further ones are in events.jsonl"
            self._records.note(f"launch: {found.text()}; what they compute together is wrong{more}")

    def _note_process_fact(self, host: HostState, process_id: int, name: str, detail: dict[str, Any]) -> None:
        state = self._state
        state.progress[process_id].note_sign_of_life(self._inbox.now())
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
                state.saved_step, state.saved_at = step, self._inbox.now()
            case "resumed", {"step": int(step), "source": str(source)} if process_id == 0:
                self._note_resumed(step, source)
            case "dropped", {"facts": int(facts), "bytes": int(count)}:
                self._note_dropped(process_id, facts, count)
            case "chaos", {"fault": int(), "kind": str()}:
                from hostmesh.launcher.chaos.telling import tell_done  # only a rehearsal needs it

                state.faults_told.append(detail)
                self._records.note(tell_done(process_id, host.name, detail))
            case "summary", _ if process_id == 0:
                run = self._records.run
                self._records.keep(run.summary, run.encode_json(detail))

    def _note_resumed(self, step: int, source: str) -> None:
        """It is told where it differs from what was announced when the attempt began."""
        state = self._state
        state.resumed_step, state.resumed_source = step, source
        if state.attempt > 1 and step != state.saved_step:
            where = "kept in memory" if source == "memory" else "saved on disk"
            again = tell_again(step, state.reached_before)
            self._records.note(f"launch: attempt {state.attempt} goes on from step {step}, {where}; {again}")

    def _note_dropped(self, process_id: int, facts: int, count: int) -> None:
        if facts:
            self._records.note(f"launch: {facts} reports of process {process_id} were dropped: they came too fast")
        if count:
            why = "the temporary folder of its host has no room"
            self._records.note(f"launch: {count:,} bytes that process {process_id} printed were lost: {why}")

    def _note_crash(self, host: HostState, process_id: int, detail: dict[str, Any]) -> None:
        crash = {**NO_CRASH, **detail}
        at = self._inbox.wall_clock()
        if is_number(there := crash.get("at")):
            at, _ = host.clock.bring_here(there, at)
        self._state.crashes[process_id] = self._inbox.to_now(at), crash
        is_one_of_many = crash["type"] == "KeyboardInterrupt" and self._state.num_processes > 1
        if crash["lost_peer"] or crash["explained"] or is_one_of_many:  # the process itself does not print it
            self._records.keep(self._records.run.stacks_of(process_id), str(crash["traceback"]).encode())


def is_number(value: Any) -> TypeGuard[float]:
    """What a process says about itself may be anything."""
    return isinstance(value, int | float) and math.isfinite(value)


def last_whole_lines(tail: bytes) -> str:
    """Without the first line of a full tail: it may begin in the middle of a secret."""
    whole = tail.partition(b"\n")[2] if len(tail) >= wire.TAIL_LENGTH else tail
    return whole.decode("utf-8", "replace")
