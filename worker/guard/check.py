"""Compares arrays that a script has made itself between processes, as a loader's batches are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, DisagreementError
from hostmesh.worker.guard.hashing import ALGORITHM, fingerprint, fingerprint_blocks
from hostmesh.worker.guard.mode import choose_mode
from hostmesh.worker.guard.parts import Box, Held, find_boxes, find_held
from hostmesh.worker.guard.sampling import Sampling
from hostmesh.worker.guard.telling import TELLER, Told

# In so many calls it is seen whether processes give the same rows where they should give different ones.
CALLS_SEEN_WHOLE = 2


def check(arrays: Any, name: str = "arrays", *, guard: str | None = None) -> None:
    """Have global arrays compared between processes: shapes, dtypes, cuts, and that replicas hold the same rows.

    jax does not look at what `make_array_from_process_local_data` is given: replicas that differ, and processes that
    believe in different shapes, compute on without a word. Call it with each batch (any tree of arrays), on all
    processes, before the batch is donated; those of one `name` are one sequence. A difference ends the run, and is
    told by its process, call and rows. Where the launcher is not there to compare, it does nothing.

    `guard` is as a Loader's: `sample` copies some rows to the host now and then, `every` all of each call.
    """
    mode = choose_mode(guard)
    if mode != "off":
        if name not in _checked:
            _checked[name] = Checked(name, mode)
        _checked[name].check(arrays)


class Checked:
    """The calls with one name."""

    def __init__(self, name: str, mode: str) -> None:
        self._name, self._mode = name, mode
        self._told: Told = TELLER.add(f"check {name}")
        self._forms: dict[Any, tuple[int, Held, Sampling]] = {}
        self._calls = 0

    def check(self, arrays: Any) -> None:
        with_paths, tree = jax.tree_util.tree_flatten_with_path(arrays)
        names = [jax.tree_util.keystr(path, simple=True, separator=".") or "the array" for path, _ in with_paths]
        leaves = [leaf for _, leaf in with_paths]
        for leaf_name, leaf in zip(names, leaves, strict=True):
            if not isinstance(leaf, jax.Array) or not leaf.shape:
                found = f"a {type(leaf).__name__}" if not isinstance(leaf, jax.Array) else "a scalar"
                raise DataError(f"hostmesh.check wants global jax.Arrays that have rows; found {found} as {leaf_name}")
        number, held, sampling = self._find_form(names, leaves, tree)
        step, self._calls = self._calls, self._calls + 1
        if sampling.is_compared(step) or step < CALLS_SEEN_WHOLE:
            self._told.add(self._look(step, number, held, sampling, leaves))
        self._told.taken = self._calls

    def _find_form(self, names: list[str], leaves: list[Any], tree: Any) -> tuple[int, Held, Sampling]:
        key = tree, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        if key not in self._forms:
            held = find_held(self._mode, names, [leaf.aval for leaf in leaves], [leaf.sharding for leaf in leaves])
            sampling = Sampling.of(self._mode, self._calls, held.bytes, jax.process_count())
            self._forms[key] = len(self._forms), held, sampling
            about = {"form": len(self._forms) - 1, "what": self._name, "hash": ALGORITHM, "is_call": True}
            self._told.add_form({**about, **held.describe()})
        return self._forms[key]

    def _look(self, step: int, form: int, held: Held, sampling: Sampling, leaves: Sequence[Any]) -> dict[str, Any]:
        blocks: dict[int, dict[Box, NDArray[Any]]] = {}
        is_seen_whole = step < CALLS_SEEN_WHOLE
        is_whole = sampling.is_whole(step) or is_seen_whole
        for part in held.parts if is_seen_whole else held.shared:
            if part.array not in blocks:
                compares = is_seen_whole or sampling.every
                blocks[part.array] = _blocks_of(part.name, leaves[part.array], compares)
        found: dict[str, Any] = {"step": step, "form": form, "at": [0, step], "rows": []}
        for part in held.shared:
            shard = blocks[part.array][part.box]
            chosen = part.blocks if is_whole else [part.blocks[sampling.turn(step) % len(part.blocks)]]
            found["rows"].append(fingerprint_blocks(shard, chosen))
        if not is_whole:
            found["nth"] = sampling.turn(step)
        if is_seen_whole:
            found["own"] = [_own_fingerprint(blocks[part.array][part.box]) for part in held.parts]
        return found


def _blocks_of(name: str, array: jax.Array, compare: bool) -> dict[Box, NDArray[Any]]:
    """What the devices of this process hold of an array, each part once; with `compare` its copies are compared."""
    boxes = find_boxes(array.sharding, array.shape)
    by_box: defaultdict[Box, list[Any]] = defaultdict(list)
    for shard in array.addressable_shards:
        by_box[boxes[shard.device]].append(shard)
    blocks = {}
    for box, shards in by_box.items():
        blocks[box] = np.asarray(shards[0].data)
        for other in shards[1:] if compare else ():
            if fingerprint(np.asarray(other.data)) != fingerprint(blocks[box]):
                devices = f"{shards[0].device} and {other.device}"
                raise DisagreementError(
                    f"{name}: {devices} of this process hold different values of the same rows {box[0][0]} to "
                    f"{box[0][1] - 1}: a computation would use both without a word"
                )
    return blocks


def _own_fingerprint(block: NDArray[Any]) -> str:
    """Empty where all values are the same: nothing follows from two such parts being equal."""
    return fingerprint(block) if block.size and bool((block != block.flat[0]).any()) else ""


_checked: dict[str, Checked] = {}
