"""Who ended a run and why: the cause first, the victims only counted; pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hostmesh.launcher.errors import EXIT_HANG, EXIT_HOST_LOST, EXIT_USAGE
from hostmesh.launcher.supervisor.disagreement import Disagreement
from hostmesh.launcher.supervisor.failures import LAST_LINES, Failure
from hostmesh.launcher.words import count_things
from hostmesh.worker.identity import EXIT_PREEMPTED

NOT_FAILED = ("succeeded", "preempted", "stopped")
# Of commands there is no crash record, but their last words may have a cause that is known here: a Python that does
# without what was put on its PYTHONPATH, and a stdin that there is not.
KNOWN_CAUSES = {
    re.compile(r"Number of processes must be defined"): (
        "A Python that leaves PYTHONPATH alone (-I, -E, -S, or a `hostmesh` of its own) does not know the others: give",
        "initialize() num_processes and process_id, from HOSTMESH_NUM_PROCESSES and HOSTMESH_PROCESS_ID.",
    ),
    re.compile(r"^(EOFError: EOF when reading a line|bdb\.BdbQuit)"): (
        "Its stdin had nothing to read: only `launch --local 1` in the foreground passes its own on to the process.",
    ),
}


@dataclass(frozen=True)
class Others:
    """What became of the processes beside the culprit: in all, failed in the same way, succeeded, lost with a host.

    The rest was stopped because of the culprit; unless they `went_on`, and failed by themselves.
    """

    count: int
    alike: int = 0
    succeeded: int = 0
    lost: int = 0
    went_on: bool = False

    @property
    def rest(self) -> int:
        return self.count - self.alike - self.succeeded - self.lost

    def tell(self) -> list[str]:
        told = []
        if self.alike and self.alike < self.count:
            told.append(f"{_others(self.alike)} failed in the same way.")
        if self.rest and self.went_on:
            told.append(f"{_others(self.rest)} failed as well.")
        elif self.rest:
            told.append(f"{_others(self.rest)} {'was' if self.rest == 1 else 'were'} stopped.")
        if self.lost:
            told.append(f"{_others(self.lost)} {'was' if self.lost == 1 else 'were'} lost with a host.")
        if self.went_on and self.succeeded:
            told.append(f"{_others(self.succeeded)} succeeded.")
        return told


@dataclass(frozen=True)
class Verdict:
    outcome: str
    exit_code: int
    message: str
    process_id: int | None = None
    host: str | None = None
    victims: int = 0
    detail: list[str] = field(default_factory=list)
    remarks: tuple[str, ...] = ()  # about a run that ended well enough, and yet
    kind: str = ""

    def text(self, took: str = "") -> str:
        head = "; ".join([self.message + took, *self.remarks])
        return "\n".join([head, *("  " + line for line in self.detail)])


def succeeded(count: int, separate: int = 0) -> Verdict:
    """`separate` of them used jax's devices and never joined the others, which may or may not have been meant."""
    message = "the process succeeded" if count == 1 else f"all {count} processes succeeded"
    who = "process" if separate == 1 else "processes"
    remarks = [f"{separate} {who} never joined and ran separately: is a hostmesh.join() missing?"] if separate else []
    return Verdict("succeeded", 0, message, remarks=tuple(remarks))


def process_failed(culprit: Failure, others: Others, logs: str) -> Verdict:
    who = f"process {culprit.process_id} on {culprit.host}"
    if others.alike == others.count > 0:
        who = f"all {others.count + 1} processes failed alike: each"
    detail = [*_why(culprit), *others.tell(), f"Logs: {logs}"]
    code = culprit.code if culprit.code > 0 else 128 - culprit.code
    message = f"the run failed: {who} {how_it_ended(culprit.code)}"
    return Verdict("failed", code, message, culprit.process_id, culprit.host, others.rest, detail)


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
    return Verdict("failed", 1, message, leaver.process_id, leaver.host, len(victims), detail)


def process_unheard(process_id: int, host: str, victims: int, logs: str) -> Verdict:
    message = f"the run failed: process {process_id} on {host} runs, but jax in the others no longer hears from it"
    detail = [f"{_others(victims)} {'was' if victims == 1 else 'were'} ended by jax for that.", f"Logs: {logs}"]
    return Verdict("failed", EXIT_HANG, message, process_id, host, victims, detail)


def disagreement(
    found: Disagreement, process_id: int | None, host: str | None, failures: Sequence[Failure], logs: str
) -> Verdict:
    """`failures` are those of processes that the runtime has ended over it."""
    detail = [
        *(f"process {each.process_id} on {each.host} {how_it_ended(each.code)} over it." for each in failures[:1]),
        "They share their devices: jax computes with them all the same, and what comes out is wrong.",
        "JAX_DUMP_IR_TO=FOLDER writes down what each of them compiles. Where it is meant: --programs warn.",
        f"Logs: {logs}",
    ]
    message = f"the run failed: {found.text()}"
    victims = found.members - len(found.minority) if found.minority else 0
    return Verdict("failed", 1, message, process_id, host, victims, detail, kind="disagreement")


def launcher_was_away(seconds: float, lease: float, logs: str) -> Verdict:
    """No host is to blame; the processes are gone all the same."""
    message = f"the run failed: the launcher itself was away for {seconds:.0f} s (suspended, or its machine asleep)"
    detail = [
        f"Agents that hear nothing of the launcher for {lease:g} s (`lease` in the cluster file) end their processes.",
        f"Logs: {logs}",
    ]
    return Verdict("launcher away", EXIT_HOST_LOST, message, None, None, 0, detail)


def host_lost(host: str, why: str, said: str, logs: str) -> Verdict:
    detail = [*said.splitlines()[-LAST_LINES:], f"Logs: {logs}"]
    return Verdict("host lost", EXIT_HOST_LOST, f"the run failed: {host} {why}", None, host, 0, detail)


def with_others(verdict: Verdict, hosts: int, lost: int, others: Others) -> Verdict:
    """A lost host's, in a run that went on: `lost` processes went with `hosts`, and `others` are those elsewhere."""
    *detail, logs = verdict.detail
    who, whom = "1 process was" if lost == 1 else f"{lost} processes were", "it" if hosts == 1 else f"{hosts} hosts"
    return replace(verdict, victims=lost, detail=[*detail, f"{who} lost with {whom}.", *others.tell(), logs])


def refused(problems: Mapping[str, Sequence[str]]) -> Verdict:
    return Verdict("refused", EXIT_USAGE, "nothing was started", detail=_list_problems(problems))


def unsendable(problem: str) -> Verdict:
    """A file of this machine; no host is to blame."""
    return Verdict("refused", EXIT_USAGE, f"nothing was started: {problem}")


def unreachable(hosts: int, problems: Mapping[str, str], others: Mapping[str, Sequence[str]]) -> Verdict:
    """Every host's answer: `problems` of those that cannot be reached, and what `others` refused."""
    first = next(iter(problems))
    who = first if len(problems) == 1 else f"{len(problems)} of {hosts} hosts"
    detail = _list_problems({**{host: [problem] for host, problem in problems.items()}, **others})
    return Verdict("host lost", EXIT_HOST_LOST, f"nothing was started: {who} cannot be used", None, first, 0, detail)


def _list_problems(problems: Mapping[str, Sequence[str]]) -> list[str]:
    lines = [f"{host}: {problem}".splitlines() for host, found in problems.items() for problem in found]
    return [line for each in lines for line in each]


def nursery_died(host: str, problem: str, code: int, victims: int, logs: str) -> Verdict:
    message = f"the run failed: the nursery on {host} died: {problem}"
    detail = [f"{_others(victims)} died with it.", f"Logs: {logs}"]
    return Verdict("failed", 128 - code if code < 0 else 1, message, None, host, victims, detail)


def preempted(step: int | None) -> Verdict:
    saved = "" if step is None else f"; saved at step {step}: the same command goes on from there"
    return Verdict("preempted", EXIT_PREEMPTED, f"preempted{saved}")


def stopped_by(
    number: int, step: int | None = None, in_order: bool = False, failures: Sequence[Failure] = (), logs: str = ""
) -> Verdict:
    """`step` is that of the last save; `in_order` says that every process left after it. `failures` are processes that
    ended otherwise than by the request."""
    saved = "" if step is None else f"; {'' if in_order else 'last '}saved at step {step}"
    return Verdict("stopped", 128 + number, f"stopped by {name_signal(number)}{saved}", detail=_tell(failures, logs))


def _tell(failures: Sequence[Failure], logs: str) -> list[str]:
    if not failures:
        return []
    first, *others = failures
    who = f"process {first.process_id} on {first.host} {how_it_ended(first.code)}"
    too = [f"{_others(len(others))} failed too."] if others else []
    return [who, *("  " + line for line in _why(first)), *too, f"Logs: {logs}"]


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


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with {code}" + (" (preempted)" if code == EXIT_PREEMPTED else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a real-time signal"
    hint = "; was the host out of memory?" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}){hint}"


def _why(failure: Failure) -> list[str]:
    crash = failure.crash
    if crash is None:
        known = [lines for words, lines in KNOWN_CAUSES.items() if any(map(words.search, failure.said))]
        return [*failure.said, *(line for lines in known for line in lines)]
    head, *rest = str(crash["message"]).splitlines() or [""]
    if crash["explained"]:
        return _shorten([head, *rest])
    place = [f"  {crash['place']}"] if crash["place"] else []
    if crash["hint"]:
        place.append(str(crash["hint"]))
    if failure.said and crash["type"] == "SystemExit" and head.isdecimal():
        return [*failure.said, *place]  # sys.exit(2) explains nothing; what was printed before it may
    return [f"{crash['type']}: {head}".rstrip(": "), *rest[:3], *place]


def _shorten(lines: list[str]) -> list[str]:
    left = len(lines) - LAST_LINES
    return lines if left <= 0 else [*lines[:LAST_LINES], f"… and {left} more {'line' if left == 1 else 'lines'}"]


def _others(count: int) -> str:
    return count_things(count, "other process")
