"""The agent's parent, which outlives it: when the agent ends, however it ends, nothing of the run is left."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Optional

from hostmesh.launcher.agent.files import remove_file
from hostmesh.launcher.agent.linux import adopt_orphans, die_with_parent
from hostmesh.launcher.agent.process_tree import kill_all
from hostmesh.launcher.agent.segments import Segments, remove_noted

LOCK = "lock"  # in an agent's folder, held by it and its guardian; agent/unpack.py makes it
TICK = 1.0
# Before the agent has named its lease; it may be unpacking on a busy host.
FIRST_LIMIT = 60.0
# The launcher, which counts the same silence, is to be the first that gives up.
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


def guard(mark: str, folder: str, segments: Segments) -> Guardian:
    """Fork: returns in the child, which goes on as the agent; the parent stays and never returns."""
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
    _let_go_of_the_stream()
    for fd in (heard, woken, waker):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(waker)
    _await_end(agent, heard, woken, folder)
    kill_all(mark, set(), segments.note_held)
    remove(folder)
    os._exit(0)


def _await_end(agent: int, heard: int, woken: int, folder: str) -> None:
    """Of the agent, which is killed when somebody asks for it, or when it has been silent for longer than its lease: a
    stopped agent could not end its processes."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGKILL))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _sweep(folder)
    silence, limit = 0.0, FIRST_LIMIT
    while not _has_ended(agent):
        began = time.monotonic()
        if select.select([woken], [], [], TICK)[0]:
            os.read(woken, 4096)
        # A machine that was suspended must not count that as the agent's silence.
        silence += min(time.monotonic() - began, 2 * TICK)
        if lease := _hear(heard):
            silence, limit = 0.0, lease + BEYOND_LEASE
        if silence > limit:
            os.kill(agent, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _has_ended(agent: int) -> bool:
    """And reaps what the guardian has inherited."""
    while True:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid in (0, agent):
            return pid == agent


def _hear(heard: int) -> Optional[float]:
    """The lease that the agent named last, None when it has been silent."""
    try:
        words = os.read(heard, 1 << 16).split()
    except BlockingIOError:
        return None
    return float(words[-1]) if words else None


def _let_go_of_the_stream() -> None:
    """The launcher sees the agent's end by the end of the stream, so nobody else may hold it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _sweep(folder: str) -> None:
    """Of no use to this run: whatever goes wrong with it must not end the guardian."""
    try:
        # Not before: the agent's start would wait for the import.
        from hostmesh.launcher.agent.stale import sweep_aside

        sweep_aside(folder)
    except Exception:
        pass


def remove(folder: str) -> None:
    """A host's folder, which may be gone already, and the shared memory that is noted there. The lock goes last: who is
    interrupted here leaves a folder that agent/stale.py knows for what it is."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return
    import shutil

    remove_noted(folder)
    for name in names - {LOCK}:
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove_file(path)
    shutil.rmtree(folder, ignore_errors=True)
