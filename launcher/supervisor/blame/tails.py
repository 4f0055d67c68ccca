"""What the last lines of a process say: did jax end it because of another, whom does jax name, what to show; pure."""

from __future__ import annotations

import re
from functools import lru_cache

from hostmesh.launcher.protocol import wire

# How jax ends a process that lost another, from a thread of its coordination client:
# F1117 02:09:59.848415    9802 client.h:80] Terminating process because the JAX distributed service detected fatal …
LOST_ANOTHER = re.compile(
    r"Terminating process because the (JAX distributed service|coordinator) detected"
    r"|Polled an error from coordination service|Failed to send RPC to coordination service"
)
# The last words of native code about itself: a failed check, an exception that nobody caught.
NATIVE_REASON = re.compile(r"^F\d{4} |^terminate called|Check failed:|Assertion .* failed", re.MULTILINE)
FATAL = re.compile(r"^Fatal Python error: .*", re.MULTILINE)
CURRENT = re.compile(r"^Current thread .*\n((?:  .*\n?)*)", re.MULTILINE)
OTHER_THREAD = re.compile(r"^Thread 0x", re.MULTILINE)
# A list of tasks, one a line, as `2` or `/job:jax_worker/replica:0/task:2`.
NAMED = re.compile(
    r"(?:unhealthy \(stopped sending heartbeats\)|Some timed out task names):\s*((?:^\s*(?:\S*task:)?\d+\s*$\n?)+)",
    re.MULTILINE,
)
NO_LEADER = re.compile(r"Failed to send RPC to coordination service\. Either the leader task")

NOISE = re.compile(
    r"\[Gloo\] Rank |\*\*\* Check failure stack trace|\s+@ +0x|Extension modules: "
    r"|[IWE]\d{4} [\d:.]+ +\d+ (preemption_sync_manager|coordination_service)"
    r"|Additional GRPC error information|:UNKNOWN:Error received from peer|RPC: /"
)
OWN_FRAME = re.compile(
    r'  File "([^"]*/code/(start|hostmesh/worker/process/(as_python/boot|nursery))\.py'
    r'|<frozen (runpy|importlib\.[^"]*)>)", line '
)
LIBRARY_FRAME = re.compile(r'  File "[^"]*/(site-packages|dist-packages|lib(64)?/python3[^/"]*)/|  File "<frozen ')
MAX_FRAMES = 6
MAX_REASONS = 2
# Asked at every event of a run's end, of as many tails as there are processes.
REMEMBERED = 4096


@lru_cache(REMEMBERED)
def was_aborted_by_jax(tail: str) -> bool:
    """Whether an abort is that of a process that lost another one, by what it wrote last.

    A call of abort() in a Python thread is its own. One in a native thread may be jax's, whose words a page of stacks
    has pushed out of a full tail: unless the process gave a reason, others come first.
    """
    if LOST_ANOTHER.search(tail):
        return True
    is_cut = len(tail) >= wire.TAIL_LENGTH // 2 and OTHER_THREAD.search(tail) is not None
    return is_cut and CURRENT.search(tail) is None and NATIVE_REASON.search(tail) is None


@lru_cache(REMEMBERED)
def tasks_named_by_jax(text: str) -> frozenset[int]:
    """Those that jax itself says it lost; the leader is process 0."""
    found = [number for match in NAMED.finditer(text) for number in re.findall(r"(\d+)\s*$", match[1], re.MULTILINE)]
    leader = ["0"] if NO_LEADER.search(text) else []
    return frozenset(map(int, found or leader))


def lines_worth_showing(tail: str, most: int) -> list[str]:
    """The end of a tail without what says nothing; of a fatal error first its reason and the user's own frames."""
    fatal = FATAL.search(tail)
    if fatal is None:
        return _without_noise(tail)[-most:]
    before = _without_noise(tail[: fatal.start()])
    reasons = [line for line in before if NATIVE_REASON.search(line)][-MAX_REASONS:]
    told = [*reasons, fatal[0], *_frames(tail[fatal.end() :])]
    others = [line for line in before if line not in reasons]
    return [*told, *others[max(0, len(others) - (most - len(told))) :]]


def _frames(dump: str) -> list[str]:
    """Of the thread that failed, innermost first: the user's, else the libraries'."""
    current = CURRENT.search(dump)
    frames = [line.rstrip() for line in current[1].splitlines()] if current else []
    frames = [frame for frame in frames if frame.strip() and not OWN_FRAME.match(frame)]
    return ([frame for frame in frames if not LIBRARY_FRAME.match(frame)] or frames)[:MAX_FRAMES]


def _without_noise(text: str) -> list[str]:
    kept, in_own_frame = [], False
    for line in text.splitlines():
        is_source = line.startswith("    ")  # of the frame above it
        in_own_frame = OWN_FRAME.match(line) is not None or (in_own_frame and is_source)
        if line.strip() and not in_own_frame and not NOISE.match(line):
            kept.append(line.rstrip())
    return kept


# `File "/job/train.py", line 9 in step` of faulthandler, and with a comma of a traceback.
FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+|\?+),? in (?P<name>.+)$')


@lru_cache(REMEMBERED)
def find_place(tail: str) -> str | None:
    """`/job/train.py:9 in step`: the user's innermost frame, of a fatal error or of the last traceback."""
    fatal = FATAL.search(tail)
    if fatal is not None:
        frames = _frames(tail[fatal.end() :])
    else:
        last = tail.rpartition("Traceback (most recent call last):\n")[2] if "Traceback (most" in tail else ""
        frames = [line for line in last.splitlines() if FRAME.match(line) and not OWN_FRAME.match(line)]
        frames = ([line for line in frames if not LIBRARY_FRAME.match(line)] or frames)[::-1]
    found = FRAME.match(frames[0]) if frames else None
    return f"{found['file']}:{found['line']} in {found['name'].strip()}" if found else None
