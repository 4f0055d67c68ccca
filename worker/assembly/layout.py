"""Which rows a process reads under each loading strategy, and which of them each device gets."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import NDArray

from hostmesh.worker.assembly.buffers import Buffer, BufferPool, allocate_private, assemble
from hostmesh.worker.assembly.shardings import even_sharding, row_sharding
from hostmesh.worker.assembly.structure import Structure
from hostmesh.worker.audit.used import Own, find_own_rows, place_own_rows
from hostmesh.worker.errors import DataError, error_context
from hostmesh.worker.placement import Index, Placement

MASK = "mask"
# Batches in use beside those made ahead: a training loop still holds one while it asks for the next.
IN_USE = 2


@dataclass(frozen=True)
class RowSet:
    """Rows of a global batch that are read together, in ascending order.

    `own` is where those lie that this process answers for when used records are counted; None where nobody counts.
    """

    rows: NDArray[np.int64]
    own: Own | None = None

    @cached_property
    def last(self) -> int:
        return int(self.rows[-1])

    @cached_property
    def is_all(self) -> bool:
        """Rows 0, 1, 2, … without a gap."""
        return self.last + 1 == len(self.rows)


@dataclass(frozen=True)
class Leaf:
    """One array of a batch: for each device the number of its row set, and the index of its shard in that block."""

    aval: Any
    sharding: Sharding
    where: Mapping[Any, tuple[int, Index]]

    def assemble(self, blocks: Sequence[NDArray[Any]]) -> jax.Array:
        """The global array, from one block for each row set; without communication."""
        shards = [blocks[row_set][local] for row_set, local in self.where.values()]
        return assemble(self.aval, self.sharding, shards, list(self.where))


@dataclass(frozen=True)
class Form:
    """What batches of one structure have in common: their arrays, and memory for these."""

    structure: Structure
    leaves: list[Leaf]
    pools: list[BufferPool]  # one for each array of a batch
    reshard: Callable[[list[jax.Array]], list[jax.Array]] | None


class Layout:
    """How the rows that this process reads become global arrays.

    The rows to read follow from the shardings alone; the structure of the arrays is known from the first block. Where
    rows are padded to one of several lengths, each length has a form of its own; all others have the length 0.
    """

    def __init__(
        self,
        shardings: Any,
        batch_size: int,
        loading: str,
        with_mask: bool,
        ahead: int,
        added: Sequence[str] = (),
        allocate: Callable[[int], Buffer] = allocate_private,
    ) -> None:
        """`shardings` is one sharding or a tree of them; `ahead` is how many batches are made ahead; `added` are fields
        with one value a row that the user's shardings do not know; `allocate` gives memory for rows."""
        self._allocate = allocate
        self._shardings, self._batch_size, self._with_mask = shardings, batch_size, with_mask
        self._added = (*added, MASK) if with_mask else tuple(added)
        wanted = jax.tree_util.tree_leaves(shardings)
        self.sharding = wanted[0]
        for sharding in wanted:
            rows_by_device(sharding, batch_size)  # raises where the batch cannot be cut
        self._spread = even_sharding(wanted[0]) if loading == "reshard" else None
        if self._spread is None:
            self.loaded_size = batch_size
            self.row_sets = plan_row_sets(loading, wanted, batch_size)
        else:
            devices = self._spread.num_devices
            self.loaded_size = -(-batch_size // devices) * devices
            self.row_sets = plan_row_sets("per_process", [self._spread], self.loaded_size)
        self._max_buffers = (ahead + IN_USE) * len(self.row_sets)
        self._forms: dict[int, Form] = {}  # by length
        self._forms_lock = threading.Lock()

    def claim_rows(self) -> NDArray[np.int64]:
        """The rows of a batch that this process counts as used; over all processes these are each row once."""
        sharding = self._spread or jax.tree_util.tree_leaves(self._shardings)[0]
        own = find_own_rows(place_rows(sharding, self.loaded_size), self._batch_size)
        places = place_own_rows(own, [row_set.rows for row_set in self.row_sets])
        self.row_sets = [RowSet(each.rows, place) for each, place in zip(self.row_sets, places, strict=True)]
        return own

    def knows(self, length: int = 0) -> bool:
        """Whether a batch of that length was flattened before."""
        return length in self._forms

    def structure(self, length: int = 0) -> Structure:
        """Of a batch that was flattened."""
        return self._forms[length].structure

    def names(self, length: int = 0) -> tuple[str, ...]:
        """Of the arrays of such a batch; `leaves` are in the same order."""
        return self._forms[length].structure.names

    def leaves(self, length: int = 0) -> list[Leaf]:
        return self._forms[length].leaves

    def flatten(
        self, blocks: Sequence[Any], masks: Sequence[NDArray[np.bool_]], length: int = 0
    ) -> list[list[NDArray[Any]]]:
        """The arrays of each row set's block, copied; the first call with a length fixes its structure."""
        if self._with_mask:
            blocks = [add_mask(block, mask) for block, mask in zip(blocks, masks, strict=True)]
        if length not in self._forms:
            with self._forms_lock:
                if length not in self._forms:
                    self._forms[length] = self._make_form(Structure.of(blocks[0]))
        form = self._forms[length]
        copied = []
        for block, row_set in zip(blocks, self.row_sets, strict=True):
            arrays = form.structure.flatten(block, len(row_set.rows))
            copied.append([pool.copy(array) for pool, array in zip(form.pools, arrays, strict=True)])
        return copied

    def allocate(self, length: int = 0) -> list[list[tuple[NDArray[Any], Buffer]]]:
        """For each row set the arrays of a batch, whose rows are still to be written, and the buffers they lie in."""
        form = self._forms[length]
        fields = list(zip(form.pools, form.structure.shapes, form.structure.dtypes, strict=True))
        return [
            [
                pool.empty((rows, *shape), dtype, rows * math.prod(shape) * dtype.itemsize)
                for pool, shape, dtype in fields
            ]
            for rows in (len(row_set.rows) for row_set in self.row_sets)
        ]

    def assemble(self, by_row_set: Sequence[Sequence[NDArray[Any]]], length: int = 0) -> list[jax.Array]:
        """Global arrays, without communication."""
        leaves = self._forms[length].leaves
        return [leaf.assemble(blocks) for leaf, blocks in zip(leaves, zip(*by_row_set, strict=True), strict=True)]

    def finish(self, arrays: list[jax.Array], length: int = 0) -> Any:
        """The batch; with `reshard` this is a collective."""
        form = self._forms[length]
        if form.reshard is not None:
            arrays = form.reshard(arrays)
        return jax.tree_util.tree_unflatten(form.structure.tree, arrays)

    def _make_form(self, structure: Structure) -> Form:
        targets = self._targets(structure)
        for name, shape, sharding in zip(structure.names, structure.shapes, targets, strict=True):
            with error_context(name):
                Placement.of(sharding, (self._batch_size, *shape))
        shapes = [(self.loaded_size, *shape) for shape in structure.shapes]
        loaded = targets if self._spread is None else [self._spread] * len(targets)
        arrays = zip(loaded, shapes, structure.dtypes, strict=True)
        leaves = [make_leaf(self.row_sets, *array) for array in arrays]
        reshard = None
        if self._spread is not None:
            size = self._batch_size
            reshard = jax.jit(lambda arrays: [array[:size] for array in arrays], out_shardings=targets)
        return Form(structure, leaves, [BufferPool(self._max_buffers, self._allocate) for _ in targets], reshard)

    def _targets(self, structure: Structure) -> list[Sharding]:
        """One sharding for each array; a mask, and what else was added, is cut as the rows are."""
        arrays = jax.tree_util.tree_unflatten(structure.tree, structure.names)
        shardings = self._shardings
        added = [name for name in self._added if isinstance(arrays, dict) and name in arrays]
        if added and isinstance(shardings, dict):
            of_rows = row_sharding(jax.tree_util.tree_leaves(shardings)[0])
            shardings = {**dict.fromkeys(added, of_rows), **shardings}
        elif added:
            shardings = {name: row_sharding(shardings) if name in added else shardings for name in arrays}
        try:
            spread = jax.tree_util.tree_map(lambda s, subtree: jax.tree.map(lambda _: s, subtree), shardings, arrays)
        except ValueError:
            fields = ", ".join(structure.names)
            raise DataError(f"the tree of specs does not fit rows with the fields {fields}: {shardings}") from None
        return jax.tree_util.tree_leaves(spread)


def plan_row_sets(loading: str, shardings: Sequence[Sharding], batch_size: int) -> list[RowSet]:
    """The rows that this process reads; `shardings` are those of all arrays, which may need different rows."""
    if loading == "global":
        return [RowSet(np.arange(batch_size))]
    by_device: defaultdict[Any, list[range]] = defaultdict(list)
    for sharding in shardings:
        for device, rows in rows_by_device(sharding, batch_size).items():
            by_device[device].append(rows)
    if not by_device:
        raise ValueError(f"process {jax.process_index()} has no device in the mesh; wanted some of every process")
    if loading == "per_device":
        distinct = {tuple(ranges): None for ranges in by_device.values()}
        return [RowSet(_union(ranges)) for ranges in distinct]
    return [RowSet(_union([rows for ranges in by_device.values() for rows in ranges]))]


def _union(ranges: Iterable[range]) -> NDArray[np.int64]:
    return np.unique(np.concatenate([np.arange(rows.start, rows.stop) for rows in ranges]))


def rows_by_device(sharding: Sharding, batch_size: int) -> dict[Any, range]:
    """The rows of each device of this process."""
    placement = place_rows(sharding, batch_size)
    rows = placement.rows
    return {
        device: range(int(rows[local.start]), int(rows[local.stop - 1]) + 1)
        for device, (local, *_) in placement.device_rows.items()
    }


def place_rows(sharding: Sharding, batch_size: int) -> Placement:
    """The other axes do not matter, so any size that fits will do."""
    rank = max(1, len(getattr(sharding, "spec", ())))
    return Placement.of(sharding, (batch_size, *(sharding.num_devices,) * (rank - 1)))


def make_leaf(row_sets: Sequence[RowSet], sharding: Sharding, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Leaf:
    indices = sharding.addressable_devices_indices_map(shape)
    where = {device: _find(row_sets, index, shape) for device, index in indices.items()}
    return Leaf(jax.core.ShapedArray(shape, dtype), sharding, where)


def add_mask(block: Any, mask: NDArray[np.bool_]) -> dict[str, Any]:
    if not isinstance(block, dict) or MASK in block:
        found = f"one with the field {MASK}" if isinstance(block, dict) else f"a {type(block).__name__}"
        raise DataError(f"tail='pad' adds the field {MASK!r} to a dict of arrays; found {found}: change it in `map`")
    return {**block, MASK: mask}


def _find(row_sets: Sequence[RowSet], index: Index | None, shape: tuple[int, ...]) -> tuple[int, Index]:
    assert index is not None
    (start, stop), *rest = (span.indices(size)[:2] for span, size in zip(index, shape, strict=True))
    for number, row_set in enumerate(row_sets):
        first = int(np.searchsorted(row_set.rows, start))
        last = first + stop - start
        if last <= len(row_set.rows) and row_set.rows[first] == start and row_set.rows[last - 1] == stop - 1:
            return number, (slice(first, last), *(slice(*span) for span in rest))
    raise AssertionError(f"rows {start} to {stop} are in no row set")
