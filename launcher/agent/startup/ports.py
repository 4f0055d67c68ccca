"""The coordinator's port: held on its host, tried from the others."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import time
from typing import Callable, Dict, List, Optional, Tuple

from hostmesh.worker.identity import RUN_ID

REACH_TIMEOUT = 5.0
CONNECT_TIMEOUT = 2.5
SIOCGIFADDR = 0x8915


class Ports:
    def __init__(self) -> None:
        self._held: List[socket.socket] = []
        self.listening: List[socket.socket] = []

    def reserve(self, addresses: List[str], listen: bool) -> Tuple[Dict[str, int], List[str]]:
        """A port for each address that can be bound here, by numeric address, and what was wrong with the others."""
        ports: Dict[str, int] = {}
        problems = []
        for address in addresses:
            try:
                numeric, port = self._hold(address, listen)
            except OSError as error:
                problems.append(f"cannot bind {address} for the coordinator: {error.strerror}")
            else:
                ports.setdefault(numeric, port)
        return ports, problems

    def _hold(self, address: str, listen: bool) -> Tuple[str, int]:
        """Bind a port and do not listen on it. With SO_REUSEPORT jax can bind it too, and no other program is given
        it."""
        holder = _bind(address, 0)
        self._held.append(holder)
        numeric, port = holder.getsockname()[:2]
        if listen:
            listener = _bind(numeric, port)
            listener.listen(1024)
            listener.setblocking(False)
            self.listening.append(listener)
        return numeric, port

    def stop_listening(self) -> None:
        """Must happen before process 0 listens: the kernel would share out connections between the two listeners."""
        for listener in self.listening:
            listener.close()
        self.listening.clear()


def listen_anywhere() -> socket.socket:
    """On a free port of every address, for agents that try whether they can connect."""
    listener = socket.create_server(("", 0), backlog=128)
    listener.setblocking(False)
    return listener


def answer(listener: socket.socket) -> None:
    """Tell the caller which run this is, which another program that happens to listen on the port would not."""
    try:
        caller, _ = listener.accept()
        with caller:
            caller.setblocking(False)
            caller.send(_token())
    except OSError:
        pass


def reach(targets: List[Tuple[str, int]]) -> Dict[str, Optional[str]]:
    """Connect to all at once; for each address what went wrong, or None."""
    return {address: problem for (address, _), problem in _try_all(targets, _hear, REACH_TIMEOUT).items()}


def connect(targets: List[Tuple[str, int]], services: List[Tuple[str, int]]) -> Dict[str, Optional[str]]:
    """The same by `address:port`; of services that are not ours a connection is all that is asked for."""
    found = {
        **_try_all(targets, _hear, CONNECT_TIMEOUT),
        **_try_all(services, _close, CONNECT_TIMEOUT, ready_to="write"),
    }
    return {f"{address}:{port}": problem for (address, port), problem in found.items()}


def _try_all(
    targets: List[Tuple[str, int]],
    judge: Callable[[socket.socket], Optional[str]],
    timeout: float,
    ready_to: str = "read",
) -> Dict[Tuple[str, int], Optional[str]]:
    """`judge` is asked about each connection on which something has come, or which stands."""
    problems: Dict[Tuple[str, int], Optional[str]] = {}
    waiting: Dict[int, Tuple[Tuple[str, int], socket.socket]] = {}
    for address, port in targets:
        try:
            caller = _call(address, port)
        except OSError as error:
            problems[address, port] = error.strerror or str(error)
        else:
            waiting[caller.fileno()] = ((address, port), caller)
    deadline = time.monotonic() + timeout
    while waiting and (left := deadline - time.monotonic()) > 0:
        readers, writers = (list(waiting), []) if ready_to == "read" else ([], list(waiting))
        readable, writable, _ = select.select(readers, writers, [], left)
        for fd in (*readable, *writable):
            target, caller = waiting.pop(fd)
            problems[target] = judge(caller)
    for target, caller in waiting.values():
        problems[target] = f"no answer within {timeout:g} s"
        caller.close()
    return problems


def _close(caller: socket.socket) -> Optional[str]:
    """Whether the connection stands, and no more."""
    with caller:
        problem = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return os.strerror(problem) if problem else None


def _call(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    caller = socket.socket(family, kind, protocol)
    caller.setblocking(False)
    problem = caller.connect_ex(target)
    if problem not in (0, errno.EINPROGRESS):
        caller.close()
        raise OSError(problem, os.strerror(problem))
    return caller


def _hear(caller: socket.socket) -> Optional[str]:
    try:
        with caller:
            heard = caller.recv(256)
    except OSError as error:
        return error.strerror or str(error)
    return None if heard == _token() else "something else listens there"


def _token() -> bytes:
    return f"hostmesh {os.environ.get(RUN_ID)}".encode()


def _bind(address: str, port: int) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(target)
    except OSError:
        bound.close()
        raise
    return bound


def list_addresses() -> List[str]:
    """The IPv4 addresses of the interfaces that are up, without loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            if (address := _address_of(name, any_socket)) and not address.startswith("127."):
                found.append(address)
    return found


def _address_of(interface: str, any_socket: socket.socket) -> Optional[str]:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    except OSError:
        return None
