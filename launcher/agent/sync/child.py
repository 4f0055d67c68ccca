"""The host's end of a sync in a process of its own: a disk that does not answer must not silence the agent."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import time
from typing import Any, List, Optional

from hostmesh.launcher import wire
from hostmesh.launcher.agent.startup.child_task import part_from
from hostmesh.launcher.agent.sync.incoming import Incoming, SyncError

# Seconds that one system call of the child may take: then its disk is taken for dead.
STALLED = 60.0
TICK = 1.0
# The launcher has several times as much on its way, at the least.
ACKNOWLEDGE = 256 << 10


class SyncChild:
    """Pieces go in, answers come out, and nothing blocks; `usage` is what the child registered the agent with."""

    def __init__(self, order: wire.Sync, mark: str) -> None:
        self.workdir = order.workdir
        self.usage: Optional[int] = None
        self.socket, theirs = socket.socketpair()
        self._ticks = mmap.mmap(-1, 1)
        self._seen, self._seen_at = 0, time.monotonic()
        self._outbox = bytearray()
        self._decoder = wire.Decoder()
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _sync_and_leave(agent, order, mark, theirs, self._ticks)
        theirs.close()
        self.socket.setblocking(False)

    @property
    def has_more(self) -> bool:
        return bool(self._outbox)

    def give(self, message: Any) -> None:
        """The launcher sends no more than a window of pieces that are not taken, so this stays small."""
        self._outbox += wire.encode(message)
        self._flush()

    def serve(self) -> List[Any]:
        """Whenever the socket is ready; what the child has said."""
        self._flush()
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 18, 1)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
            self.usage = fd
        return self._decoder.feed(data) if data else [wire.Refused("sync: the process that does it died")]

    def is_stalled(self) -> bool:
        now, ticks = time.monotonic(), self._ticks[0]
        if ticks != self._seen:
            self._seen, self._seen_at = ticks, now
        return now - self._seen_at > STALLED

    def close(self) -> None:
        """One that waits for a dead disk does not die before the disk answers; nobody waits for it."""
        self.socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: self.socket.send(self._outbox[: 1 << 18])]
        except OSError:
            pass  # full, or gone: then its end is heard


def _sync_and_leave(agent: int, order: wire.Sync, mark: str, link: socket.socket, ticks: mmap.mmap) -> None:
    try:
        part_from(agent)
        _show_life(ticks)
        link.sendall(wire.encode(_sync(order, mark, link)))
    finally:
        os._exit(0)


def _show_life(ticks: mmap.mmap) -> None:
    """Python handles a signal when the system call under way has returned; one that waits for a dead disk does not."""

    def tick(*_: Any) -> None:
        ticks[0] = (ticks[0] + 1) % 256

    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, TICK, TICK)


def _sync(order: wire.Sync, mark: str, link: socket.socket) -> Any:
    """The last answer."""
    try:
        incoming = Incoming(order.workdir, order.data, mark)
        try:
            incoming.expect(wanted := incoming.look())
            _hand_over(wire.encode(wire.FilesNeeded(wanted)), incoming.usage, link)
            if wanted:
                _take_all(incoming, link)
            return wire.Synced(*incoming.place())
        finally:
            incoming.close()
    except SyncError as error:
        return wire.Refused(str(error))
    except Exception as error:
        return wire.Refused(f"sync: {type(error).__name__}: {error}")


def _hand_over(frame: bytes, usage: Optional[int], link: socket.socket) -> None:
    assert usage is not None
    socket.send_fds(link, [frame[:1]], [usage])
    link.sendall(frame[1:])


def _take_all(incoming: Incoming, link: socket.socket) -> None:
    decoder, taken = wire.Decoder(), 0
    while data := link.recv(1 << 18):
        for message in decoder.feed(data):
            if isinstance(message, wire.SkipFile):
                complete = incoming.leave(message.number)
            else:
                complete = incoming.take(message.number, message.last, message.data)
                taken += len(message.data)
            if complete:
                return
        if taken >= ACKNOWLEDGE:
            link.sendall(wire.encode(wire.BytesStored(taken)))
            taken = 0
    raise SyncError("the agent ended while files were on their way")
