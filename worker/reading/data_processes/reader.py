"""Reads steps with data processes, once these have shown that they read what their owner does."""

from __future__ import annotations

from typing import Any

from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.reader import SourceReader, StepRows, flatten_rows
from hostmesh.worker.reading.arrays import named_leaves
from hostmesh.worker.reading.data_processes.pool import DataProcesses
from hostmesh.worker.reading.parallel import ParallelReader
from hostmesh.worker.reading.trial import WHY, are_equal

DIFFERENT = (
    f"rows that data processes read differ from those that their owner reads: {WHY}, or a library gives other numbers"
    " with one thread than with several; wanted workers=0"
)


class FirstStep:
    """Of one loader: its owner reads it, by which the structure is known, while data processes start; then these do.

    What differs from read to read cannot be compared, and is taken as it comes.
    """

    def __init__(self, name: str) -> None:
        self.is_read = False
        self._name = name

    def read(self, step: int, serial: SourceReader, parallel: ParallelReader, layout: Layout) -> StepRows:
        rows = serial.read(step)
        require_plain(rows.blocks[0])
        arrays = flatten_rows(rows, layout, step)
        found = parallel.read(step).arrays  # the steps after it are begun too
        assert found is not None
        if not are_equal(arrays, found) and are_equal(arrays, flatten_rows(serial.read(step), layout, step)):
            raise DataError(f"step {step}: {self._name}: {DIFFERENT}")
        self.is_read = True
        return rows._replace(arrays=arrays)


class ProcessReader:
    """Data processes read all steps but those by which the structure of a length becomes known."""

    def __init__(
        self,
        first: FirstStep,
        serial: SourceReader,
        layout: Layout,
        processes: DataProcesses,
        ahead: int,
        total: int | None,
    ) -> None:
        self._first, self._serial, self._layout = first, serial, layout
        self._parallel = ParallelReader(serial, layout, processes, ahead, total)

    def read(self, step: int) -> StepRows:
        if not self._first.is_read:
            return self._first.read(step, self._serial, self._parallel, self._layout)
        rows = self._parallel.read(step)
        if rows.arrays is None:
            require_plain(rows.blocks[0])
        return rows

    def close(self) -> None:
        self._serial.close()
        self._parallel.close()


def require_plain(block: Any) -> None:
    """A data process takes blocks apart without jax, so it knows no containers but Python's own."""
    import jax

    leaves = jax.tree_util.tree_leaves(block)
    own = [leaf for _, leaf in named_leaves(block)]
    if len(leaves) != len(own) or any(a is not b for a, b in zip(leaves, own, strict=True)):
        raise DataError(f"processes= wants rows made of dicts, tuples and lists; found a {type(block).__name__}")
