"""A process that reads rows for another one, and writes them into memory that both share. It does not import jax.

Started as `python -c "…; main(work, life)"` with two sockets: messages come by the first. The second ends when the
owner does, and by it the owner asks where this process is.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, as_data_error
from hostmesh.worker.process.freed_memory import keep_freed_memory
from hostmesh.worker.process.user_frames import find_running_frame
from hostmesh.worker.reading.arrays import named_leaves
from hostmesh.worker.reading.data_processes.messages import Begin, Done, Fill, receive, send
from hostmesh.worker.reading.data_processes.shipping import unpack
from hostmesh.worker.reading.row_reader import RowReader, Spent


def main(work: int, life: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the owner, who decides
    keep_freed_memory()  # records come and go, each as large as the one before
    threading.Thread(target=stay_alive, args=(socket.socket(fileno=life),), daemon=True).start()
    link = socket.socket(fileno=work)
    first = receive(link)
    if first is None:
        return
    begin, (file,) = first
    try:
        filler = SharedFiller(open_reader(begin, file))
    except Exception as error:
        send(link, Done(problem=str(as_data_error("a data process could not begin", error))))
        return
    send(link, Done())
    while (received := receive(link)) is not None:
        order, files = received
        try:
            answer = Done(filler.fill(order, files))
        except DataError as error:
            answer = Done(problem=str(error))
        send(link, answer)


def open_reader(begin: Begin, file: int) -> RowReader:
    sys.path[:] = begin.path
    os.chdir(begin.folder)
    reader = unpack(begin.packed, file, begin.sizes)
    assert isinstance(reader, RowReader)
    return reader


def stay_alive(life: socket.socket) -> None:
    """Ends this process with its owner, whatever it is doing; tells where it is when it is asked."""
    main_thread = threading.main_thread().ident
    while True:
        try:
            asked = life.recv(1)
        except OSError:
            asked = b""
        if not asked:
            os._exit(0)
        frame = sys._current_frames().get(main_thread or 0)
        with suppress(OSError):  # the owner has ended meanwhile, which the next look finds
            life.sendall((find_running_frame(frame) or "").encode()[:200] + b"\n")


class SharedFiller:
    """Keeps the segments mapped that it was told of."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader
        self._segments: dict[int, mmap.mmap] = {}

    def fill(self, order: Fill, files: Sequence[int]) -> Spent:
        for number in order.gone:
            self._segments.pop(number, None)
        for (number, size), file in zip(order.new, files, strict=True):
            self._segments[number] = mmap.mmap(file, size)
            os.close(file)
        block, spent = self._reader.read(order.chunk)
        for out, array in zip(self._outs(order), self._flatten(block, order), strict=True):
            np.copyto(out, array)
        return spent

    def _flatten(self, block: Any, order: Fill) -> list[NDArray[Any]]:
        leaves = list(named_leaves(block))
        names = [name for name, _ in leaves]
        try:
            if tuple(names) != order.fields.names:
                raise order.fields.refuse_names(names)
            return order.fields.check([leaf for _, leaf in leaves], len(order.chunk.ids))
        except Exception as error:
            raise as_data_error(f"step {order.chunk.step}", error) from error

    def _outs(self, order: Fill) -> list[NDArray[Any]]:
        fields, last = order.fields, order.first + len(order.chunk.ids)
        kinds = zip(order.segments, fields.shapes, fields.dtypes, strict=True)
        return [
            np.ndarray((order.rows, *shape), dtype, self._segments[number])[order.first : last]
            for number, shape, dtype in kinds
        ]
