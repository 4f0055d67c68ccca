"""The agent's parent, which outlives it: when the agent ends, however it ends, nothing of the run is left."""

from __future__ import annotations

import os
import signal

from launcher.agent.hunt import kill_all
from launcher.agent.linux import adopt_orphans, die_with_parent


def guard(mark: str, folder: str) -> int:
    """Fork: returns the guardian's pid in the child, which goes on as the agent; the parent stays and never returns."""
    guardian = os.getpid()
    adopt_orphans()
    agent = os.fork()
    if agent == 0:
        os.setsid()
        die_with_parent(guardian, signal.SIGTERM)
        adopt_orphans()
        return guardian
    _let_go_of_the_stream()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGKILL))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _sweep(folder)
    while os.waitpid(-1, 0)[0] != agent:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_all(mark, spare=set())
    remove(folder)
    os._exit(0)


def _let_go_of_the_stream() -> None:
    """The launcher sees the agent's end by the end of the stream, so nobody else may hold it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)


def _sweep(folder: str) -> None:
    # Not before: the agent's start would wait for the import.
    from launcher.agent.stale import sweep_aside

    sweep_aside(folder)


def remove(folder: str) -> None:
    """A host's folder, which may be gone already."""
    if os.path.isdir(folder):
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
