"""The stream to an agent on a host reached by SSH: a channel of a fabric connection."""

from __future__ import annotations

import os
import queue
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from hostmesh.launcher.cluster.model import Host, Ssh
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT
from hostmesh.launcher.transports.ssh.socket import CancellableSocket

if TYPE_CHECKING:
    from hostmesh.launcher.transports.ssh.connection import Network, Session

# Seconds that closing a connection may take beyond the time its agent is given; then it counts as stuck.
CANCEL_AFTER = 1.0
# As much as can have arrived at once: paramiko's window has room for 2 MiB.
READ_SIZE = 2 << 20
# What fits into one packet of 32 KiB, OpenSSH's limit. paramiko copies the rest of a longer piece for each packet.
WRITE_SIZE = 32_704


def open_ssh_streams(hosts: Sequence[Host], settings: Ssh, commands: Sequence[Sequence[str]]) -> list[SshStream]:
    """Returns at once; `settings.at_once` threads connect one stream after the other."""
    pool = ConnectPool(settings)
    streams = [SshStream(host, command, pool.leave) for host, command in zip(hosts, commands, strict=True)]
    pool.start(streams)
    return streams


class SshStream:
    """A stream that exists at once and is connected later by a pool; readers and writers wait for that."""

    def __init__(self, host: Host, command: Sequence[str], when_closed: Callable[[], None]) -> None:
        self._host, self._line, self._when_closed = host, quote_for_any_shell(command), when_closed
        self._cancellable = CancellableSocket()
        self._lock = threading.Lock()
        self._connect_ended = threading.Event()
        self._session: Session | None = None
        self._problem: Unreachable | None = None
        self._is_closing = False
        self.is_open = False

    def connect(self, network: Network) -> None:
        """Connects, or keeps the reason why not; in every case those who wait for the connection go on."""
        session, problem = None, None
        try:
            session = network.open_session(self._host, self._line, self._cancellable)
        except BaseException as error:
            problem = as_unreachable(error)
        with self._lock:
            self._session, is_late = session, self._is_closing
            self.is_open = session is not None
        self.end_connecting(problem)
        if session is not None and is_late:
            session.close(timeout=0.0)

    def end_connecting(self, problem: Unreachable | None) -> None:
        """Wakes everybody who waits for the connection; `problem` says why there will be none."""
        self._problem = problem
        self._connect_ended.set()

    def read(self) -> bytes:
        session = self._await_session()
        return session.read(READ_SIZE) if session else b""

    def read_errors(self) -> bytes:
        try:
            session = self._await_session()
        except Unreachable:
            return b""
        return session.read_errors(READ_SIZE) if session else b""

    def write(self, data: bytes) -> None:
        try:
            session = self._await_session()
        except Unreachable:
            session = None
        if session is None:
            raise OSError("there is no connection to write to")
        for start in range(0, len(data), WRITE_SIZE):
            session.write(data[start : start + WRITE_SIZE])

    def _await_session(self) -> Session | None:
        """None when the stream was closed before it was connected."""
        self._connect_ended.wait()
        if self._problem is not None and not self._is_closing:
            raise self._problem
        return self._session

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Gives the agent time to stop its processes; a connection that is stuck or still being made is cancelled."""
        with self._lock:
            session, was_closing, self._is_closing = self._session, self._is_closing, True
        if was_closing:
            return
        if session is not None:
            closing = threading.Thread(target=session.close, args=(timeout,), daemon=True)
            closing.start()
            closing.join(timeout + CANCEL_AFTER)
        self._cancellable.cancel()
        self._connect_ended.set()
        self._when_closed()


class ConnectPool:
    """The threads that connect streams, and what the streams share until the last of them is closed."""

    def __init__(self, settings: Ssh) -> None:
        self._settings = settings
        self._waiting: queue.SimpleQueue[SshStream] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        self._network: Network | None = None

    def start(self, streams: Sequence[SshStream]) -> None:
        self._open = len(streams)
        for stream in streams:
            self._waiting.put(stream)
        threading.Thread(target=self._run, name="ssh-connect", daemon=True).start()

    def _run(self) -> None:
        """Every stream is connected, or told why it never will be."""
        try:
            self._network = network = self._make_network()
            self._start_others(network)
        except BaseException as error:
            problem = as_unreachable(error)
            for stream in self._take_waiting():
                stream.end_connecting(problem)
        else:
            self._connect_waiting(network)

    def _make_network(self) -> Network:
        # Imported only here, in a thread: fabric takes a third of a second to import.
        from hostmesh.launcher.transports.ssh.connection import Network

        return Network(self._settings)

    def _start_others(self, network: Network) -> None:
        """This thread connects as well, so no stream is forgotten where no other thread can be started."""
        for _ in range(min(self._settings.at_once, self._waiting.qsize()) - 1):
            try:
                threading.Thread(target=self._connect_waiting, args=(network,), daemon=True).start()
            except RuntimeError:
                return

    def _connect_waiting(self, network: Network) -> None:
        for stream in self._take_waiting():
            stream.connect(network)

    def _take_waiting(self) -> Iterator[SshStream]:
        while True:
            try:
                yield self._waiting.get_nowait()
            except queue.Empty:
                return

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            network = self._network if self._open == 0 else None
        if network is not None:
            network.close()


def as_unreachable(error: BaseException) -> Unreachable:
    """Any error on the way to a connection, in words that say what to fix."""
    if isinstance(error, Unreachable):
        return error
    if isinstance(error, ImportError):
        name = (error.name or "fabric").partition(".")[0]
        return Unreachable(
            f"the Python that runs launch cannot import {name}, which SSH needs ({error}); run pip install 'hostmesh' "
            f"or pip install {name} there"
        )
    said = f"connecting failed in an unexpected way: {type(error).__name__}: {error}"
    if not os.environ.get("HOME"):
        said += f"; HOME is not set, and user {os.getuid()} may have no entry in /etc/passwd: set HOME and USER"
    return Unreachable(said)


def quote_for_any_shell(command: Sequence[str]) -> str:
    """One line that sh, bash, zsh, csh and fish take alike.

    In quotes csh stumbles over newlines and !, and fish over backslashes. A command that has these is handed to sh in
    a form without them: `exec sh -c 'eval "exec $(printf "python3\\040\\047…")"'`.
    """
    line = shlex.join(command)
    if not re.search(r"[\n\\!]", line):
        return line
    spelt = re.sub(rb"[^A-Za-z0-9_./,=:-]", lambda match: b"\\%03o" % match[0][0], line.encode())
    return f'exec sh -c \'eval "exec $(printf "{spelt.decode()}")"\''
