"""A question to a run, in the inbox of its supervisor, and where the answers go."""

from __future__ import annotations

import json
import queue
import socket
from dataclasses import dataclass
from typing import Any

# Answers that an asker has not taken yet; one who stops reading is left.
MAX_WAITING = 4096


class Reply:
    """Where the answers to one question go. Nobody here waits for the asker."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def send(self, **answer: Any) -> None:
        if self._answers.qsize() < MAX_WAITING:
            self._answers.put(answer)
        else:
            self._shut()

    def end(self) -> None:
        self._answers.put(None)

    def write_all(self) -> None:
        """In a thread of its own, until `end`."""
        try:
            while (answer := self._answers.get()) is not None:
                self._link.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            pass  # the asker has gone, which the reader notices as well
        self._shut()

    def _shut(self) -> None:
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@dataclass(frozen=True)
class Ask:
    """In the inbox: somebody asks the run something."""

    question: dict[str, Any]
    reply: Reply


@dataclass(frozen=True)
class Left:
    """In the inbox: who asked does not wait any more."""

    reply: Reply
