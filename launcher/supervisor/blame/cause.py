"""What ended one process: of what kind, in which words, at which line, from what it is concluded, how sure; pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from hostmesh.launcher.supervisor.blame.failures import NO_CRASH, REQUESTED, Failure
from hostmesh.launcher.supervisor.blame.kinds import BUG, CERTAIN, KILLED, LIKELY, OUT_OF_MEMORY, PREEMPTED, UNKNOWN
from hostmesh.launcher.supervisor.blame.memory import EndJudgement, judge_kill, judge_kill_below
from hostmesh.launcher.supervisor.blame.tails import find_place
from hostmesh.launcher.words import count_things
from hostmesh.worker.identity import EXIT_PREEMPTED

# Signals that a process gets for what it does itself.
NATIVE = frozenset(
    {
        *(signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE),
        *(signal.SIGTRAP, signal.SIGSYS, signal.SIGPIPE),
    }
)
# MemoryError, numpy's _ArrayMemoryError, torch's OutOfMemoryError.
MEMORY_TYPE = re.compile(r"(^|\.)(MemoryError|_?ArrayMemoryError|OutOfMemoryError)$")
# What jax raises when a device has no room: "RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes." Messages
# that are too long for gRPC, and full queues, have the same status.
NO_ROOM = re.compile(
    r"RESOURCE_EXHAUSTED: .*(out of memory|memory space|failed to allocate|attempting to (allocate|reserve))"
    r"|CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|\[Errno 12\] Cannot allocate memory",
    re.IGNORECASE | re.DOTALL,
)
# The last words of programs of which there is no crash record.
LAST_WORDS = re.compile(
    r"^(\w+\.)*(MemoryError|_ArrayMemoryError|OutOfMemoryError)\b|std::bad_alloc|^MemoryError$", re.MULTILINE
)


@dataclass(frozen=True)
class Cause:
    """`ended` is the end of "process 3 on gpu-b …"; `sentence` says the cause by itself."""

    kind: str
    sure: str
    ended: str
    sentence: str
    place: str | None = None
    evidence: tuple[str, ...] = ()


def find_cause(failure: Failure, step: int | None = None) -> Cause:
    """`step` is the last one that the process is known to have begun."""
    judged = _judge(failure)
    ended = describe_end(failure.code, judged, step)
    crash = failure.crash
    place = str(crash["place"]) if crash is not None and crash["place"] else find_place(failure.tail)
    return Cause(judged.kind, judged.sure, ended, _sentence(failure, ended), place, judged.evidence)


def describe_end(code: int, judged: EndJudgement, step: int | None = None) -> str:
    after = "" if step is None else f" after {count_things(step, 'step')}"
    memory = f"{'' if judged.sure == CERTAIN else 'probably '}out of memory ({judged.words})"
    if judged.kind == OUT_OF_MEMORY and judged.words and code == -signal.SIGKILL:
        return f"was killed{after}: {memory}"
    ended = how_it_ended(code) + after
    if judged.kind == OUT_OF_MEMORY and judged.words:
        return f"{ended}: {memory}"
    return f"{ended}; {judged.words}" if judged.words else ended


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with {code}" + (" (preempted)" if code == EXIT_PREEMPTED else "")
    return f"was killed by signal {-code} ({signal_name(-code)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"


def _judge(failure: Failure) -> EndJudgement:
    code = failure.code
    if failure.lost_a_peer:
        return EndJudgement(BUG, UNKNOWN, "", ("it reports a lost peer, and no other process is known to have failed",))
    if failure.was_preempted:
        return EndJudgement(PREEMPTED, LIKELY, "", (f"it exited with {EXIT_PREEMPTED}, and the others did not",))
    if (own := _judge_memory_of_its_own(failure)) is not None:
        return own
    if failure.crash is not None:
        return _judge_crash(failure)  # also if it was killed on its way out
    if code == -signal.SIGKILL:
        judged = judge_kill(failure.memory)
        evidence = ("SIGKILL, which this run had not sent", *judged.evidence)
        return EndJudgement(judged.kind, judged.sure, judged.words, evidence)
    return _judge_signal(failure, -code) if code < 0 else _judge_exit(failure)


def _judge_memory_of_its_own(failure: Failure) -> EndJudgement | None:
    """It says itself that it had no memory, or that it lost one below it for that."""
    crash = failure.crash
    if crash is not None:
        kind, message = str(crash["type"]), str(crash["message"])
        if MEMORY_TYPE.search(kind) or NO_ROOM.search(message):
            return EndJudgement(OUT_OF_MEMORY, CERTAIN, "", (f"it raised {kind}",))
    elif failure.code != -signal.SIGKILL and any(map(_says_no_room, failure.said)):
        return EndJudgement(OUT_OF_MEMORY, LIKELY, "", ("its last lines say so",))
    if 0 < failure.code != 128 + signal.SIGKILL:
        return judge_kill_below(failure.memory, "\n".join([*failure.said, str((crash or NO_CRASH)["message"])]))
    return None


def _says_no_room(line: str) -> bool:
    return LAST_WORDS.search(line) is not None or NO_ROOM.search(line) is not None


def _judge_crash(failure: Failure) -> EndJudgement:
    assert failure.crash is not None
    kind = str(failure.crash["type"])
    if kind == "KeyboardInterrupt":
        return EndJudgement(KILLED, CERTAIN, "", ("SIGINT, which this run had not sent",))
    raised = f"it raised {kind}" + (f" at {failure.crash['place']}" if failure.crash["place"] else "")
    return EndJudgement(BUG, CERTAIN, "", (raised,))


def _judge_signal(failure: Failure, number: int) -> EndJudgement:
    name = signal_name(number)
    if number in NATIVE:
        told = any(line.startswith("Fatal Python error") for line in failure.said)
        evidence = f"{name}, which a process gets for what it does itself"
        return EndJudgement(BUG, CERTAIN if told else LIKELY, "", (evidence, *(["it left its stack"] if told else [])))
    return EndJudgement(KILLED, CERTAIN, "", (f"{name}, which this run had not sent",))


def _judge_exit(failure: Failure) -> EndJudgement:
    """A shell says with 128 + n that its program got signal n."""
    number = failure.code - 128
    if number == signal.SIGKILL:
        judged = judge_kill(failure.memory, of_its_program=True)
        evidence = (f"exit code {failure.code}, which is a shell's word for SIGKILL", *judged.evidence)
        words = judged.words if judged.kind == OUT_OF_MEMORY else f"a shell's word for SIGKILL; {judged.words}"
        return EndJudgement(judged.kind, judged.sure, words, evidence)
    if failure.code in REQUESTED:
        return EndJudgement(
            KILLED, LIKELY, "", (f"exit code {failure.code}, which is a shell's word for {signal_name(number)}",)
        )
    return EndJudgement(BUG, CERTAIN, "", (f"it exited with {failure.code}",))


def _sentence(failure: Failure, ended: str) -> str:
    crash = failure.crash
    if crash is None:
        return f"process {failure.process_id} on {failure.host} {ended}"
    head = (str(crash["message"]).splitlines() or [""])[0]
    return head if crash["explained"] else f"{crash['type']}: {head}".rstrip(": ")
