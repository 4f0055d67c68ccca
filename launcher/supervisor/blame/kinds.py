"""What may have ended a run, and how sure a verdict is of it."""

from __future__ import annotations

# A run that succeeded has no kind, and neither has one that was refused: nothing was started.
NONE = ""
BUG = "bug"  # a process failed by itself: an exception, an exit code, native code
KILLED = "killed"  # by a signal that nobody of this run has sent
OUT_OF_MEMORY = "out of memory"
HOST_LOST = "host lost"
PREEMPTED = "preempted"
HANG = "hang"
DISAGREEMENT = "disagreement"
INTERRUPTED = "interrupted"

CERTAIN = "certain"  # somebody said so: the process itself, the kernel, the user
LIKELY = "likely"  # it explains what is known, and nothing known speaks against it
UNKNOWN = "unknown"  # something else may have been the cause
