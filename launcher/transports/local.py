"""An agent on this machine: a child process and its pipes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from typing import IO

from launcher.agent.guardian import remove
from launcher.agent.hunt import MARK, kill_marked
from launcher.bundle import BOOTSTRAP, host_folder

PIPE_SIZE = 1 << 20
CLOSE_PATIENCE = 5.0


class LocalStream:
    """The guardian's process: it ends when nothing of this agent's is left."""

    def __init__(self, python: str | None, env: dict[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HOSTMESH_")}
        self._env = {**inherited, **env}
        self._process = subprocess.Popen(
            [python or sys.executable, "-I", "-S", "-c", BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
            start_new_session=True,  # Ctrl-C on the terminal is for the launcher alone
        )
        assert self._process.stdout is not None
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    def read(self) -> bytes:
        return read_or_close(self._process.stdout)

    def read_errors(self) -> bytes:
        return read_or_close(self._process.stderr)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close(self) -> None:
        """Returns when the guardian has cleaned up; one that does not react is ended, and cleaned up after."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            try:
                self._process.wait(CLOSE_PATIENCE)
                break
            except subprocess.TimeoutExpired:
                continue
        kill_marked(self._env[MARK])
        remove(host_folder(self._env))


def read_or_close(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    data = os.read(pipe.fileno(), PIPE_SIZE)
    if not data:
        pipe.close()
    return data
