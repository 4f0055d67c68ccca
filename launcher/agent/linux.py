"""The few Linux calls that Python has no name for; on other systems they do nothing."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
F_SETPIPE_SZ = 1031
FALLOC_FL_KEEP_SIZE_AND_PUNCH_HOLE = 1 | 2

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """For a fresh child: it gets the signal when the thread that forked it ends. If that has ended already, the child
    exits now."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """A descendant whose own parent dies becomes a child of this process, whatever session it is in."""
    if _libc is not None:
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def forget_beginning(fd: int, length: int) -> None:
    """Give the first bytes of a file back to the disk without moving the rest."""
    if _libc is not None:
        offset, size = ctypes.c_longlong(0), ctypes.c_longlong(length)
        _libc.fallocate(fd, FALLOC_FL_KEEP_SIZE_AND_PUNCH_HOLE, offset, size)


def enlarge_pipe(fd: int, size: int) -> None:
    """If the user's limit for pipes is used up, the pipe keeps its size."""
    if _libc is not None:
        try:
            fcntl.fcntl(fd, F_SETPIPE_SZ, size)
        except OSError:
            pass
