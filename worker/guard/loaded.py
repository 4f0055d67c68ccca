"""Fingerprints what a loader has read for a step, and reads rows a second time where it is asked to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import Layout, Leaf, add_mask
from hostmesh.worker.errors import DataError
from hostmesh.worker.guard.hashing import ALGORITHM, fingerprint, fingerprint_blocks
from hostmesh.worker.guard.parts import Held, find_held, unique
from hostmesh.worker.guard.sampling import Sampling
from hostmesh.worker.guard.telling import TELLER, Told
from hostmesh.worker.loading.padding import PaddingTransforms
from hostmesh.worker.loading.source_rows import SourceRows
from hostmesh.worker.reading.row_reader import Chunk, RowReader

# So many record numbers are told at most.
MAX_RECORDS = 1000
# Seconds that a question waits for the read that is going on.
READING_TIMEOUT = 3.0

Arrays = Sequence[Sequence[NDArray[Any]]]


class LoadedRows:
    """The guard of one loader."""

    def __init__(
        self, mode: str, number: int, name: str, layout: Layout, rows: Any, changed_by: Sequence[str] = ()
    ) -> None:
        """`number` counts the loaders of a process; `changed_by` names the functions of the user that change rows."""
        self._changed_by = list(changed_by)
        self._mode, self._name, self._layout = mode, name, layout
        self._rows = rows if isinstance(rows, SourceRows) else None
        self._reading = threading.Lock()
        self._told = TELLER.add(f"loader {number}", self, self._read_again)
        self._pass = self._origin = 0
        self._is_moved = self._has_begun = False
        self._compared: set[int] = set()  # the lengths of batches whose structure was compared

    def go_to(self) -> None:
        """The loader goes elsewhere: to its beginning after its end, or to a state that is restored."""
        self._is_moved = True

    def begin(self, step: int) -> PassRows:
        """It reads from this step on. The next pass may have other rows at a step than this one: processes compare what
        they have read in the same pass."""
        if self._is_moved:
            self._is_moved = False
            self._pass, self._origin = self._pass + self._has_begun, step
        self._has_begun = True
        about = {"what": self._name, "hash": ALGORITHM, "mode": self._mode, "changed_by": self._changed_by}
        where = self._pass, self._origin, step
        return PassRows(self._mode, self._layout, self._rows, self._told, self._reading, self._compared, where, about)

    def note_compared(self, length: int) -> None:
        """The arrays of batches of that length are alike on all processes, or the loader would have said so."""
        self._compared.add(length)
        self._told.release(length)

    def note_taken(self) -> None:
        """One more batch is handed out, of whatever pass."""
        TELLER.note_taken(self._told)

    def _read_again(self, question: dict[str, Any]) -> dict[str, Any]:
        """The fingerprint of some rows as they are read now, and which records they are."""
        if self._rows is None:
            raise DataError("a stream is not read again")
        step, length, box = int(question["step"]), int(question["form"]), question["box"]
        rows = np.arange(*question["rows"])
        # A source that is read by one thread at a time may have one file open, or one buffer.
        if not self._reading.acquire(timeout=READING_TIMEOUT):
            raise DataError("its source is busy")
        try:
            arrays = read_again(self._rows, self._layout, step, rows, length)
        finally:
            self._reading.release()
        number = unique(self._layout.names(length)).index(question["array"])
        columns = tuple(slice(*span) for span in box[1:])
        again = fingerprint(arrays[number][(slice(None), *columns)])
        return {"again": again, "records": find_records(self._rows, step, question["all_rows"])}


class PassRows:
    """What is read from one step on. `note` is called by the thread that reads, before a batch goes to the devices:
    these may share its memory, and a donated batch is overwritten."""

    def __init__(
        self,
        mode: str,
        layout: Layout,
        rows: SourceRows | None,
        told: Told,
        reading: threading.Lock,
        compared: set[int],
        where: tuple[int, int, int],
        about: dict[str, Any],
    ) -> None:
        """`reading` is held while rows are read; `where` is the pass, the step at which it began, and that at which
        reading begins."""
        self.reading, self._compared = reading, compared
        self._mode, self._layout, self._rows, self._told, self._about = mode, layout, rows, told, about
        self._pass, self._origin, self._first = where
        self._held: dict[int, tuple[Held, list[Leaf], Sampling]] = {}  # by the length of padded rows

    def note(self, step: int, arrays: Arrays, length: int) -> None:
        held, leaves, sampling = self._held.get(length) or self._begin_form(length)
        if not sampling.is_compared(step):
            return
        rows = []
        is_whole = sampling.is_whole(step)
        for part in held.shared:
            row_set, index = leaves[part.array].where[part.device]
            shard = arrays[row_set][part.array][index]
            chosen = part.blocks if is_whole else [part.blocks[sampling.turn(step) % len(part.blocks)]]
            rows.append(fingerprint_blocks(shard, chosen))
        found: dict[str, Any] = {"step": step, "form": length, "rows": rows, "at": [self._pass, step - self._origin]}
        records = "" if self._rows is None else fingerprint(self._rows.record_ids(step))
        found["order"] = f"{step:08x}{records}"
        if not is_whole:
            found["nth"] = sampling.turn(step)
        self._told.add(found)

    def _begin_form(self, length: int) -> tuple[Held, list[Leaf], Sampling]:
        leaves = self._layout.leaves(length)
        avals, shardings = [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves]
        held = find_held(self._mode, self._layout.names(length), avals, shardings)
        sampling = Sampling.of(self._mode, self._first, held.bytes, jax.process_count())
        self._held[length] = found = held, leaves, sampling
        if length not in self._compared:
            self._told.hold_back(length)
        self._told.add_form({"form": length, **self._about, **held.describe()})
        return found


def read_again(
    source_rows: SourceRows, layout: Layout, step: int, rows: NDArray[np.int64], length: int
) -> list[NDArray[Any]]:
    """These rows of a step, one array for each of the batch's."""
    transforms = source_rows.transforms
    start, stop = source_rows.schedule.positions(step)
    ids = source_rows.order.ids(start, stop)
    real = np.minimum(rows, len(ids) - 1)
    block, _ = RowReader(source_rows.source, transforms).read(Chunk(step, start, ids[real], real))
    if isinstance(transforms, PaddingTransforms) and transforms.must_agree:
        block = transforms.complete_block(block, length)
    if source_rows.schedule.tail == "pad":
        block = add_mask(block, rows < stop - start)
    return layout.structure(length).flatten(block, len(rows))


def find_records(source_rows: SourceRows, step: int, rows: Sequence[int]) -> list[int]:
    """The numbers of the records that these rows are, from the first to the last; padding has none."""
    found: list[int] = source_rows.record_ids(step)[rows[0] : min(rows[1], rows[0] + MAX_RECORDS)].tolist()
    return found
