"""A program on this machine whose pipes lead to an agent."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT

PIPE_SIZE = 1 << 20
# Seconds for a guardian to clean up after an agent that does not react.
CLEANING_TIMEOUT = 3.0


class PipeStream:
    """A program that cannot be started is told to who reads, as with every other stream."""

    is_open = True

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._problem = ""
        try:
            self._process = start_program(argv, env, pass_fds)
        except OSError as error:
            self._problem = self.explain_start(argv[0], error)

    def explain_start(self, program: str, error: OSError) -> str:
        return f"cannot start {program} on this machine: {error.strerror}"

    def read(self) -> bytes:
        """Raises Unreachable when the program could not be started."""
        if self._process is None:
            raise Unreachable(self._problem)
        return read_or_close(self._process.stdout)

    def read_errors(self) -> bytes:
        return read_or_close(self._process.stderr) if self._process is not None else b""

    def write(self, data: bytes) -> None:
        if self._process is None:
            raise BrokenPipeError(self._problem)
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Returns when the program has ended, because its input did or because it was made to."""
        if self._process is None:
            return
        # In a thread: who writes to a program that does not read holds the pipe until that program is gone.
        closing = threading.Thread(target=self._close_input, name="close", daemon=True)
        closing.start()
        closing.join(timeout)
        end_program(self._process, timeout, reads=not closing.is_alive())

    def _close_input(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass


def start_program(
    argv: Sequence[str], env: Mapping[str, str] | None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        pass_fds=pass_fds,
        start_new_session=True,  # Ctrl-C on the terminal is for the launcher alone
    )
    assert process.stdout is not None
    try:
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    except OSError:
        pass  # a user may have few such pages left; a smaller pipe only takes more reads
    return process


def end_program(program: subprocess.Popen[bytes], timeout: float, reads: bool = True) -> None:
    """For one whose input has ended: wait for it, ask it twice, then make it. One that does not read hears of no end.

    A guardian kills its agent at the second request, and needs a moment to clean up after it: who killed the guardian
    would leave what only a guardian finds.
    """
    asking = [(signal.SIGTERM, timeout), (signal.SIGTERM, CLEANING_TIMEOUT), (signal.SIGKILL, timeout)]
    for number, seconds in [(0, timeout), *asking] if reads else asking:
        program.send_signal(number)
        try:
            program.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            continue


def read_or_close(pipe: IO[bytes] | None) -> bytes:
    assert pipe is not None
    data = os.read(pipe.fileno(), PIPE_SIZE)
    if not data:
        pipe.close()
    return data
