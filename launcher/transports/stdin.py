"""The launcher's own stdin, lent to a run of one process here: a debugger wants its terminal, a filter its pipe."""

from __future__ import annotations

import os
import termios

from hostmesh.launcher.planning.plan import Plan


class Stdin:
    """`fd` is what the process may read, None for nothing."""

    def __init__(self, plan: Plan) -> None:
        self.fd = _copy_own() if plan.cluster.transport == "local" and len(plan.processes) == 1 else None
        self.is_terminal = self.fd is not None and os.isatty(self.fd)
        self._mode = termios.tcgetattr(self.fd) if self.fd is not None and self.is_terminal else None

    def take_back(self) -> None:
        """A process that was killed may have left its terminal without an echo."""
        try:
            if self.fd is not None and self._mode is not None and termios.tcgetattr(self.fd) != self._mode:
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._mode)
        except termios.error:
            pass  # the terminal is gone


def _copy_own() -> int | None:
    try:
        return None if _is_in_background() else os.dup(0)
    except OSError:  # closed
        return None


def _is_in_background() -> bool:
    """Of a terminal: what a process read there would be taken from the shell."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False  # a terminal of no shell's that this launcher belongs to
