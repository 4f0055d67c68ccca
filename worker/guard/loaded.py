"""Fingerprints what a loader has read for a step, and reads rows a second time where it is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import Layout, Leaf, add_mask
from hostmesh.worker.errors import DataError
from hostmesh.worker.guard.hashing import ALGORITHM, fingerprint
from hostmesh.worker.guard.parts import Held, find_held
from hostmesh.worker.guard.sampling import Sampling
from hostmesh.worker.guard.telling import TELLER
from hostmesh.worker.loading.source_rows import SourceRows
from hostmesh.worker.reading.row_reader import Chunk, RowReader

# So many record numbers are told at most.
MAX_RECORDS = 1000

Arrays = Sequence[Sequence[NDArray[Any]]]


class LoadedRows:
    """The guard of one loader. `note` is called by the thread that reads, before a batch goes to the devices."""

    def __init__(self, mode: str, number: int, name: str, layout: Layout, rows: Any) -> None:
        """`number` counts the loaders of a process."""
        self._mode, self._name, self._layout = mode, name, layout
        self._rows = rows if isinstance(rows, SourceRows) else None
        self._held: dict[int, tuple[Held, list[Leaf], Sampling]] = {}  # by the length of padded rows
        self._told = TELLER.add(f"loader {number}", self._read_again if self._rows is not None else None)
        self._first = 0

    def begin(self, step: int) -> None:
        """The loader reads from this step on."""
        self._first = step
        self._held.clear()

    def note(self, step: int, arrays: Arrays, length: int) -> None:
        held, leaves, sampling = self._held.get(length) or self._begin_form(length)
        if not sampling.is_compared(step):
            return
        found: dict[str, Any] = {"step": step, "form": length}
        if self._rows is not None:
            found["order"] = fingerprint(self._rows.record_ids(step))
        is_whole = sampling.is_whole(step)
        by_name = {leaf_name: number for number, leaf_name in enumerate(self._layout.names(length))}
        found["rows"] = []
        for part in held.shared:
            number = by_name[part.name]
            row_set, index = leaves[number].where[part.device]
            shard = arrays[row_set][number][index]
            chosen = part.blocks if is_whole else [part.blocks[sampling.turn(step) % len(part.blocks)]]
            found["rows"].append("".join(fingerprint(shard[start:stop]) for start, stop in chosen))
        if not is_whole:
            found["nth"] = sampling.turn(step)
        self._told.steps.append(found)

    def note_taken(self, step: int) -> None:
        self._told.taken = step

    def _begin_form(self, length: int) -> tuple[Held, list[Leaf], Sampling]:
        leaves = self._layout.leaves(length)
        avals, shardings = [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves]
        held = find_held(self._mode, self._layout.names(length), avals, shardings)
        self._held[length] = found = held, leaves, Sampling.of(self._mode, self._first, held.bytes)
        self._told.forms.append({"form": length, "what": self._name, "hash": ALGORITHM, **held.describe()})
        return found

    def _read_again(self, question: dict[str, Any]) -> dict[str, Any]:
        """The fingerprint of some rows as they are read now, and which records they are."""
        assert self._rows is not None
        step, length, box = int(question["step"]), int(question["form"]), question["box"]
        rows = np.arange(*question["rows"])
        arrays = read_again(self._rows, self._layout, step, rows, length)
        number = self._layout.names(length).index(question["array"])
        columns = tuple(slice(*span) for span in box[1:])
        again = fingerprint(arrays[number][(slice(None), *columns)])
        return {"again": again, "records": find_records(self._rows, step, question["all_rows"])}


def read_again(
    source_rows: SourceRows, layout: Layout, step: int, rows: NDArray[np.int64], length: int
) -> list[NDArray[Any]]:
    """These rows of a step, one array for each of the batch's."""
    transforms = source_rows.transforms
    if length:
        raise DataError("rows that are padded to one of several lengths are not read again")
    start, stop = source_rows.schedule.positions(step)
    ids = source_rows.order.ids(start, stop)
    real = np.minimum(rows, len(ids) - 1)
    block, _ = RowReader(source_rows.source, transforms).read(Chunk(step, start, ids[real], real))
    if source_rows.schedule.tail == "pad":
        block = add_mask(block, rows < stop - start)
    return layout.structure(length).flatten(block, len(rows))


def find_records(source_rows: SourceRows, step: int, rows: Sequence[int]) -> list[int]:
    """The numbers of the records that these rows are, from the first to the last; padding has none."""
    found: list[int] = source_rows.record_ids(step)[rows[0] : min(rows[1], rows[0] + MAX_RECORDS)].tolist()
    return found
