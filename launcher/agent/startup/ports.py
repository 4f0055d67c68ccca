"""The coordinator's port: held on its host, tried from the others."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import time
from typing import Dict, List, Optional, Tuple

from hostmesh.worker.identity import RUN_ID

REACH_TIMEOUT = 5.0
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
    problems: Dict[str, Optional[str]] = {}
    waiting: Dict[int, Tuple[str, socket.socket]] = {}
    for address, port in targets:
        try:
            caller = _call(address, port)
        except OSError as error:
            problems[address] = error.strerror or str(error)
        else:
            waiting[caller.fileno()] = (address, caller)
    deadline = time.monotonic() + REACH_TIMEOUT
    while waiting and (left := deadline - time.monotonic()) > 0:
        for fd in select.select(list(waiting), [], [], left)[0]:
            address, caller = waiting.pop(fd)
            problems[address] = _hear(caller)
    for address, caller in waiting.values():
        problems[address] = f"no answer within {REACH_TIMEOUT:g} s"
        caller.close()
    return problems


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
