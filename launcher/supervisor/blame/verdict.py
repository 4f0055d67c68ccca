"""Who ended a run and why: the cause first, the victims only counted; pure."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hostmesh.launcher.errors import EXIT_HANG, EXIT_HOST_LOST
from hostmesh.launcher.supervisor.blame import kinds
from hostmesh.launcher.supervisor.blame.failures import LAST_LINES, Failure
from hostmesh.launcher.supervisor.blame.others import Others, count_others
from hostmesh.launcher.words import agree, count_things
from hostmesh.worker.identity import EXIT_PREEMPTED

if TYPE_CHECKING:
    from hostmesh.launcher.supervisor.guard.findings import Finding
    from hostmesh.launcher.supervisor.programs.disagreement import Disagreement

# What explains a failure is imported where it is needed: a run that succeeds does without, and starts sooner.
NOT_FAILED = ("succeeded", "preempted", "stopped")
# Of a failure of a process, on the screen.
MAX_LINES = 12


@dataclass(frozen=True)
class Verdict:
    """`kind`, `sure` and those below them are what a script would ask for; see supervisor/blame/kinds.py."""

    outcome: str
    exit_code: int
    message: str
    process_id: int | None = None
    host: str | None = None
    victims: int = 0
    detail: list[str] = field(default_factory=list)
    remarks: tuple[str, ...] = ()  # what the user should know about a run that did not fail
    kind: str = kinds.NONE
    sure: str = kinds.CERTAIN
    cause: str = ""  # one sentence; the message where there is no other
    place: str | None = None  # `train.py:88 in main`
    evidence: tuple[str, ...] = ()  # what the kind and the culprit are concluded from
    victim_ids: tuple[int, ...] = ()
    last_step: int | None = None  # of the culprit; of the run where there is none

    def text(self, took: str = "") -> str:
        head = "; ".join([self.message + took, *self.remarks])
        return "\n".join([head, *("  " + line for line in self.detail)])

    def to_json(self) -> dict[str, Any]:
        """Under `verdict` in result.json."""
        has_culprit = self.process_id is not None or self.host is not None
        return {
            "kind": self.kind,
            "sure": self.sure,
            "culprit": {"process_id": self.process_id, "host": self.host} if has_culprit else None,
            "cause": self.cause or self.message,
            "place": self.place,
            "evidence": list(self.evidence),
            "victims": list(self.victim_ids),
            "last_step": self.last_step,
        }


def succeeded(count: int, separate: int = 0) -> Verdict:
    """`separate` of them used jax's devices and never joined the others, which may or may not have been meant."""
    message = "the process succeeded" if count == 1 else f"all {count} processes succeeded"
    who = "process" if separate == 1 else "processes"
    remarks = [f"{separate} {who} never joined and ran separately: is a hostmesh.join() missing?"] if separate else []
    return Verdict("succeeded", 0, message, remarks=tuple(remarks))


def process_failed(
    culprit: Failure, others: Others, logs: str, step: int | None = None, victims: Collection[int] = ()
) -> Verdict:
    """`step` is the culprit's last one."""
    from hostmesh.launcher.supervisor.blame.cause import find_cause
    from hostmesh.launcher.supervisor.blame.why import tell_why

    who, told_step = f"process {culprit.process_id} on {culprit.host}", step
    if others.alike == others.count > 0:
        who, told_step = f"all {others.count + 1} processes failed alike: each", None
    found, after = find_cause(culprit, told_step), [*others.tell(), f"Logs: {logs}"]
    return Verdict(
        *("failed", culprit.code if culprit.code > 0 else 128 - culprit.code, f"the run failed: {who} {found.ended}"),
        *(culprit.process_id, culprit.host, others.rest),
        detail=[*tell_why(culprit, MAX_LINES - 1 - len(after)), *after],
        kind=found.kind,
        sure=found.sure,
        cause=found.sentence,
        place=found.place,
        evidence=found.evidence,
        victim_ids=tuple(sorted(victims)),
        last_step=step,
    )


def with_evidence(verdict: Verdict, evidence: str) -> Verdict:
    return replace(verdict, evidence=(*verdict.evidence, evidence))


def less_sure(verdict: Verdict, evidence: str) -> Verdict:
    """Somebody else may have been first."""
    sure = kinds.LIKELY if verdict.sure == kinds.CERTAIN else verdict.sure
    return replace(with_evidence(verdict, evidence), sure=sure)


def with_last_step(verdict: Verdict, steps: Mapping[int, int], of_host: Collection[int]) -> Verdict:
    """The culprit's, if that is not known yet; `of_host` are the processes of a culprit that is a host."""
    if verdict.last_step is not None or not steps:
        return verdict
    who = [verdict.process_id] if verdict.process_id is not None else of_host or steps
    return replace(verdict, last_step=max((steps[each] for each in who if each in steps), default=None))


def process_left(leaver: Failure, victims: Sequence[Failure], logs: str) -> Verdict:
    """The run's exit code is 1: that of the process says nothing of the others."""
    first = min(victims, key=lambda victim: victim.at)
    later = max(0.0, first.at - leaver.at)
    message = (
        f"the run failed: process {leaver.process_id} on {leaver.host} left with exit code 0 "
        "while others were still working"
    )
    detail = [
        *leaver.said,
        f"process {first.process_id} on {first.host} lost it {later:.1f} s later.",
        "Every process must take as many steps as the others; the last thing it does is to leave jax.distributed.",
        f"Logs: {logs}",
    ]
    evidence = ("it exited with 0", f"{count_others(len(victims))} lost a peer after that, and nobody else failed")
    return Verdict(
        *("failed", 1, message, leaver.process_id, leaver.host, len(victims), detail),
        kind=kinds.BUG,
        sure=kinds.LIKELY,
        evidence=evidence,
        victim_ids=_ids(victims),
    )


def process_unheard(process_id: int, host: str, victims: Sequence[Failure], logs: str) -> Verdict:
    message = f"the run failed: process {process_id} on {host} runs, but jax in the others no longer hears from it"
    count = len(victims)
    detail = [f"{count_others(count)} {agree('was', count)} ended by jax for that.", f"Logs: {logs}"]
    return Verdict(
        *("failed", EXIT_HANG, message, process_id, host, count, detail),
        kind=kinds.HANG,
        sure=kinds.LIKELY,
        evidence=(f"jax in {count_others(count)} says that it lost this one", "it has not ended"),
        victim_ids=_ids(victims),
    )


def disagreement(
    found: Disagreement, process_id: int | None, host: str | None, failures: Sequence[Failure], logs: str
) -> Verdict:
    """`failures` are those of processes that the runtime has ended over it."""
    from hostmesh.launcher.supervisor.blame.cause import how_it_ended

    detail = [
        *(f"process {each.process_id} on {each.host} {how_it_ended(each.code)} over it." for each in failures[:1]),
        "They share their devices: jax computes with them all the same, and what comes out is wrong.",
        "JAX_DUMP_IR_TO=FOLDER writes down what each of them compiles. Where it is meant: --programs warn.",
        f"Logs: {logs}",
    ]
    message = f"the run failed: {found.text()}"
    victims = found.members - len(found.minority) if found.minority else 0
    return Verdict("failed", 1, message, process_id, host, victims, detail, kind=kinds.DISAGREEMENT)


def wrong_rows(
    finding: Finding, host_of: Callable[[int], str], process_id: int | None, host: str | None, logs: str
) -> Verdict:
    message = f"the run failed: {finding.text(lambda number: f'process {number} on {host_of(number)}')}"
    detail = [*finding.explain(), f"Logs: {logs}"]
    return Verdict("failed", 1, message, process_id, host, 0, detail, kind=kinds.DISAGREEMENT)


def launcher_was_away(seconds: float, lease: float, logs: str) -> Verdict:
    """No host is to blame; the processes are gone all the same."""
    message = f"the run failed: the launcher itself was away for {seconds:.0f} s (suspended, or its machine asleep)"
    detail = [
        f"Agents that hear nothing of the launcher for {lease:g} s (`lease` in the cluster file) end their processes.",
        f"Logs: {logs}",
    ]
    return Verdict("launcher away", EXIT_HOST_LOST, message, None, None, 0, detail, kind=kinds.INTERRUPTED)


def host_lost(host: str, why: str, said: str, logs: str) -> Verdict:
    detail = [*said.splitlines()[-LAST_LINES:], f"Logs: {logs}"]
    message = f"the run failed: {host} {why}"
    evidence = (f"{host} {why}",)
    return Verdict(
        *("host lost", EXIT_HOST_LOST, message, None, host, 0, detail), kind=kinds.HOST_LOST, evidence=evidence
    )


def with_others(verdict: Verdict, hosts: int, lost: Collection[int], others: Others) -> Verdict:
    """A lost host's, in a run that went on: `lost` processes went with `hosts`, and `others` are those elsewhere."""
    *detail, logs = verdict.detail
    count = len(lost)
    who, whom = count_things(count, "process"), "it" if hosts == 1 else f"{hosts} hosts"
    detail = [*detail, f"{who} {agree('was', count)} lost with {whom}.", *others.tell(), logs]
    return replace(verdict, victims=count, victim_ids=tuple(sorted(lost)), detail=detail)


def nursery_died(
    host: str, problem: str, code: int, victims: Sequence[int], logs: str, memory: Mapping[str, Any] | None = None
) -> Verdict:
    """`memory` is what its agent tells of its memory."""
    from hostmesh.launcher.supervisor.blame.memory import EndJudgement, judge_kill

    judged = EndJudgement(kinds.BUG, kinds.LIKELY, "")
    if code == -signal.SIGKILL:
        judged = judge_kill(memory or {})
    words = f" ({judged.kind}: {judged.words})" if judged.kind == kinds.OUT_OF_MEMORY else ""
    message = f"the run failed: the nursery on {host} died: {problem}{words}"
    detail = [f"{count_others(len(victims))} died with it.", f"Logs: {logs}"]
    return Verdict(
        *("failed", 128 - code if code < 0 else 1, message, None, host, len(victims), detail),
        kind=judged.kind,
        sure=judged.sure,
        evidence=(f"of the nursery is known: {problem}", *judged.evidence),
        victim_ids=tuple(victims),
    )


def preempted(step: int | None, host: str | None = None) -> Verdict:
    """`host` is the one that is taken away, where that is known."""
    saved = "" if step is None else f"; saved at step {step}: the same command goes on from there"
    whose = "preempted" if host is None else f"preempted: {host} is taken away"
    return Verdict(*("preempted", EXIT_PREEMPTED, f"{whose}{saved}"), host=host, kind=kinds.PREEMPTED, last_step=step)


def stopped_by(
    number: int, step: int | None = None, in_order: bool = False, failures: Sequence[Failure] = (), logs: str = ""
) -> Verdict:
    """`step` is that of the last save; `in_order` says that every process left after it. `failures` are processes that
    ended otherwise than by the request."""
    saved = "" if step is None else f"; {'' if in_order else 'last '}saved at step {step}"
    message, evidence = f"stopped by {name_signal(number)}{saved}", (f"the launcher got {name_signal(number)}",)
    detail = _tell(failures, logs)
    return Verdict("stopped", 128 + number, message, detail=detail, kind=kinds.INTERRUPTED, evidence=evidence)


def _tell(failures: Sequence[Failure], logs: str) -> list[str]:
    from hostmesh.launcher.supervisor.blame.cause import find_cause
    from hostmesh.launcher.supervisor.blame.why import tell_why

    if not failures:
        return []
    first, *others = failures
    who = f"process {first.process_id} on {first.host} {find_cause(first).ended}"
    too = [f"{count_others(len(others))} failed too."] if others else []
    after = [*too, f"Logs: {logs}"]
    return [who, *("  " + line for line in tell_why(first, MAX_LINES - 2 - len(after))), *after]


def not_stopped(verdict: Verdict, count: int, seconds: float, stacks: str | None) -> Verdict:
    """Of processes that had to be killed: where each of them was, as far as it could be asked."""
    who = count_things(count, "process")
    where = f"; stacks: {stacks}" if stacks else ""
    told = f"{who} did not stop within {seconds:g} s (--grace gives more){where}"
    return replace(verdict, detail=[*verdict.detail, told])


def with_remarks(verdict: Verdict, remarks: Sequence[str]) -> Verdict:
    """On the one line of a run that did not fail: a failure has its cause to tell."""
    return replace(verdict, remarks=(*verdict.remarks, *remarks)) if verdict.outcome in NOT_FAILED else verdict


def name_signal(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _ids(failures: Sequence[Failure]) -> tuple[int, ...]:
    return tuple(sorted(failure.process_id for failure in failures))
