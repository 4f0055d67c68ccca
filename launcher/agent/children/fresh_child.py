"""What a forked child does first: it gives up the signals and the stream that are its parent's."""

from __future__ import annotations

import os
import signal
from typing import Iterable

from hostmesh.launcher.agent.linux import die_with_parent

# The signals that an agent handles.
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


def leave_parent(parent: int, handled: Iterable[int] = HANDLED) -> None:
    """The child dies with its parent, and the signals in `handled` do to it what they do to any program."""
    die_with_parent(parent)
    signal.set_wakeup_fd(-1)
    for number in handled:
        signal.signal(number, signal.SIG_DFL)


def leave_stream() -> None:
    """Nothing that this process prints may reach the stream to the launcher, and the stream must end with the agent."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
