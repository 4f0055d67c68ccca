"""Batches in their order: read ahead on the host, put on the devices ahead, of a length that all processes agree on."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import jax
from numpy.typing import NDArray

from hostmesh.worker.assembly.layout import Layout
from hostmesh.worker.audit.used import Used
from hostmesh.worker.guard.loaded import PassRows
from hostmesh.worker.loading import tampering
from hostmesh.worker.loading.ahead.prefetch import ReadAhead
from hostmesh.worker.loading.ahead.waiting import Waiting
from hostmesh.worker.loading.padding import AgreedBatches, PaddingTransforms
from hostmesh.worker.loading.reader import SourceReader, StepRows, flatten_rows
from hostmesh.worker.reading.data_processes.reader import ProcessReader
from hostmesh.worker.reading.trial import TriedReader
from hostmesh.worker.streams.has_next import GlobalHasNext
from hostmesh.worker.streams.reader import StreamReader

Reader: TypeAlias = SourceReader | TriedReader | ProcessReader | StreamReader
# The arrays of a batch, whether this process has another one after it, which records it used, and its padded length.
DeviceBatch: TypeAlias = tuple[list[jax.Array], bool, Used, int]
Closer: TypeAlias = "weakref.finalize[..., Any]"
Batches: TypeAlias = "ReadAhead[HostBatch, DeviceBatch] | AgreedBatches[HostBatch]"


class HostBatch(NamedTuple):
    """A batch before it is put on the devices; its rows are kept where its length is still to be agreed on."""

    step: int
    arrays: list[list[NDArray[Any]]]
    has_next: bool
    used: Used
    length: int = 0
    rows: StepRows | None = None


def read_ahead(
    reader: Reader,
    layout: Layout,
    padding: PaddingTransforms | None,
    guard: PassRows | None,
    waiting: Waiting,
    steps: Iterator[int],
    prefetch: int,
    device_prefetch: int,
) -> Batches:
    """Its thread knows the reader and the layout, but not the loader: a loader that nobody uses any more can end."""

    must_agree = padding is not None and padding.must_agree

    def read(step: int) -> HostBatch:
        try:
            if guard is None:
                rows = reader.read(step)
            else:
                with guard.reading:
                    rows = reader.read(step)
            waiting.note_read(rows.spent)
            return place_as_needed(step, rows) if must_agree else place_at_once(step, rows)
        except BaseException:
            if not isinstance(reader, StreamReader):
                reader.close()  # nothing is read after a failure
            raise

    def place_at_once(step: int, rows: StepRows) -> HostBatch:
        arrays = place(step, rows)
        if guard is not None:
            guard.note(step, arrays, rows.length)
        return HostBatch(step, arrays, rows.has_next, rows.used, rows.length)

    def place_as_needed(step: int, rows: StepRows) -> HostBatch:
        """Padded to what this process needs; the length is still to be agreed on."""
        assert padding is not None
        needed = padding.complete(step, rows)
        return HostBatch(step, place(step, needed), rows.has_next, rows.used, needed.length, rows)

    def place(step: int, rows: StepRows) -> list[list[NDArray[Any]]]:
        arrays = flatten_rows(rows, layout, step)
        if tampering.change_rows is not None:
            tampering.change_rows(step, arrays)
        return arrays

    def transfer(batch: HostBatch) -> DeviceBatch:
        began = time.perf_counter()
        arrays = layout.assemble(batch.arrays, batch.length)
        waiting.note_transfer(time.perf_counter() - began)
        return arrays, batch.has_next, batch.used, batch.length

    def transfer_as_agreed(batch: HostBatch, length: int) -> DeviceBatch:
        if length != batch.length:
            assert padding is not None and batch.rows is not None
            rows = padding.complete(batch.step, batch.rows, length)
            batch = batch._replace(arrays=place(batch.step, rows), length=length)
        if guard is not None:
            guard.note(batch.step, batch.arrays, length)
        return transfer(batch)

    if not must_agree:
        return ReadAhead(read, transfer, steps, prefetch, device_prefetch)
    on_host = ReadAhead(read, lambda batch: batch, steps, prefetch, device_prefetch)
    return AgreedBatches(on_host, GlobalHasNext(layout.sharding, need_all=False), transfer_as_agreed)


def close_with(owner: Any, batches: Batches, reader: Reader, before: Closer | None) -> Closer:
    """Closes both when the owner ends, or when it is called, in the place of the one for the pass before.

    Batches may hold an error, and its traceback the owner. So nothing but their thread may keep them; without one they
    need no closing.
    """
    if before is not None:
        before.detach()
    on_host = batches.on_host if isinstance(batches, AgreedBatches) else batches
    return weakref.finalize(owner, close_all, weakref.ref(on_host), reader)


def close_all(on_host: weakref.ref[ReadAhead[Any, Any]], reader: Reader) -> None:
    if (found := on_host()) is not None:
        found.close()
    reader.close()
