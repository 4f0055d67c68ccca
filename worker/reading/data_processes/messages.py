"""Messages between a process and its data processes: pickled objects, and file descriptors beside them."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hostmesh.worker.reading.arrays import Fields
from hostmesh.worker.reading.row_reader import Chunk, Spent

HEADER = struct.Struct("=Q")
MAX_FILES = 2  # the first message comes with so many, the others with none


@dataclass(frozen=True)
class Begin:
    """The first message: what to read from, as `pack` in shipping.py makes it.

    Two files come with it: one that holds arrays of the source, and the memory for batches.
    """

    path: list[str]
    folder: str
    packed: bytes
    sizes: list[int]  # of the arrays in the first file


@dataclass(frozen=True)
class Fill:
    """Read a chunk, and write its rows into arrays in shared memory, from row `first` on."""

    chunk: Chunk
    first: int
    rows: int  # of each array
    fields: Fields
    starts: list[int]  # of the array of each of the fields, within the shared file
    extents: list[tuple[int, int]]  # start and size of those parts of the file that are mapped as a whole


@dataclass(frozen=True)
class Done:
    """The answer to each message; `problem` is what went wrong, for the user."""

    spent: Spent = Spent(0.0, 0.0)
    problem: str | None = None


def send(to: socket.socket, message: Any, files: Sequence[int] = ()) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    header = HEADER.pack(len(data))
    if files:
        socket.send_fds(to, [header], list(files))
        to.sendall(data)
    else:
        to.sendall(header + data)


def receive(source: socket.socket) -> tuple[Any, list[int]] | None:
    """A message and the files that came with it; None where the other side is gone."""
    try:
        header, files, _, _ = socket.recv_fds(source, HEADER.size, MAX_FILES)
        while header and len(header) < HEADER.size:
            more = source.recv(HEADER.size - len(header))
            header = header + more if more else b""
        if not header:
            return None
        data = bytearray(HEADER.unpack(header)[0])
        view, got = memoryview(data), 0
        while got < len(data):
            count = source.recv_into(view[got:])
            if not count:
                return None
            got += count
    except ConnectionError:
        return None
    return pickle.loads(data), files
