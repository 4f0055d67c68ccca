"""Why a host cannot be reached by SSH, in words that say what to fix."""

from __future__ import annotations

import socket
from typing import Any

from paramiko import ChannelException  # type: ignore[import-untyped]

from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.transports.ssh.socket import Deadline, ProxySocket
from hostmesh.launcher.words import count_things

# What an sshd that has too many connections says instead of its banner, if anything.
TOO_BUSY = ("", "Exceeded MaxStartups", "Not allowed at this time")


class Dropped(Exception):
    """The server hung up before login, as a busy one does: worth another try."""


def explain_tcp_failure(error: Exception, connection: Any, deadline: Deadline) -> Unreachable:
    """Why no TCP connection to a host could be made."""
    where = address_text(connection)
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return Unreachable(
            f"the name {connection.host} does not resolve ({error_text(error)}); "
            "fix the address in the cluster file, or give it a HostName in the ssh config"
        )
    if isinstance(error, ConnectionRefusedError):
        return Unreachable(f"connection refused by {where}; is sshd running there, and on this port?")
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"no answer from {where} within {deadline.seconds:g} s; "
            "is the host up, and does every firewall on the way let this port through?"
        )
    return Unreachable(f"no way to {where}: {error_text(error)}; is the address right?")


def explain_tunnel_failure(error: Exception, connection: Any, gateway: Any) -> Unreachable:
    """Why a jump host gave no connection to a host behind it."""
    why = error_text(error)
    if isinstance(error, ChannelException):
        why = f"{error.args[1]}; is sshd running there, and may {gateway.original_host} forward (AllowTcpForwarding)?"
    return Unreachable(f"jump host {gateway.original_host} cannot reach {address_text(connection)}: {why}")


def explain_handshake_failure(error: BaseException, connection: Any, link: Any, deadline: Deadline) -> Exception:
    """Why the SSH handshake failed; to be asked after the link is closed. Host keys and logins explain themselves."""
    transport = connection.client.get_transport()
    if isinstance(link, ProxySocket) and (failure := link.failure_text()):
        return Unreachable(failure)
    hung_up = isinstance(error.__context__ or error, (EOFError, ConnectionError))
    where, is_late = address_text(connection), deadline.left() == 0
    if not transport.remote_version:
        return _explain_no_banner(where, transport.packetizer.said, hung_up, deadline)
    if is_late:
        return Unreachable(f"{where} fell silent in the SSH handshake, within {deadline.seconds:g} s")
    if hung_up and not transport.authenticated:
        return Dropped("")
    return Unreachable(f"the SSH handshake with {where} failed: {error_text(error)}")


def _explain_no_banner(where: str, said: str, hung_up: bool, deadline: Deadline) -> Exception:
    if hung_up and said in TOO_BUSY:
        return Dropped(said)
    if said:
        return Unreachable(f"{where} is no SSH server: it says {said!r}; is the port right?")
    return Unreachable(
        f"{where} accepts connections, but sent no SSH banner within {deadline.seconds:g} s; "
        "is it an SSH server, and is the host overloaded or stuck?"
    )


def dropped_text(where: str, tries: int, deadline: Deadline, dropped: Dropped) -> str:
    said = f', saying "{dropped}"' if str(dropped) else ""
    return (
        f"{where} dropped {count_things(tries, 'connection')} before login within {deadline.seconds:g} s{said}; "
        "raise MaxStartups in its sshd_config, or lower ssh: {at_once: …} in the cluster file"
    )


def address_text(connection: Any) -> str:
    return f"{connection.host} port {connection.port}"


def error_text(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
