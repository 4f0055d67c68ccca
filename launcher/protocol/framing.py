"""Frames of the agent protocol: bytes to frames and back, however a stream cuts or dirties them; Python 3.9 or newer.

A frame is two big-endian lengths, a JSON head `["Output", {"process_id": 3}]` and raw bytes (`data`, often empty).
Whatever a host prints before the agent's MAGIC (banners, shell start-up noise) is skipped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

MAGIC = b"\x00hostmesh-agent-1\n"
LENGTHS = struct.Struct(">II")
MAX_PART = 64 << 20
MAX_NOISE = 1 << 20
# How many bytes of a text's beginning and of its end are kept for a message. Of a process's output the agent keeps as
# much of the end.
HEAD_LENGTH = 4 << 10
TAIL_LENGTH = 16 << 10


class WireError(Exception):
    """The other end does not speak the agent protocol."""


def encode(message: Any) -> bytes:
    fields = message._asdict()
    data: bytes = fields.pop("data", b"")
    head = json.dumps([type(message).__name__, fields]).encode()
    return LENGTHS.pack(len(head), len(data)) + head + data


class FrameReader:
    """Bytes in, frames out. With `after_magic` everything before the MAGIC is `noise`."""

    def __init__(self, after_magic: bool = False) -> None:
        self.noise: tuple[bytes, ...] = ()
        self._waiting_for_magic = after_magic
        self._buffer = bytearray()

    def split(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Take in more bytes; gives the head and the data of every frame that is complete now."""
        self._buffer += data
        if self._waiting_for_magic and not self._skip_noise():
            return
        while (frame := self._take_frame()) is not None:
            yield frame

    def _skip_noise(self) -> bool:
        start = self._buffer.find(MAGIC)
        if start < 0:
            self.noise = _keep_ends(self._buffer)
            if len(self._buffer) > MAX_NOISE:
                raise WireError("the host printed 1 MiB and no agent answered")
            return False
        self._waiting_for_magic = False
        del self._buffer[: start + len(MAGIC)]
        return True

    def _take_frame(self) -> tuple[bytes, bytes] | None:
        if len(self._buffer) < LENGTHS.size:
            return None
        head_length, data_length = LENGTHS.unpack_from(self._buffer)
        if max(head_length, data_length) > MAX_PART:
            raise WireError(f"a frame of {head_length} + {data_length} bytes")
        middle = LENGTHS.size + head_length
        end = middle + data_length
        if len(self._buffer) < end:
            return None
        head, data = bytes(self._buffer[LENGTHS.size : middle]), bytes(self._buffer[middle:end])
        del self._buffer[:end]
        return head, data


def _keep_ends(noise: bytearray) -> tuple[bytes, ...]:
    """Its beginning tells what was printed at all, and its end tells what went wrong."""
    if len(noise) <= HEAD_LENGTH + TAIL_LENGTH:
        return (bytes(noise),)
    return bytes(noise[:HEAD_LENGTH]), bytes(noise[-TAIL_LENGTH:])
