"""The agent's parent, which outlives it: when the agent ends, however it ends, nothing of the run is left."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import List, Optional

from hostmesh.launcher.agent.children.fresh_child import leave_stream
from hostmesh.launcher.agent.children.process_tree import kill_all
from hostmesh.launcher.agent.files import remove_file, remove_tree
from hostmesh.launcher.agent.leftovers.shared_memory import SharedMemory, remove_noted
from hostmesh.launcher.agent.leftovers.snapshots import snapshots_of
from hostmesh.launcher.agent.linux import adopt_orphans, die_with_parent

LOCK = "lock"  # in an agent's folder, held by it and its guardian; agent/unpack.py makes it
TICK = 1.0
# How long an agent may be silent before it has named its lease; it may be unpacking on a busy host.
FIRST_LIMIT = 60.0
# An agent that has been silent for longer would not hear of a SIGTERM.
NOT_AT_WORK = 3.0
# The launcher counts the same silence, and should give up before the guardian does.
BEYOND_LEASE = 2.0


class Guardian:
    """What the agent knows of its guardian."""

    def __init__(self, pid: int, pulse: int) -> None:
        self.pid, self._pulse = pid, pulse
        os.set_blocking(pulse, False)

    def reassure(self, lease: float) -> None:
        """Say that the agent is at work, and how long it may be silent."""
        try:
            os.write(self._pulse, b"%f\n" % lease)
        except OSError:
            pass  # it is dead or stopped, and this agent goes on as long as the launcher is there


def guard(mark: str, folder: str, shared_memory: SharedMemory) -> Guardian:
    """Fork: returns in the child, which goes on as the agent. The parent becomes the guardian and never returns."""
    guardian = os.getpid()
    adopt_orphans()
    heard, pulse = os.pipe()
    woken, waker = os.pipe()
    agent = os.fork()
    if agent == 0:
        for fd in (heard, woken, waker):
            os.close(fd)
        os.setsid()
        die_with_parent(guardian, signal.SIGTERM)
        adopt_orphans()
        return Guardian(guardian, pulse)
    os.close(pulse)
    leave_stream()
    for fd in (heard, woken, waker):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(waker)
    _await_end(agent, heard, woken, folder)
    kill_all(mark, set(), shared_memory.note_held)
    remove(folder)
    os._exit(0)


def _await_end(agent: int, heard: int, woken: int, folder: str) -> None:
    """Wait until the agent has ended. It hears of a SIGTERM that its guardian gets, and is killed at a second one, and
    when it has been silent for longer than its lease: an agent that is stopped cannot end its processes."""
    asked: List[int] = []
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _remove_stale_folders(folder)
    silence, limit, passed_on = 0.0, FIRST_LIMIT, 0
    while not _has_ended(agent):
        began = time.monotonic()
        if select.select([woken], [], [], TICK)[0]:
            os.read(woken, 4096)
        # A machine that was suspended must not count that as the agent's silence.
        silence += min(time.monotonic() - began, 2 * TICK)
        if lease := _hear(heard):
            silence, limit = 0.0, lease + BEYOND_LEASE
        if len(asked) > passed_on:
            passed_on = len(asked)
            os.kill(agent, signal.SIGKILL if passed_on > 1 or silence > NOT_AT_WORK else signal.SIGTERM)
        if silence > limit:
            os.kill(agent, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def _has_ended(agent: int) -> bool:
    """Reaps the processes that the guardian has inherited, too."""
    while True:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid in (0, agent):
            return pid == agent


def _hear(heard: int) -> Optional[float]:
    """The lease that the agent named last; None when it has been silent."""
    try:
        words = os.read(heard, 1 << 16).split()
    except BlockingIOError:
        return None
    return float(words[-1]) if words else None


def _remove_stale_folders(folder: str) -> None:
    """This run does not need it, so whatever goes wrong here must not end the guardian."""
    try:
        # Imported late, because the agent's start would wait for it.
        from hostmesh.launcher.agent.leftovers.stale_folders import remove_stale_folders

        remove_stale_folders(folder)
    except Exception:
        pass


def remove(folder: str) -> None:
    """Remove an agent's folder, which may be gone already, its snapshots and the shared memory that is noted in it. The
    lock goes last: if this is interrupted, agent/leftovers/stale_folders.py still recognises what is left as stale."""
    remove_noted(folder)
    for path in (snapshots_of(folder), folder):
        _remove_folder(path)


def _remove_folder(folder: str) -> None:
    try:
        if os.lstat(folder).st_uid != os.geteuid():
            return  # in /dev/shm anybody may have made it
        names = set(os.listdir(folder))
    except OSError:
        return
    for name in names - {LOCK}:
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            remove_tree(path)
        else:
            remove_file(path)
    remove_tree(folder)
