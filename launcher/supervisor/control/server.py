"""The socket of a run: questions of its owner go into the inbox, and the supervisor's answers come back."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hostmesh.launcher.supervisor.control.asking import Ask, Left, Reply
from hostmesh.launcher.supervisor.link.inbox import Inbox

SOCKET = "socket"
ASK_TIMEOUT = 10.0  # seconds for a question to be said
MAX_QUESTION = 1 << 20
MAX_ASKERS = 64


class Server:
    """Listens in a folder that only the owner may enter, and answers nobody else."""

    def __init__(self, folder: Path, inbox: Inbox) -> None:
        """Raises OSError where the folder cannot have a socket, as on some network disks."""
        self._folder, self._inbox = folder, inbox
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        self._socket = bind_socket(folder)
        self._askers = threading.Semaphore(MAX_ASKERS)
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        with suppress(OSError):
            (self._folder / SOCKET).unlink()
            self._folder.rmdir()

    def _accept(self) -> None:
        while True:
            self._askers.acquire()
            try:
                link, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(link,), name="asker", daemon=True).start()
            except OSError:
                return  # closed
            except RuntimeError:  # no more threads
                link.close()
                self._askers.release()

    def _serve(self, link: socket.socket) -> None:
        with link:
            reply = Reply(link)
            writer = threading.Thread(target=reply.write_all, name="answers", daemon=True)
            try:
                writer.start()
                if not is_owner(link):
                    reply.send(error="only the user who started the run may talk to it")
                    reply.end()
                else:
                    self._ask(link, reply)
                writer.join()
            except (OSError, RuntimeError):
                reply.end()
            finally:
                self._inbox.put(Left(reply))
                self._askers.release()

    def _ask(self, link: socket.socket, reply: Reply) -> None:
        link.settimeout(ASK_TIMEOUT)
        question = read_question(link)
        if question is None:
            reply.send(error="not a question")
            reply.end()
            return
        self._inbox.put(Ask(question, reply))
        link.settimeout(None)
        while link.recv(4096):  # it says nothing more; its end is what matters
            pass
        reply.end()


def bind_socket(folder: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with_address(folder, listening.bind)
        os.chmod(folder / SOCKET, 0o600)
        listening.listen(16)
    except OSError:
        listening.close()
        raise
    return listening


def with_address(folder: Path, act: Callable[[str], None]) -> None:
    """Calls `act` with the address of the socket in a folder. The path of an address has at most 107 bytes, so on Linux
    it goes through a descriptor of the folder."""
    if sys.platform != "linux":
        act(str(folder / SOCKET))
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        act(f"/proc/self/fd/{fd}/{SOCKET}")
    finally:
        os.close(fd)


def is_owner(link: socket.socket) -> bool:
    if sys.platform != "linux":
        return True  # the folder keeps others out
    _, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return uid in (os.getuid(), 0)


def read_question(link: socket.socket) -> dict[str, Any] | None:
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_QUESTION:
        more = link.recv(65536)
        if not more:
            return None
        data += more
    try:
        question = json.loads(data)
    except ValueError:
        return None
    return question if isinstance(question, dict) else None
