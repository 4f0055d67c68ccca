"""Connections to the hosts of one run through fabric: each tried until its deadline, jump hosts shared."""

from __future__ import annotations

import functools
import logging
import math
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from fabric import Connection  # type: ignore[import-untyped]
from paramiko import SSHException  # type: ignore[import-untyped]

from hostmesh.launcher.cluster.model import Host, Ssh
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.ssh.config import Hop, SshConfigs, parse_hop
from hostmesh.launcher.transports.ssh.failures import (
    Dropped,
    address_text,
    dropped_text,
    error_text,
    explain_handshake_failure,
    explain_tcp_failure,
    explain_tunnel_failure,
)
from hostmesh.launcher.transports.ssh.handshake import HostKeyCheck, HostTransport
from hostmesh.launcher.transports.ssh.host_keys import KnownHosts, name_host
from hostmesh.launcher.transports.ssh.login import Keyring, make_strategy
from hostmesh.launcher.transports.ssh.socket import CancellableSocket, Deadline, ProxySocket, connect_tcp

KEEPALIVE = 15
POLL_EVERY = 0.01
# How often paramiko's threads wake up while no bytes come. By default 10 times a second: too often with 1,000 hosts.
WAKE_EVERY = 1.0
FIRST_PAUSE, MAX_PAUSE = 0.1, 1.0


@dataclass
class Session:
    """A command that runs on a host, and all that has to be closed after it."""

    connection: Any
    channel: Any
    cancellable: CancellableSocket

    def read(self, most: int) -> bytes:
        data: bytes = self.channel.recv(most)
        return data

    def read_errors(self, most: int) -> bytes:
        data: bytes = self.channel.recv_stderr(most)
        return data

    def write(self, data: bytes) -> None:
        try:
            while data:
                sent = self.channel.send(data)
                if sent == 0:
                    raise OSError("the SSH channel is closed")
                data = data[sent:]
        except (SSHException, EOFError) as error:
            raise OSError(error_text(error)) from None

    def close(self, timeout: float) -> None:
        """Ends the command's stdin, which tells it to stop, and waits for its last output."""
        deadline = Deadline(timeout)
        try:
            self.channel.shutdown_write()
            self.channel.status_event.wait(deadline.left())
            while deadline.left() and not (self.channel.eof_received or self.channel.closed):
                time.sleep(POLL_EVERY)  # paramiko has no event for this
            self.channel.close()
        except (SSHException, EOFError, OSError):
            pass
        close_connection(self.connection, self.cancellable)


@dataclass
class Jump:
    """A connection to a jump host, shared by all hosts behind it; whoever needs it first makes it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    cancellable: CancellableSocket = field(default_factory=CancellableSocket)
    connection: Any = None
    problem: str = ""


class Network:
    """What the connections of one run share: settings, keys, known hosts and jump hosts."""

    def __init__(self, settings: Ssh) -> None:
        logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # it would print tracebacks of its own
        self._settings, self._keyring = settings, Keyring()
        self._configs = SshConfigs(settings, make_strategy(self._keyring))
        self._lock = threading.Lock()
        self._jumps: dict[tuple[str, ...], Jump] = {}
        self._known_hosts = functools.cache(KnownHosts)

    def open_session(self, host: Host, line: str, cancellable: CancellableSocket) -> Session:
        """Raises Unreachable."""
        hop = Hop(host.address, host.user, host.port, self._settings.jump)
        connection, deadline = self._connect(hop, cancellable, ())
        try:
            with cancellable.limit(deadline):
                channel = connection.create_session()
                channel.exec_command(line)
        except (SSHException, EOFError, OSError) as error:
            close_connection(connection, cancellable)
            raise Unreachable(f"login succeeded, but no command can be run: {error_text(error)}") from None
        connection.transport.sock.settimeout(WAKE_EVERY)
        return Session(connection, channel, cancellable)

    def close(self) -> None:
        """To be called after the last session is closed."""
        with self._lock:
            jumps = list(self._jumps.values())
        for jump in jumps:
            jump.cancellable.cancel()
        for jump in jumps:
            if jump.connection is not None:
                close_connection(jump.connection, jump.cancellable)
        self._keyring.close()

    # One hop.

    def _connect(self, hop: Hop, cancellable: CancellableSocket, behind: tuple[str, ...]) -> tuple[Any, Deadline]:
        """A logged-in connection, and the deadline of its host, which begins once the jump hosts are connected.

        `behind` are the hosts that this hop is a jump host for.
        """
        connection = self._prepare(hop)
        gateway = self._find_gateway(hop, connection, behind)
        deadline, tries, pause = Deadline(self._settings.connect_timeout), 0, FIRST_PAUSE
        while True:
            tries += 1
            try:
                self._attempt(connection, gateway, deadline, cancellable)
                connection.transport.set_keepalive(KEEPALIVE)
                return connection, deadline
            except Dropped as dropped:
                wait = random.uniform(0.5, 1.5) * pause
                if wait >= deadline.left() or cancellable.is_cancelled:
                    raise Unreachable(dropped_text(address_text(connection), tries, deadline, dropped)) from None
                cancellable.pause(wait)
                connection, pause = self._prepare(hop), min(2 * pause, MAX_PAUSE)

    def _prepare(self, hop: Hop) -> Any:
        """A connection that is not open yet.

        Gateway, agent forwarding and timeout are given, so that fabric does not read them from the config files: it
        fails on values that ssh accepts.
        """
        try:
            config = self._configs.make(hop)
            timeout = math.ceil(self._settings.connect_timeout)
            return Connection(hop.name, config=config, gateway=False, forward_agent=False, connect_timeout=timeout)
        except (ValueError, SSHException) as error:
            raise Unreachable(f"the ssh config has a value for {hop.name} that makes no sense: {error}") from None

    def _attempt(self, connection: Any, gateway: Any, deadline: Deadline, cancellable: CancellableSocket) -> None:
        link = open_link(connection, gateway, deadline, cancellable)
        cancellable.hold(link)
        self._add_checks(connection, link, deadline)
        try:
            connection.open()
        except (SSHException, EOFError, OSError) as error:
            link.close()
            raise explain_handshake_failure(error, connection, link, deadline) from None
        finally:
            if not connection.is_connected:
                connection.client.close()
                link.close()

    def _add_checks(self, connection: Any, link: Any, deadline: Deadline) -> None:
        """Lets fabric's client check host keys, which it accepts unseen by default, and keep to the deadline."""
        options = connection.ssh_config
        names = name_host(connection.host, connection.port, options.get("hostkeyalias"))
        hashed = options.get("hashknownhosts", "no").lower() == "yes"
        known = self._known_hosts(self._configs.find_known_hosts(options), hashed)
        policy = HostKeyCheck(known, names, self._configs.accepts_new_keys(options))
        connection.client.set_missing_host_key_policy(policy)
        connection.connect_timeout = None  # it takes whole seconds only; the limits below are exact
        limits = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), deadline.left())
        factory = functools.partial(HostTransport, deadline, known.kinds_of(names))
        connection.connect_kwargs = {"sock": link, "transport_factory": factory, **limits}

    # Jump hosts.

    def _find_gateway(self, hop: Hop, connection: Any, behind: tuple[str, ...]) -> Any:
        """A jump host's connection, a ProxyCommand, or None."""
        jumps = connection.ssh_config.get("proxyjump", "none")
        chain = tuple(part.strip() for part in jumps.split(","))
        if jumps.lower() == "none":
            return connection.ssh_config.get("proxycommand")
        nearest = self._prepare(parse_hop(chain[-1], None))
        if (nearest.host, nearest.port) == (connection.host, connection.port):
            return None  # a `Host *` section with ProxyJump makes the jump host its own jump host
        behind = (*behind, address_text(connection))
        if behind[-1] in behind[:-1]:
            raise Unreachable(f"its jump hosts lead in a circle: {' behind '.join(behind)}")
        return self._share_jump(chain, behind)

    def _share_jump(self, chain: tuple[str, ...], behind: tuple[str, ...]) -> Any:
        with self._lock:
            jump = self._jumps.setdefault(chain, Jump())
        with jump.lock:
            if jump.connection is None and not jump.problem:
                try:
                    hop = parse_hop(chain[-1], ",".join(chain[:-1]) or None)
                    jump.connection, _ = self._connect(hop, jump.cancellable, behind)
                except Unreachable as error:
                    jump.problem = f"jump host {chain[-1]}: {error}"
        if jump.problem:
            raise Unreachable(jump.problem)
        return jump.connection


def close_connection(connection: Any, cancellable: CancellableSocket) -> None:
    """The socket is cancelled first, so that paramiko's thread ends at once."""
    cancellable.cancel()
    connection.close()
    connection.client.close()


def open_link(connection: Any, gateway: Any, deadline: Deadline, cancellable: CancellableSocket) -> Any:
    """A socket to the host's sshd, or what behaves like one: a ProxyCommand, or a tunnel through a jump host."""
    if isinstance(gateway, str):
        return ProxySocket(gateway)
    if gateway is not None:
        return open_tunnel(connection, gateway, deadline)
    family = connection.ssh_config.get("addressfamily", "any").lower()
    try:
        return connect_tcp(connection.host, connection.port, family, deadline, cancellable)
    except (UnicodeError, OSError) as error:
        raise explain_tcp_failure(error, connection, deadline) from None


def open_tunnel(connection: Any, gateway: Any, deadline: Deadline) -> Any:
    target = connection.host, connection.port
    try:
        return gateway.transport.open_channel("direct-tcpip", target, ("", 0), timeout=deadline.left())
    except (SSHException, EOFError, OSError) as error:
        raise explain_tunnel_failure(error, connection, gateway) from None
