"""The warm start: import jax once, then fork every worker of this host from here."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

import hostmesh.worker.process.as_python.boot  # noqa: F401  # so that workers need not import it
from hostmesh.worker.distributed import prepare_jax
from hostmesh.worker.identity import PID
from hostmesh.worker.process.as_python.command_line import write_command_line
from hostmesh.worker.process.as_python.late_config import LateConfig

PR_SET_PDEATHSIG = 1
# Modules with a global generator that would be the same in every worker.
RANDOM = ("numpy.random", "torch")


def serve(channel_fd: int, preload: list[str]) -> list[str]:
    """Fork a worker for each order of the agent. Returns only in the workers, with what they are to run."""
    write_command_line([word for word in sys.orig_argv if word.strip()])
    channel = socket.socket(fileno=channel_fd)
    libc = ctypes.CDLL(None)
    late = LateConfig()
    began = time.monotonic()
    prepare_jax()
    gc.disable()  # nothing that an import makes is garbage, and looking for it takes a tenth of the time
    try:
        late.import_all(["jax", *preload])
    except BaseException as error:
        _tell(channel, failed=f"{type(error).__name__}: {error}")
        os._exit(1)
    gc.freeze()
    gc.enable()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else every worker would print again what a preload printed
    _tell(channel, ready=round(time.monotonic() - began, 3))
    order = _Nursery(channel).fork_workers()
    # From here on this is a worker.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order["parent"]:
        os._exit(1)
    _become(order)
    late.hide()
    return list(order["argv"])


class _Nursery:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.woken, self.waker = socket.socketpair()
        self.buffer = b""
        for end in (self.woken, self.waker):
            end.setblocking(False)

    def fork_workers(self) -> dict[str, Any]:
        """Returns in a child only."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.waker.fileno())
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ)
            selector.register(self.woken, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self.woken in ready:
                    self.woken.recv(4096)
                    self._reap()
                if self.channel in ready:
                    for order in self._orders():
                        parent = os.getpid()
                        if (pid := os.fork()) == 0:
                            self._leave_nursery()
                            return {**order, "parent": parent}
                        _tell(self.channel, started=[order["process_id"], pid])

    def _orders(self) -> list[dict[str, Any]]:
        data = self.channel.recv(1 << 16)
        if not data:
            os._exit(0)  # the agent is gone, and the workers go with this process
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _tell(self.channel, exited=[pid, os.waitstatus_to_exitcode(status)])

    def _leave_nursery(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.channel, self.woken, self.waker):
            end.close()


def _become(order: dict[str, Any]) -> None:
    """Give the forked process what exec would have given it: output, environment, fresh randomness; and, as the agent
    does, a group of its own, so that what a script sends to its group goes no further."""
    os.setpgid(0, 0)
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(order["env"], **{PID: str(os.getpid())})
    # Python's own random does this by itself at a fork.
    for name in RANDOM:
        if module := sys.modules.get(name):
            module.seed()


def _tell(channel: socket.socket, **message: object) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")
