"""A program on this machine whose pipes lead to an agent."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from launcher.transports import CLOSE_PATIENCE

PIPE_SIZE = 1 << 20


class PipeStream:
    is_open = True

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
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

    def close(self, patience: float = CLOSE_PATIENCE) -> None:
        """Returns when the program has ended, because its input did or because it was made to."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        end_program(self._process, patience)


def end_program(program: subprocess.Popen[bytes], patience: float) -> None:
    """For one whose input has ended: wait for it, then ask it, then make it."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        program.send_signal(number)
        try:
            program.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue


def read_or_close(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    data = os.read(pipe.fileno(), PIPE_SIZE)
    if not data:
        pipe.close()
    return data
