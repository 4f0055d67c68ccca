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
from bisect import bisect_right
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
    leave_signals_to_the_owner()
    keep_freed_memory()  # records come and go, each as large as the one before
    threading.Thread(target=stay_alive, args=(socket.socket(fileno=life),), daemon=True).start()
    link = socket.socket(fileno=work)
    first = receive(link)
    if first is None:
        return
    begin, (file, batches) = first
    try:
        filler = SharedFiller(open_reader(begin, file), batches)
    except Exception as error:
        answer(link, Done(problem=str(as_data_error("a data process could not begin", error))))
        return
    answer(link, Done())
    while (received := receive(link)) is not None:
        try:
            done = Done(filler.fill(received[0]))
        except DataError as error:
            done = Done(problem=str(error))
        answer(link, done)


def leave_signals_to_the_owner() -> None:
    """Ctrl-C, Slurm and `timeout` send them to all processes, while the owner may want to read on, and save."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # a program that `map` starts does not inherit that
    os.register_at_fork(before=hold_sigterm, after_in_parent=let_sigterm, after_in_child=end_by_sigterm)


def hold_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def let_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_by_sigterm() -> None:
    """A process that `map` forks is ended so by whoever started it, perhaps at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    let_sigterm()


def answer(link: socket.socket, done: Done) -> None:
    with suppress(OSError):  # the owner has closed meanwhile, which the next `receive` finds
        send(link, done)


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
    """Keeps the extents of the shared file mapped."""

    def __init__(self, reader: RowReader, file: int) -> None:
        self._reader, self._file = reader, file
        self._mapped: list[mmap.mmap] = []

    def fill(self, order: Fill) -> Spent:
        for start, size in order.extents[len(self._mapped) :]:
            self._mapped.append(mmap.mmap(self._file, size, offset=start))
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
        begins = [start for start, _ in order.extents]
        outs = []
        for start, shape, dtype in zip(order.starts, fields.shapes, fields.dtypes, strict=True):
            extent = bisect_right(begins, start) - 1
            whole = np.ndarray((order.rows, *shape), dtype, self._mapped[extent], start - begins[extent])
            outs.append(whole[order.first : last])
        return outs
