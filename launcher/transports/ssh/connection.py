"""Connections to the hosts of one run through fabric: what they share, and what each failure means."""

from __future__ import annotations

import functools
import logging
import math
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from fabric import Connection  # type: ignore[import-untyped]
from paramiko import ChannelException, MissingHostKeyPolicy, SSHException, Transport  # type: ignore[import-untyped]
from paramiko.packet import Packetizer  # type: ignore[import-untyped]

from hostmesh.launcher.cluster.model import Host, Ssh
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.ssh.config import Hop, SshConfigs, parse_hop
from hostmesh.launcher.transports.ssh.host_keys import KnownHosts, name_host
from hostmesh.launcher.transports.ssh.login import Keyring, make_strategy
from hostmesh.launcher.transports.ssh.socket import CancellableSocket, Deadline, ProxySocket, connect_tcp

KEEPALIVE = 15
LAST_OUTPUT_EVERY = 0.01
# paramiko looks up this often from waiting for bytes; by default 10 times a second, which a thousand hosts would feel.
LOOK_UP_EVERY = 1.0
FIRST_PAUSE, MAX_PAUSE = 0.1, 1.0
# The fast ones of those that are safe; paramiko would also take 3DES and MD5.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
DIGESTS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")
# What an sshd that has too many connections says instead of its banner, if anything.
TOO_BUSY = ("", "Exceeded MaxStartups", "Not allowed at this time")


class Dropped(Exception):
    """The server hung up before login, as a busy one does: worth another try."""


@dataclass
class Session:
    """A command that runs on a host, and all that has to be closed after it."""

    connection: Any
    channel: Any
    cable: CancellableSocket

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
            raise OSError(say(error)) from None

    def close(self, timeout: float) -> None:
        """The end of its stdin tells the command to wind up; then its last output has to arrive."""
        deadline = Deadline(timeout)
        try:
            self.channel.shutdown_write()
            self.channel.status_event.wait(deadline.left())
            while deadline.left() and not (self.channel.eof_received or self.channel.closed):
                time.sleep(LAST_OUTPUT_EVERY)  # paramiko has no event for this
            self.channel.close()
        except (SSHException, EOFError, OSError):
            pass
        close_connection(self.connection, self.cable)


@dataclass
class Jump:
    """A connection to a jump host, shared by all hosts behind it; whoever needs it first makes it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    cable: CancellableSocket = field(default_factory=CancellableSocket)
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

    def open_session(self, host: Host, line: str, cable: CancellableSocket) -> Session:
        """Raises Unreachable."""
        hop = Hop(host.address, host.user, host.port, self._settings.jump)
        connection, deadline = self._connect(hop, cable, ())
        try:
            with cable.limit(deadline):
                channel = connection.create_session()
                channel.exec_command(line)
        except (SSHException, EOFError, OSError) as error:
            close_connection(connection, cable)
            raise Unreachable(f"login succeeded, but no command can be run: {say(error)}") from None
        connection.transport.sock.settimeout(LOOK_UP_EVERY)
        return Session(connection, channel, cable)

    def close(self) -> None:
        """After the last session."""
        with self._lock:
            jumps = list(self._jumps.values())
        for jump in jumps:
            jump.cable.cut()
        for jump in jumps:
            if jump.connection is not None:
                close_connection(jump.connection, jump.cable)
        self._keyring.close()

    # One hop.

    def _connect(self, hop: Hop, cable: CancellableSocket, behind: tuple[str, ...]) -> tuple[Any, Deadline]:
        """A logged-in connection, and what is left of the time it may take. `behind` are the hosts this is a jump for.

        The time begins once the jump hosts are there.
        """
        connection = self._prepare(hop)
        gateway = self._find_gateway(hop, connection, behind)
        deadline, tries, pause = Deadline(self._settings.connect_timeout), 0, FIRST_PAUSE
        while True:
            tries += 1
            try:
                self._attempt(connection, gateway, deadline, cable)
                connection.transport.set_keepalive(KEEPALIVE)
                return connection, deadline
            except Dropped as dropped:
                wait = random.uniform(0.5, 1.5) * pause
                if wait >= deadline.left() or cable.is_cut:
                    raise Unreachable(say_dropped(place(connection), tries, deadline, dropped)) from None
                cable.pause(wait)
                connection, pause = self._prepare(hop), min(2 * pause, MAX_PAUSE)

    def _prepare(self, hop: Hop) -> Any:
        """Not connected yet. What is given here fabric does not look up in config files, where it may trip over it."""
        try:
            config = self._configs.make(hop)
            timeout = math.ceil(self._settings.connect_timeout)
            return Connection(hop.name, config=config, gateway=False, forward_agent=False, connect_timeout=timeout)
        except (ValueError, SSHException) as error:
            raise Unreachable(f"the ssh config has a value for {hop.name} that makes no sense: {error}") from None

    def _attempt(self, connection: Any, gateway: Any, deadline: Deadline, cable: CancellableSocket) -> None:
        link = open_link(connection, gateway, deadline, cable)
        cable.hold(link)
        self._prime(connection, link, deadline)
        try:
            connection.open()
        except (SSHException, EOFError, OSError) as error:
            raise explain(error, connection, link, deadline) from None
        finally:
            if not connection.is_connected:
                connection.client.close()
                link.close()

    def _prime(self, connection: Any, link: Any, deadline: Deadline) -> None:
        """fabric knows no host keys and accepts every one: here its client learns to check them."""
        found = connection.ssh_config
        names = name_host(connection.host, connection.port, found.get("hostkeyalias"))
        hashed = found.get("hashknownhosts", "no").lower() == "yes"
        known = self._known_hosts(self._configs.find_known_hosts(found), hashed)
        policy = HostKeyCheck(known, names, self._configs.accepts_new_keys(found))
        connection.client.set_missing_host_key_policy(policy)
        connection.connect_timeout = None  # in whole seconds only; those below are exact
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
            return None  # a `Host *` section makes a jump host its own jump host
        behind = (*behind, place(connection))
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
                    jump.connection, _ = self._connect(hop, jump.cable, behind)
                except Unreachable as error:
                    jump.problem = f"jump host {chain[-1]}: {error}"
        if jump.problem:
            raise Unreachable(jump.problem)
        return jump.connection


def close_connection(connection: Any, cable: CancellableSocket) -> None:
    """Its thread ends at once, since nothing more can come."""
    cable.cut()
    connection.close()
    connection.client.close()


def open_link(connection: Any, gateway: Any, deadline: Deadline, cable: CancellableSocket) -> Any:
    """A socket to the host's sshd, or what behaves like one."""
    if isinstance(gateway, str):
        return ProxySocket(gateway)
    if gateway is not None:
        return open_tunnel(connection, gateway, deadline)
    family = connection.ssh_config.get("addressfamily", "any").lower()
    try:
        return connect_tcp(connection.host, connection.port, family, deadline, cable)
    except (socket.gaierror, UnicodeError) as error:
        raise Unreachable(
            f"the name {connection.host} does not resolve ({say(error)}); "
            "fix the address in the cluster file, or give it a HostName in the ssh config"
        ) from None
    except ConnectionRefusedError:
        where = place(connection)
        raise Unreachable(f"connection refused by {where}; is sshd running there, and on this port?") from None
    except TimeoutError:
        raise Unreachable(
            f"no answer from {place(connection)} within {deadline.seconds:g} s; "
            "is the host up, and does every firewall on the way let this port through?"
        ) from None
    except OSError as error:
        raise Unreachable(f"no way to {place(connection)}: {say(error)}; is the address right?") from None


def open_tunnel(connection: Any, gateway: Any, deadline: Deadline) -> Any:
    target = connection.host, connection.port
    try:
        return gateway.transport.open_channel("direct-tcpip", target, ("", 0), timeout=deadline.left())
    except ChannelException as error:
        why = f"{error.args[1]}; is sshd running there, and may {gateway.original_host} forward (AllowTcpForwarding)?"
    except (SSHException, EOFError, OSError) as error:
        why = say(error)
    raise Unreachable(f"jump host {gateway.original_host} cannot reach {place(connection)}: {why}")


def explain(error: BaseException, connection: Any, link: Any, deadline: Deadline) -> Exception:
    """Why the SSH handshake failed. What goes wrong with host key and login is told where it is found."""
    transport = connection.client.get_transport()
    link.close()
    if isinstance(link, ProxySocket) and (failure := link.explain_failure()):
        return Unreachable(failure)
    hung_up = isinstance(error.__context__ or error, (EOFError, ConnectionError))
    is_late = deadline.left() == 0
    if not transport.remote_version:
        return explain_no_banner(place(connection), transport.packetizer.said, hung_up, deadline)
    if is_late:
        return Unreachable(f"{place(connection)} fell silent in the SSH handshake, within {deadline.seconds:g} s")
    if hung_up and not transport.authenticated:
        return Dropped("")
    return Unreachable(f"the SSH handshake with {place(connection)} failed: {say(error)}")


def explain_no_banner(where: str, said: str, hung_up: bool, deadline: Deadline) -> Exception:
    if hung_up and said in TOO_BUSY:
        return Dropped(said)
    if said:
        return Unreachable(f"{where} is no SSH server: it says {said!r}; is the port right?")
    return Unreachable(
        f"{where} accepts connections, but sent no SSH banner within {deadline.seconds:g} s; "
        "is it an SSH server, and is the host overloaded or stuck?"
    )


def say_dropped(where: str, tries: int, deadline: Deadline, dropped: Dropped) -> str:
    said = f', saying "{dropped}"' if str(dropped) else ""
    times = "1 connection" if tries == 1 else f"{tries} connections"
    return (
        f"{where} dropped {times} before login within {deadline.seconds:g} s{said}; "
        "raise MaxStartups in its sshd_config, or lower ssh: {at_once: …} in the cluster file"
    )


def place(connection: Any) -> str:
    return f"{connection.host} port {connection.port}"


def say(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class HostKeyCheck(MissingHostKeyPolicy):  # type: ignore[misc]
    """paramiko's clients know no host keys here, so every key comes to this check, with a name that it knows better."""

    def __init__(self, known: KnownHosts, names: tuple[str, ...], accept_new: bool) -> None:
        self._known, self._names, self._accept_new = known, names, accept_new

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        self._known.check(self._names, key.get_name(), key.asbytes(), self._accept_new)


class HostPacketizer(Packetizer):  # type: ignore[misc]
    """Remembers what a server says instead of its banner, and starts no timer thread for the handshake: the connection
    has its deadline, and that timer would be another."""

    said = ""

    def readline(self, timeout: float) -> str:
        line: str = super().readline(timeout)
        if not line.startswith("SSH-"):
            self.said = self.said or line[:100]
        return line

    def start_handshake(self, timeout: float) -> None:
        pass


class HostTransport(Transport):  # type: ignore[misc]
    def __init__(self, deadline: Deadline, known_kinds: list[str], sock: Any, **options: Any) -> None:
        super().__init__(sock, packetizer_class=HostPacketizer, **options)
        self.deadline = deadline
        choices = self.get_security_options()
        choices.ciphers, choices.digests = CIPHERS, DIGESTS
        choices.key_types = order_key_types(choices.key_types, known_kinds)


def order_key_types(offered: tuple[str, ...], known: list[str]) -> tuple[str, ...]:
    """A server with several keys must show one of the kind that is known, if it has it."""
    wanted = [name for kind in known for name in (RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
    return (*(name for name in wanted if name in offered), *(name for name in offered if name not in wanted))
