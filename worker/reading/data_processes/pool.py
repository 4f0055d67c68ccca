"""Data processes: each is asked by a thread of its owner for one piece after another."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

import hostmesh
from hostmesh.worker.assembly.layout import MASK
from hostmesh.worker.errors import DataError
from hostmesh.worker.identity import FACTS_SOCKET, PROCESS_ID, RECORD_FILE, STACKS_FILE
from hostmesh.worker.reading.arrays import Fields
from hostmesh.worker.reading.data_processes.messages import Begin, Done, Fill, receive, send
from hostmesh.worker.reading.data_processes.shared_memory import SharedMemory
from hostmesh.worker.reading.data_processes.shipping import Packed, Shipped
from hostmesh.worker.reading.pieces import Piece
from hostmesh.worker.reading.row_reader import Spent
from hostmesh.worker.reading.threads import FillingThreads
from hostmesh.worker.recording.recorder import RECORDER

# What would make a child take itself for the process that it reads for.
NOT_INHERITED = (PROCESS_ID, FACTS_SOCKET, RECORD_FILE, STACKS_FILE)
# A child computes with one thread, as there is one child for each core; and it never takes an accelerator.
CHILD_ENV = {"JAX_PLATFORMS": "cpu"}
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CODE = (
    "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.path.insert(0, sys.argv[1]);"
    " from hostmesh.worker.reading.data_processes.process import main; main({}, {})"
)
# Seconds after which a child that has not answered is asked where it is.
ASK_AFTER, ASK_TIMEOUT = 2.0, 1.0
ENDING_TIMEOUT = 1.0


class DataProcesses(FillingThreads):
    """Started together, and each served by a thread."""

    def __init__(self, source: str, packed: Packed, memory: SharedMemory, count: int) -> None:
        self._is_closed = False
        self._children: list[DataProcess] = []
        self._begun_in = find_place()
        self._shipped = Shipped(source, packed)
        try:
            for _ in range(count):
                begin = Begin(*self._begun_in, packed.data, packed.sizes)
                self._children.append(DataProcess(len(self._children), source, begin, self._shipped, memory))
        except OSError as error:
            self._end_all()
            raise DataError(f"data process {len(self._children)} of {count} cannot be started: {error}") from error
        super().__init__([child.fill for child in self._children])

    def can_serve(self, packed: Packed) -> bool:
        """Whether they would be started with the same things again."""
        is_alive = not self._is_closed and all(child.is_alive for child in self._children)
        return is_alive and self._begun_in == find_place() and self._shipped.is_still(packed)

    def close(self) -> None:
        self._is_closed = True
        super().close()
        self._end_all()

    def _end_all(self) -> None:
        for child in self._children:
            child.hang_up()
        for child in self._children:
            child.end()
        self._shipped.close()


class DataProcess:
    def __init__(self, number: int, source: str, begin: Begin, shipped: Shipped, memory: SharedMemory) -> None:
        self._name, self._memory = f"data process {number}", memory
        self._source = source
        self._is_ready = self._is_closed = False
        self._work, work = socket.socketpair()
        self._life, life = self._work, work  # until there are others
        try:
            self._life, life = socket.socketpair()
            self._child = start_child(work.fileno(), life.fileno())
        except BaseException:
            self._work.close()
            self._life.close()
            raise
        finally:
            work.close()
            life.close()
        self._end_file = open_end_of(self._child.pid)
        self._answers = select.poll()
        for file in (self._work.fileno(), self._end_file):
            if file is not None:
                self._answers.register(file, select.POLLIN)
        try:
            send(self._work, begin, [shipped.file, memory.file])
        except ConnectionError:
            pass  # it is gone already, which the first answer will tell
        except BaseException:
            self.hang_up()
            self.end()
            raise

    def fill(self, piece: Piece) -> Spent:
        if not self._is_ready:
            self._await_answer(piece)
            self._is_ready = True
        try:
            send(self._work, self._order(piece))
        except OSError as error:
            if self._is_closed or isinstance(error, ConnectionError):
                raise self._explain_end(piece) from None
            raise DataError(f"step {piece.chunk.step}: {self._name} cannot be told what to read: {error}") from error
        spent = self._await_answer(piece).spent
        if piece.mask is not None:
            piece.outs[mask_at(piece)][:] = piece.mask
        return spent

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def hang_up(self) -> None:
        """It ends by itself, as it does when its owner dies."""
        self._is_closed = True
        for link in (self._work, self._life):
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def end(self) -> None:
        try:
            self._child.wait(ENDING_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._work.close()
        self._life.close()
        file, self._end_file = self._end_file, None
        if file is not None:
            os.close(file)

    def _order(self, piece: Piece) -> Fill:
        fields, arrays = without_mask(piece)
        starts = [buffer.number for _, buffer in arrays if buffer.number is not None]
        return Fill(piece.chunk, piece.first, len(piece.arrays[0][0]), fields, starts, self._memory.extents)

    def _await_answer(self, piece: Piece) -> Done:
        if self._is_closed:
            raise self._explain_end(piece)
        link = self._work.fileno()
        while not (found := self._answers.poll(ASK_AFTER * 1000)):
            RECORDER.note_place(self._ask_place())
        # Without an answer it is its end that was found: a process that `map` has started may hold the link still.
        received = receive(self._work) if any(file == link for file, _ in found) else None
        if received is None:
            raise self._explain_end(piece)
        answer = received[0]
        assert isinstance(answer, Done)
        if answer.problem is not None:
            raise DataError(answer.problem)
        return answer

    def _ask_place(self) -> str:
        """Where in the user's code it is; nothing where it does not say."""
        try:
            self._life.sendall(b"?")
            place = select.poll()
            place.register(self._life, select.POLLIN)
            if place.poll(ASK_TIMEOUT * 1000):
                return self._life.recv(256).decode("utf-8", "replace").strip()
        except OSError:
            pass
        return ""

    def _explain_end(self, piece: Piece) -> DataError:
        if self._is_closed:
            return DataError(f"{self._name} was ended with its loader")
        chunk = piece.chunk
        try:
            code = self._child.wait(ENDING_TIMEOUT)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            how = "does not answer"
        hint = ": is there too little memory?" if self._child.returncode == -signal.SIGKILL else ""
        what = f"records {chunk.ids[0]} to {chunk.ids[-1]}" if len(chunk.ids) > 1 else f"record {chunk.ids[0]}"
        return DataError(
            f"step {chunk.step}: {self._name} (pid {self._child.pid}) {how} at {what} of {self._source}{hint}"
        )


def find_place() -> tuple[list[str], str]:
    """Where Python looks for modules, and relative paths begin."""
    try:
        return list(sys.path), os.getcwd()
    except OSError as error:
        raise DataError(f"data processes begin in the current folder, which cannot be found: {error}") from error


def open_end_of(pid: int) -> int | None:
    """A file that can be read once this child has ended; None on systems without such."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def start_child(work: int, life: int) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    for name in ONE_THREAD:
        env.setdefault(name, "1")
    package = os.path.dirname(next(iter(hostmesh.__path__)))
    return subprocess.Popen(
        [sys.executable, "-c", CODE.format(work, life), package],
        env={**env, **CHILD_ENV},
        stdin=subprocess.DEVNULL,
        pass_fds=(work, life),
    )


def mask_at(piece: Piece) -> int:
    structure = piece.step.structure
    return structure.names.index(MASK)


def without_mask(piece: Piece) -> tuple[Fields, list[Any]]:
    """A child does not know of the mask: the owner writes it."""
    fields, arrays = piece.step.structure.fields, piece.arrays
    if piece.mask is None:
        return fields, arrays
    at = mask_at(piece)
    rest = [number for number in range(len(fields.names)) if number != at]
    kept = Fields(
        tuple(fields.names[number] for number in rest),
        tuple(fields.shapes[number] for number in rest),
        tuple(fields.dtypes[number] for number in rest),
        fields.device_dtypes,
    )
    return kept, [arrays[number] for number in rest]
