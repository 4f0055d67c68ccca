"""An uncaught exception as a record: its type, message, line in the user's code, and traceback."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections.abc import Iterator
from types import TracebackType

from hostmesh.worker.process.user_frames import describe_frame, find_user_frame, is_library

MAX_MESSAGE = 2000
MAX_TRACEBACK = 16_000
# What XLA raises when another process went away: a status, then words like "Gloo AllGather failed:
# [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:6540". The type varies.
LOST_PEER = re.compile(
    r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION): .*"
    r"(gloo|connection (reset|closed|refused)|socket closed|broken pipe|heartbeat|coordination (service|agent)"
    r"|shutdown barrier|barrier (timed|failed)|another task)",
    re.IGNORECASE | re.DOTALL,
)
# gloo's word for processes that are both there and do different things: no peer was lost.
MISMATCH = re.compile(r"collective mismatch", re.IGNORECASE)
# How jax hands on what a callback raised: its traceback, without source lines, in the message of an error of its own.
CALLBACK = re.compile(r"CpuCallback error|error calling callback", re.IGNORECASE)
# What input() raises, and the reason for it here.
END_OF_INPUT = "EOF when reading a line"
NO_INPUT = "this process has no stdin: only `launch --local 1` in the foreground passes its own on, for input() and pdb"
TRACEBACK = "Traceback (most recent call last):\n"
FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>.*)')


def crash_record(error: BaseException) -> dict[str, object]:
    text = "".join(traceback.format_exception(error))
    kind, message, where = _type_name(error), _message(error), _raised_at(error.__traceback__)
    if (inner := _raised_by_callback(message)) is not None:
        kind, message, inner_where = inner
        where = f"{inner_where} (a callback of {where})" if inner_where else where
    return {
        "type": kind,
        "message": message[:MAX_MESSAGE],
        "place": where,
        "traceback": text[-MAX_TRACEBACK:],
        "lost_peer": any(map(_is_lost_peer, _chain(error))),
        "hint": explain_no_input(error),
        "at": time.time(),
    }


def explain_no_input(error: BaseException) -> str | None:
    """For an exception of `input()`, or of the debugger's prompt, in a process that has no input."""
    *_, last = [None, *(frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__))]
    asked = (isinstance(error, EOFError) and str(error) == END_OF_INPUT) or last in ("bdb", "pdb")
    return NO_INPUT if asked and _reads_nothing() else None


def _reads_nothing() -> bool:
    try:
        return os.path.samestat(os.fstat(0), os.stat(os.devnull))
    except OSError:
        return True


def _is_lost_peer(error: BaseException) -> bool:
    message = _message(error)
    if (inner := _raised_by_callback(message)) is not None:
        message = inner[1]
    says_so = LOST_PEER.match(message) is not None and MISMATCH.search(message) is None
    return bool(getattr(error, "lost_peer", False)) or says_so


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those it was raised from: a script may put a lost peer into words of its own."""
    seen: set[int] = set()
    step: BaseException | None = error
    while step is not None and id(step) not in seen:
        seen.add(id(step))
        yield step
        step = step.__cause__ or (None if step.__suppress_context__ else step.__context__)


def _raised_by_callback(message: str) -> tuple[str, str, str | None] | None:
    """Type, message and line of the user's own exception inside jax's, if there is one."""
    head, found, rest = message.rpartition(TRACEBACK)
    if not found or not CALLBACK.search(head):
        return None
    lines = rest.splitlines()
    frames = [match for line in lines if (match := FRAME.match(line))]
    unindented = [line for line in lines if not line.startswith("  ")]
    own = [frame for frame in frames if not is_library(frame["file"])]
    if not unindented or not own:
        return None
    kind, _, first = unindented[0].partition(": ")
    where = describe_frame(own[-1]["file"], own[-1]["line"], own[-1]["name"])
    return kind, "\n".join([first, *unindented[1:]]).strip(), where


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"


def _raised_at(trace: TracebackType | None) -> str | None:
    """The innermost frame of the user's code. Else the innermost that is not a library's, else the innermost of all."""
    if (where := find_user_frame(trace)) is not None:
        return where
    frames = traceback.extract_tb(trace)
    if not frames:
        return None
    frame = ([frame for frame in frames if not is_library(frame.filename)] or frames)[-1]
    return describe_frame(frame.filename, frame.lineno, frame.name)
