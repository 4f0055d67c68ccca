"""Chooses who reads the steps of a source: one thread, several, or data processes."""

from __future__ import annotations

from hostmesh.worker.assembly.buffers import allocate_private
from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.reader import SourceReader
from hostmesh.worker.reading.choice import WorkerChoice
from hostmesh.worker.reading.data_processes.pool import DataProcesses
from hostmesh.worker.reading.data_processes.reader import FirstStep, ProcessReader
from hostmesh.worker.reading.data_processes.shared_memory import SharedMemory
from hostmesh.worker.reading.data_processes.shipping import pack
from hostmesh.worker.reading.parallel import ParallelReader, RowFiller
from hostmesh.worker.reading.row_reader import RowReader
from hostmesh.worker.reading.threads import FillingThreads
from hostmesh.worker.reading.trial import Trial, TriedReader


class SpreadReading:
    """Of one loader; its readers come and go."""

    def __init__(self, name: str, choice: WorkerChoice, one_thread: str) -> None:
        """`one_thread` is why several cannot complete pieces of a step apart from each other, if that is so."""
        if one_thread:
            _refuse_more(name, choice, one_thread)
            choice = WorkerChoice()
        self._choice = choice
        self._trial = Trial(name, choice.is_asked)
        self._first = FirstStep(name)
        self._memory = SharedMemory() if choice.processes else None
        self._processes: DataProcesses | None = None
        self.allocate = allocate_private if self._memory is None else self._memory.allocate

    @property
    def extra(self) -> int:
        """Batches that are begun beside those that are read ahead."""
        return 1 if self._choice.threads or self._choice.processes else 0

    def reader(
        self, serial: SourceReader, layout: Layout, ahead: int, total: int | None
    ) -> SourceReader | TriedReader | ProcessReader:
        """`ahead` is how many batches may be read ahead; with none, no step is begun before it is asked for."""
        begun = min(self.extra, ahead)
        if self._memory is not None:
            processes = self._open_processes(serial.rows, self._memory)
            return ProcessReader(self._first, serial, layout, processes, begun, total)
        if self._choice.threads:
            fill = RowFiller(serial.rows)
            threads = FillingThreads([fill] * self._choice.threads)
            return TriedReader(self._trial, serial, ParallelReader(serial, layout, threads, begun, total), layout)
        return serial

    @property
    def has_processes(self) -> bool:
        """Whether any were begun, which wait for the next pass."""
        return self._processes is not None

    def _open_processes(self, rows: RowReader, memory: SharedMemory) -> DataProcesses:
        """Those of the pass before, where nothing has changed that they were given."""
        name = rows.source.name
        packed = pack(rows, f"{name} with its map and collate")
        if self._processes is None or not self._processes.can_serve(packed):
            if self._processes is not None:
                self._processes.close()
            self._processes = DataProcesses(name, packed, memory, self._choice.processes)
        return self._processes


def _refuse_more(name: str, choice: WorkerChoice, one_thread: str) -> None:
    """A number that was asked for is not left out silently."""
    found = f"processes={choice.processes}" if choice.processes else f"workers={choice.threads}"
    if choice.processes or (choice.is_asked and choice.threads > 1):
        raise DataError(f"{name} is read by one thread, because {one_thread}; found {found}: leave it out")
