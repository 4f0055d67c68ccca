"""A scripted agent at the transport seam, in memory: it answers commands at once, or as a story tells it to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.link.channel import Channel
from hostmesh.launcher.transports.base import CLOSE_TIMEOUT

HELLO = wire.Hello(100, 101, "3.11.0", ["10.0.0.1"])
DRAIN = b"drain"


class End(Exception):
    """Among an agent's words: here its stream ends."""


Script = Mapping[type, Callable[["FakeAgent", Any], Iterable[Any]]]
HEALTHY: Script = {
    wire.Reserve: lambda _, order: [wire.Reserved({order.addresses[-1]: 4711})],
    wire.Reach: lambda _, order: [wire.Reached({address: None for address, _ in order.targets})],
    wire.RunSetup: lambda *_: [wire.SetupDone(True, 1.0)],
    wire.PrepareWorkers: lambda _, order: [wire.Ready(order.python)],
    wire.Inspect: lambda agent, _: [wire.Inspected({"time": agent.clock(), "devices": {}})],
    wire.Spawn: lambda _, order: [wire.Started(order.process_id, 1000 + order.process_id, warm=False)],
    wire.Signal: lambda agent, order: agent.end_all(-order.number),
    wire.Stop: lambda agent, order: agent.end_all(-9) + ([wire.Cleared([])] if order.stays else [wire.Bye([]), End()]),
}


class FakeAgent:
    """A Stream. A word is a message, bytes that are none, an exception for whoever reads, or End."""

    def __init__(self, script: Script | None = None, hello: Iterable[Any] = (wire.MAGIC, HELLO)) -> None:
        self.is_open, self.is_over = True, False
        self.beats = bool(hello)
        self.clock: Callable[[], float] = lambda: 0.0
        self.heard: list[Any] = []
        self.running: list[int] = []
        self._hello: Iterable[Any] | None = hello
        self._script = {**HEALTHY, **(script or {})}
        self._decoder = wire.Decoder()
        self._words: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_drained = threading.Event()
        self._reader = threading.current_thread()

    def say(self, *words: Any) -> None:
        for word in words:
            if isinstance(word, wire.Exited) and word.process_id in self.running:
                self.running.remove(word.process_id)
            self.is_over = self.is_over or isinstance(word, BaseException)
            self._words.put(wire.encode(word) if hasattr(word, "_asdict") else word)

    def exit(self, process_id: int, code: int, tail: bytes = b"") -> list[Any]:
        """The words that tell of the end of a process."""
        return [wire.Exited(process_id, code, self.clock(), 0.0, tail), wire.Drained(process_id)]

    def end_all(self, code: int) -> list[Any]:
        return [word for process_id in self.running for word in self.exit(process_id, code)]

    def read(self) -> bytes:
        self._reader = threading.current_thread()
        while (word := self._words.get()) == DRAIN:
            self._is_drained.set()
        if isinstance(word, BaseException) and not isinstance(word, End):
            raise word
        return b"" if isinstance(word, End) else word

    def read_errors(self) -> bytes:
        return b""

    def write(self, data: bytes) -> None:
        if data == DRAIN:
            self._is_drained.set() if self.is_over else self._words.put(DRAIN)
        elif self._hello is not None:  # the first that comes is the agent's own source
            self.say(*self._hello)
            self._hello = None
        elif not self.is_over:
            for command in self._decoder.feed(data):
                self.heard.append(command)
                self.running += [command.process_id] if isinstance(command, wire.Spawn) else []
                self.say(*self._script.get(type(command), lambda *_: ())(self, command))

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        self.say(End())

    def drain(self, channel: Channel) -> None:
        """Returns when all that was sent is answered, and all answers have arrived, or nobody reads them any more."""
        self._is_drained.clear()
        channel.send_encoded(DRAIN)
        while not self._is_drained.wait(0.02) and self._reader.is_alive():
            pass
        self._reader.join(20 if self.is_over else 0)
