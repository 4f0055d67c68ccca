"""A sync in a process of its own, so that a disk that does not answer does not silence the agent."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import time
from typing import Any, List, Optional

from hostmesh.launcher.agent.children.child_link import ChildLink
from hostmesh.launcher.agent.children.fresh_child import leave_parent, leave_stream
from hostmesh.launcher.agent.sync.incoming import Incoming, SyncError
from hostmesh.launcher.protocol import wire

# When one system call of the child takes more seconds than this, its disk counts as dead.
STALLED = 60.0
TICK = 1.0
# Bytes after which the child acknowledges what it has stored; the launcher's window is several times as large.
ACKNOWLEDGE = 256 << 10


class SyncChild:
    """The agent's end: chunks of files go in, answers come out, and nothing blocks.

    The child counts `ticks` in shared memory as long as its system calls return. `usage` is a descriptor that it hands
    over: as long as the agent has it, the agent counts as a user of the workdir.
    """

    def __init__(self, order: wire.Sync, mark: str) -> None:
        self.workdir = order.workdir
        self.usage: Optional[int] = None
        self._link = ChildLink()
        self.socket = self._link.socket
        self._ticks = mmap.mmap(-1, 1)
        self._seen, self._seen_at = 0, time.monotonic()
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _sync_and_leave(agent, order, mark, self._link.theirs, self._ticks)
        self._link.theirs.close()

    @property
    def has_more(self) -> bool:
        return self._link.waiting > 0

    def give(self, message: Any) -> None:
        """The launcher sends no more than a window of chunks ahead, so the outbox stays small."""
        self._link.give(message)

    def serve(self) -> List[Any]:
        """To be called whenever the socket is ready; returns the child's answers."""
        self._link.flush()
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 1 << 18, 1)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data, fds = b"", []
        for fd in fds:
            os.set_inheritable(fd, False)
            self.usage = fd
        return self._link.decoder.feed(data) if data else [wire.Refused("sync: the process that does it died")]

    def is_stalled(self) -> bool:
        now, ticks = time.monotonic(), self._ticks[0]
        if ticks != self._seen:
            self._seen, self._seen_at = ticks, now
        return now - self._seen_at > STALLED

    def explain_stalled(self) -> str:
        disk = f"the disk under {self.workdir} has not answered for {STALLED:g} s"
        return f"{disk}; is it a network disk whose server is gone?"

    def close(self) -> None:
        """Kill the child, and do not wait for its end: it does not die before its disk answers."""
        self.socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _sync_and_leave(agent: int, order: wire.Sync, mark: str, link: socket.socket, ticks: mmap.mmap) -> None:
    try:
        leave_parent(agent)
        leave_stream()
        _show_life(ticks)
        link.sendall(wire.encode(_sync(order, mark, link)))
    finally:
        os._exit(0)


def _show_life(ticks: mmap.mmap) -> None:
    """Tick by a signal handler, which Python runs between system calls: during one that does not return, none runs."""

    def tick(*_: Any) -> None:
        ticks[0] = (ticks[0] + 1) % 256

    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, TICK, TICK)


def _sync(order: wire.Sync, mark: str, link: socket.socket) -> Any:
    """Returns the last answer."""
    try:
        incoming = Incoming(order.workdir, order.data, mark)
        try:
            incoming.expect(needed := incoming.compare())
            _hand_over(wire.encode(wire.FilesNeeded(needed)), incoming.usage, link)
            if needed:
                _store_all(incoming, link)
            return wire.Synced(*incoming.apply())
        finally:
            incoming.close()
    except SyncError as error:
        return wire.Refused(str(error))
    except Exception as error:
        return wire.Refused(f"sync: {type(error).__name__}: {error}")


def _hand_over(frame: bytes, usage: Optional[int], link: socket.socket) -> None:
    """Send a frame, and with its first byte the descriptor."""
    assert usage is not None
    socket.send_fds(link, [frame[:1]], [usage])
    link.sendall(frame[1:])


def _store_all(incoming: Incoming, link: socket.socket) -> None:
    decoder, stored = wire.Decoder(), 0
    while data := link.recv(1 << 18):
        for message in decoder.feed(data):
            if isinstance(message, wire.SkipFile):
                complete = incoming.skip(message.number)
            else:
                complete = incoming.store(message.number, message.last, message.data)
                stored += len(message.data)
            if complete:
                return
        if stored >= ACKNOWLEDGE:
            link.sendall(wire.encode(wire.BytesStored(stored)))
            stored = 0
    raise SyncError("the agent ended while files were on their way")
