"""Warnings that this host will soon be taken away: a signal, a file that appears, or a command that succeeds."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable, Optional

from hostmesh.launcher.agent.children.child_task import ChildTasks
from hostmesh.launcher.protocol import wire

COMMAND_TIMEOUT = 30.0


class Notices:
    """Looks while it is told to, and tells the launcher once. What may block is done in a child."""

    def __init__(self, tasks: ChildTasks, send: Callable[[Any], None]) -> None:
        self._tasks, self._send = tasks, send
        self._watch: Optional[wire.WatchNotices] = None
        self._is_looking = False
        self._look_at = 0.0
        self.has_told = False

    def begin(self, order: wire.WatchNotices) -> None:
        self._watch = order

    def keep_time(self) -> None:
        now = time.monotonic()
        if self._watch is None or self.has_told or self._is_looking or now < self._look_at:
            return
        self._is_looking, self._look_at = True, now + self._watch.every
        watch = self._watch
        self._tasks.begin(lambda: look(watch), self._note, COMMAND_TIMEOUT, "looking for a notice", self._note_problem)

    def tell(self, reason: str) -> None:
        if not self.has_told:
            self.has_told = True
            self._send(wire.Notice(reason))

    def _note(self, reason: Optional[str]) -> None:
        self._is_looking = False
        if reason is not None:
            self.tell(reason)

    def _note_problem(self, _: str) -> None:
        """A command that hangs has not succeeded."""
        self._is_looking = False


def look(watch: wire.WatchNotices) -> Optional[str]:
    """Why the host will be taken away; None where nothing says so."""
    if watch.file is not None and os.path.exists(os.path.expanduser(watch.file)):
        return f"{watch.file} is there"
    if watch.command is not None:
        quiet = subprocess.DEVNULL
        if subprocess.call(["/bin/sh", "-c", watch.command], stdin=quiet, stdout=quiet, stderr=quiet) == 0:
            return "the command of preemption: has succeeded"
    return None
