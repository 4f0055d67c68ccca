"""The launcher's end of one agent's stream: three threads that write commands, read events and read errors."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hostmesh.launcher.agent.flow import FILES, Window
from hostmesh.launcher.errors import Unreachable
from hostmesh.launcher.protocol import wire
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT, Stream

BEATS_PER_LEASE = 5
UNHANDLED = 64
MAX_ERRORS = 64 << 10
# Bytes of output after which an agent is told that they have been dealt with.
ACKNOWLEDGE_EVERY = 16 << 10
# Makes the writer look at its pieces again.
NOTHING = b""

BULK = (wire.Output, wire.SetupOutput)
BOUNDED = (*BULK, wire.Fact, wire.Printed)


@dataclass(frozen=True)
class Heard:
    """An event of the agent on host number `host`, which has had `life` of them."""

    host: int
    event: Any
    life: int = 1


@dataclass(frozen=True)
class Ended:
    """The stream of host number `host` is over; `said` is what the host printed instead of, or beside, the protocol,
    each part from where it was cut, `unreachable` why there never was a stream."""

    host: int
    said: tuple[str, ...]
    unreachable: str | None = None
    life: int = 1

    @property
    def text(self) -> str:
        return "\n".join(filter(None, self.said)).strip()


class Channel:
    def __init__(
        self, host: int, stream: Stream, package: bytes, lease: float, inbox: queue.SimpleQueue[Any], life: int = 1
    ) -> None:
        self.host, self.life = host, life
        self.chunks = 0  # how often something came
        self._stream = stream
        self._beat_every = lease / BEATS_PER_LEASE
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outbox.put(package)
        self._pieces: Iterator[wire.FileChunk | wire.SkipFile] = iter(())
        self._window = Window(FILES)
        # What workers can send without end waits in the reader when the supervisor is behind: memory stays bounded.
        self._room = threading.Semaphore(UNHANDLED)
        self._is_closed = False
        self._unacknowledged = 0
        self._errors = b""
        self._decoder = wire.Decoder(after_magic=True)
        self._errors_reader = self._start(self._read_errors)
        self._start(self._read)
        self._start(self._write)

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        name = f"{target.__name__}-{self.host}"
        thread = threading.Thread(target=self._report_end_of, args=(target,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            problem = "this machine lets the launcher start no more threads; raise ulimit -u here"
            self._inbox.put(Ended(self.host, (), problem, self.life))
        return thread

    def _report_end_of(self, work: Callable[[], None]) -> None:
        """Whatever happens in a thread of a stream, whoever waits for it hears of the end, and of the reason."""
        try:
            work()
        except Unreachable as error:
            self._inbox.put(Ended(self.host, (), str(error), self.life))
        except BaseException as error:
            said = f"its stream failed: {type(error).__name__}: {error}"
            self._inbox.put(Ended(self.host, (said,), life=self.life))

    @property
    def said(self) -> tuple[str, ...]:
        """What the host has printed so far that is no word of an agent."""
        return tuple(part.decode(errors="replace") for part in (*self._decoder.noise, self._errors))

    @property
    def is_open(self) -> bool:
        return self._stream.is_open

    def send(self, message: Any) -> None:
        self.send_encoded(wire.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """What goes to every host is encoded once."""
        self._outbox.put(data)

    def send_pieces(self, pieces: Iterator[wire.FileChunk | wire.SkipFile]) -> None:
        """Made one by one as the host takes them, so that many hosts cost no memory; all else overtakes them."""
        self._pieces = pieces
        self._outbox.put(NOTHING)

    def note_taken(self, size: int) -> None:
        self._window.note_acknowledged(size)
        self._outbox.put(NOTHING)

    def report(self, event: Any) -> None:
        """For a thread that makes pieces: an event as if the host had sent it."""
        self._inbox.put(Heard(self.host, event, self.life))

    def handled(self, event: Any) -> None:
        if isinstance(event, BOUNDED):
            self._room.release()
        if isinstance(event, BULK):
            self._acknowledge(len(event.data))

    def _acknowledge(self, size: int) -> None:
        self._unacknowledged += size
        if self._unacknowledged >= ACKNOWLEDGE_EVERY:
            self.send(wire.Acknowledge(self._unacknowledged))
            self._unacknowledged = 0

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """`timeout` is how long the agent is given to wind up."""
        self._outbox.put(None)
        self._is_closed = True  # nobody handles what its reader still brings
        self._room.release()
        self._stream.close(timeout)

    def _write(self) -> None:
        try:
            while (data := self._next()) is not None:
                self._stream.write(data)
        except (OSError, ValueError, Unreachable):
            pass  # the reader meets the same end, and reports it

    def _next(self) -> bytes | None:
        """A beat of its own keeps the lease, however busy the supervisor is."""
        try:
            while not self._outbox.empty():
                if (data := self._outbox.get_nowait()) != NOTHING:
                    return data
            if self._window.room and (piece := next(self._pieces, None)) is not None:
                self._window.note_sent(len(getattr(piece, "data", b"")))
                return wire.encode(piece)
            return self._outbox.get(timeout=self._beat_every)
        except queue.Empty:
            return wire.encode(wire.Beat())

    def _read(self) -> None:
        decoder = self._decoder
        problem = ""
        try:
            while data := self._stream.read():
                self.chunks += 1
                for event in decoder.feed(data):
                    if isinstance(event, BOUNDED) and not self._is_closed:
                        self._room.acquire()
                    self._inbox.put(Heard(self.host, event, self.life))
        except (OSError, ValueError):
            pass
        except wire.WireError as error:
            problem = str(error)
        if self._errors_reader.ident is not None:
            self._errors_reader.join(0.5)
        self._inbox.put(Ended(self.host, (*self.said, problem), life=self.life))

    def _read_errors(self) -> None:
        try:
            while data := self._stream.read_errors():
                self._errors = (self._errors + data)[-MAX_ERRORS:]
        except (OSError, ValueError):
            pass


def close_channel(channel: Channel, timeout: float) -> None:
    """A stream that cannot be closed in order is left to the end of this process; nobody needs its traceback."""
    with contextlib.suppress(Exception):
        channel.close(timeout)


def close_channels(channels: Mapping[Channel, float], limit: float) -> None:
    """All at once, each with its own timeout; whoever takes longer than the limit is left to its thread."""
    closers = [
        threading.Thread(target=close_channel, args=(channel, timeout), daemon=True)
        for channel, timeout in channels.items()
    ]
    for closer in closers:
        closer.start()
    deadline = time.monotonic() + limit
    for closer in closers:
        closer.join(max(0.0, deadline - time.monotonic()))
