"""The agent's end of the stream to the launcher: commands come on stdin, events go out on stdout, silence ends both."""

from __future__ import annotations

import os
import selectors
import time
from collections import deque
from typing import Any, Callable, Deque

from hostmesh.launcher.agent.flow import OUTPUT, Window
from hostmesh.launcher.protocol import wire

STDIN, STDOUT = 0, 1
BEAT_EVERY = 1.0
FIRST_LEASE = 30.0
OBEY_TIMEOUT = 0.2
OUTBOX_FULL = 512 << 10


class Link:
    """`is_over` once the stream has ended, or the launcher has been silent for longer than `lease`.

    `window` bounds the output that is on its way to the launcher.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._decoder = wire.Decoder()
        self._commands: Deque[Any] = deque()
        self._outbox = bytearray(wire.MAGIC)
        self.window = Window(OUTPUT)
        self.lease = FIRST_LEASE
        self._heard_at = self._beat_at = time.monotonic()
        self.is_over = False
        for fd in (STDIN, STDOUT):
            os.set_blocking(fd, False)

    @property
    def has_commands(self) -> bool:
        return bool(self._commands)

    @property
    def takes_output(self) -> bool:
        return len(self._outbox) < OUTBOX_FULL and self.window.room > 0

    @property
    def takes_facts(self) -> bool:
        """Facts are small and matter more than output, so they may go beyond what output may fill."""
        return len(self._outbox) < 2 * OUTBOX_FULL

    def send(self, message: Any) -> None:
        self._outbox += wire.encode(message)

    def watch(self) -> None:
        """Let the selector wait for what can be handled now."""
        watch(self._selector, STDIN, selectors.EVENT_READ, self._hear, not self._commands)
        watch(self._selector, STDOUT, selectors.EVENT_WRITE, self.flush, bool(self._outbox))

    def pass_commands(self, obey: Callable[[Any], None]) -> None:
        """Only for a moment, so that beats go out however many chunks of files have come."""
        until = time.monotonic() + OBEY_TIMEOUT
        while self._commands and time.monotonic() < until:
            message = self._commands.popleft()
            if isinstance(message, wire.Lease):
                self.lease = message.seconds
            elif isinstance(message, wire.Acknowledge):
                self.window.note_acknowledged(message.size)
            else:
                obey(message)
            self._heard_at = time.monotonic()

    def keep_time(self) -> bool:
        """Notice the launcher's silence, and beat; True when a beat was due."""
        now = time.monotonic()
        if now - self._heard_at > self.lease:
            self.is_over = True
        if now - self._beat_at < BEAT_EVERY:
            return False
        self._beat_at = now
        self.send(wire.Beat())
        return True

    def flush(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(STDOUT, self._outbox[: 1 << 18])]
        except BlockingIOError:
            pass
        except OSError:
            self.is_over = True

    def flush_all(self) -> None:
        """Wait until the launcher's end has taken everything."""
        os.set_blocking(STDOUT, True)
        self.flush()

    def _hear(self) -> None:
        try:
            data = os.read(STDIN, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_over = True
            return
        self._heard_at = time.monotonic()
        self._commands.extend(self._decoder.feed(data))


def watch(selector: selectors.BaseSelector, source: Any, events: int, act: Callable[[], None], wanted: bool) -> None:
    """Register `source` if it is wanted and is not registered yet, and the other way round."""
    is_watched = source in selector.get_map()
    if wanted and not is_watched:
        selector.register(source, events, act)
    elif is_watched and not wanted:
        selector.unregister(source)
