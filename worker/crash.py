"""An uncaught exception as a record: its type, message, place in the user's code, and traceback."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from types import TracebackType

LONGEST_MESSAGE = 2000
LONGEST_TRACEBACK = 16_000
# What XLA raises when another process went away: a status, then words like "Gloo AllGather failed:
# [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:6540". The type varies.
LOST_PEER = re.compile(
    r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION): .*"
    r"(gloo|connection (reset|closed|refused)|socket closed|broken pipe|heartbeat|coordination (service|agent)"
    r"|shutdown barrier|barrier (timed|failed)|another task)",
    re.IGNORECASE | re.DOTALL,
)
LIBRARIES = tuple(os.path.join(path, "") for path in {*sysconfig.get_paths().values()})


def crash_record(error: BaseException) -> dict[str, object]:
    text = "".join(traceback.format_exception(error))
    return {
        "type": _type_name(error),
        "message": _message(error),
        "place": _place(error.__traceback__),
        "traceback": text[-LONGEST_TRACEBACK:],
        "lost_peer": getattr(error, "lost_peer", False) or LOST_PEER.match(_message(error)) is not None,
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_MESSAGE]
    except Exception:
        return "(its message cannot be shown)"


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"


def _place(trace: TracebackType | None) -> str | None:
    """`train.py:88 in main`: the innermost frame that is not a library's, else the innermost of all."""
    frames = traceback.extract_tb(trace)
    if not frames:
        return None
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    frame = (own or frames)[-1]
    return f"{_short_name(frame.filename)}:{frame.lineno} in {frame.name}"


def _short_name(path: str) -> str:
    try:
        return path if path.startswith("<") else os.path.relpath(path)
    except OSError:  # the working directory is gone
        return path
