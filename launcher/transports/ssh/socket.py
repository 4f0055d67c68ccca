"""The socket under an SSH connection: made within a deadline, and cancelled from any thread."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from hostmesh.launcher.transports.pipe import end_program

PROXY_TIMEOUT = 1.0
MAX_SAID = 64 << 10  # of a ProxyCommand's errors; its last lines are shown, once secrets are taken out


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


class CancellableSocket:
    """Holds the socket that a connection is made or used on; once cancelled, it also shuts every later socket."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._socket: Any = None

    def hold(self, new: Any) -> None:
        self._socket = new
        if self._cancelled.is_set():
            shut(new)

    def cancel(self) -> None:
        self._cancelled.set()
        if self._socket is not None:
            shut(self._socket)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def pause(self, seconds: float) -> None:
        """Ends early when the socket is cancelled."""
        self._cancelled.wait(seconds)

    @contextlib.contextmanager
    def limit(self, deadline: Deadline) -> Iterator[None]:
        """Shuts the socket at the deadline, which ends calls that have no timeout of their own."""
        timer = threading.Timer(deadline.left(), shut, (self._socket,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def shut(link: Any) -> None:
    """Wakes the threads that wait on the socket, which closing alone does not; never waits itself.

    A tunnel through a jump host can only be closed, and that waits when the jump host is stuck: so a thread does it.
    """
    if not isinstance(link, socket.socket):
        threading.Thread(target=close_quietly, args=(link,), daemon=True).start()
        return
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def close_quietly(link: Any) -> None:
    try:
        link.close()
    except (OSError, EOFError):
        pass


def connect_tcp(host: str, port: int, family: str, deadline: Deadline, cancellable: CancellableSocket) -> socket.socket:
    """Tries the addresses of a name in turn, each for its share of the time; raises the error of the last one."""
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    addresses = socket.getaddrinfo(host, port, families.get(family, socket.AF_UNSPEC), socket.SOCK_STREAM)
    problem = OSError(f"{host} has no address")
    for number, (kind, _, _, _, address) in enumerate(addresses):
        link = socket.socket(kind, socket.SOCK_STREAM)
        cancellable.hold(link)
        try:
            link.settimeout(max(0.01, deadline.left() / (len(addresses) - number)))
            link.connect(address)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return link
        except OSError as error:
            link.close()
            problem = error
    raise problem


class ProxySocket(socket.socket):
    """A ProxyCommand's stdin and stdout as a socket."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        self._command, self._turn, self._said = command, threading.Lock(), b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C on the terminal is for the launcher alone
            )

    def close(self) -> None:
        """Gives the command a moment to end by itself, as most do when their stdin ends."""
        super().close()
        with self._turn:
            end_program(self._process, PROXY_TIMEOUT)
            if not self._errors.closed:
                self._errors.seek(0)
                self._said = self._errors.read()[-MAX_SAID:]
                self._errors.close()

    def failure_text(self) -> str | None:
        """What a command printed that failed by itself; None otherwise. To be called after closing."""
        code = self._process.poll()
        if not code or code < 0:
            return None
        said = self._said.decode(errors="replace").strip()
        return f"the ProxyCommand {self._command!r} exited with {code}" + (f": {said}" if said else "")
