"""The seam between the launcher and a host: the byte stream that every transport gives."""

from __future__ import annotations

from typing import Protocol

# Seconds that an agent is given to wind up when its stream is closed.
CLOSE_TIMEOUT = 5.0
# The same for one that was lost: its guardian cleans up after it.
LOST_TIMEOUT = 0.5


class Stream(Protocol):
    """Bytes to and from an agent. `is_open` is False while the transport is still connecting."""

    is_open: bool

    def read(self) -> bytes:
        """Waits for bytes of the agent; empty at the end. Raises Unreachable when there is no stream to be had."""

    def read_errors(self) -> bytes:
        """Waits for bytes that the host printed beside the stream; empty at the end."""

    def write(self, data: bytes) -> None: ...

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Ends the stream, which ends the agent; whoever waits in `read` gets the end."""
