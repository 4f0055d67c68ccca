"""An agent on this machine: a child process and its pipes."""

from __future__ import annotations

import os
import sys

from hostmesh.launcher.agent.children.process_tree import MARK, kill_marked
from hostmesh.launcher.agent.unpack import find_folder
from hostmesh.launcher.bundle import BOOTSTRAP
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT
from hostmesh.launcher.transports.pipe import PipeStream
from hostmesh.worker.identity import OF_USERS, STDIN


def is_passed_on(name: str) -> bool:
    """What another run has told this process is not for the processes of this run."""
    return name.startswith(OF_USERS) or not name.startswith("HOSTMESH_")


class LocalStream(PipeStream):
    """The guardian's process: it ends when nothing of this agent's is left."""

    def __init__(self, python: str | None, env: dict[str, str], stdin: int | None = None) -> None:
        """`stdin` is for the one process that this agent starts; its own is the stream."""
        inherited = {name: value for name, value in os.environ.items() if is_passed_on(name)}
        self._env = {**inherited, **env, **({} if stdin is None else {STDIN: str(stdin)})}
        passed = [] if stdin is None else [stdin]
        super().__init__([python or sys.executable, "-I", "-S", "-c", BOOTSTRAP], self._env, passed)
        # What cleans up after it is imported while its Python starts.
        from hostmesh.launcher.agent.guardian import remove

        self._remove = remove

    def explain_start(self, program: str, error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return f"found no {program} for the agent; name a Python 3.9 or newer with agent_python, or leave it out"
        return super().explain_start(program, error)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Returns when the guardian has cleaned up; one that does not react is ended, and cleaned up after."""
        super().close(timeout)
        kill_marked(self._env[MARK])
        self._remove(find_folder(self._env))
