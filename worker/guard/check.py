"""Compares arrays that a script has made itself between processes, as a loader's batches are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

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
# So many names are followed; the launcher remembers more of them.
MAX_NAMES = 200
TO_MAKE_GLOBAL = (
    "jax.device_put(x, NamedSharding(mesh, P())) makes it global where all processes have the same, and "
    "jax.make_array_from_process_local_data where each has rows of its own"
)


def check(arrays: Any, name: str = "arrays", *, guard: str | None = None) -> None:
    """Have global arrays compared between processes: shapes, dtypes, cuts, and that replicas hold the same rows.

    jax does not look at what `make_array_from_process_local_data` is given: replicas that differ, and processes that
    believe in different shapes, compute on without a word. Call it with each batch (any tree of arrays), on all
    processes, before the batch is donated; those of one `name` are one sequence. A difference ends the run, and is
    told by its process, call and rows. Where the launcher is not there to compare, it does nothing.

    `guard` is as a Loader's, and one for all calls of a name: `sample` copies some rows to the host now and then,
    `every` all of each call. Arrays are compared by their bytes, random keys by their data, scalars as one row.
    """
    mode = choose_mode(guard)
    if mode != "off":
        checked = _names.find(name, mode)
        if guard is not None and mode != checked.mode:
            raise DataError(f"hostmesh.check of {name} began with guard={checked.mode!r}; found guard={guard!r}")
        checked.check(arrays)


class Checked:
    """The calls with one name."""

    def __init__(self, name: str, mode: str, number: int = 0) -> None:
        """`number` is another one for a name that was forgotten in between."""
        self.mode, self._name = mode, name
        self._told: Told = TELLER.add(f"check {number} {name}")
        self._forms: dict[Any, tuple[int, Held, Sampling]] = {}
        self._calls = 0

    def end(self) -> None:
        self._told.is_over = True

    def check(self, arrays: Any) -> None:
        leaves, tree = jax.tree_util.tree_flatten(arrays)
        if any(not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            require_global(arrays)
        number, held, sampling = self._find_form(arrays, leaves, tree)
        step, self._calls = self._calls, self._calls + 1
        if sampling.is_compared(step) or step < CALLS_SEEN_WHOLE:
            self._told.add(self._look(step, number, held, sampling, leaves))
        TELLER.note_taken(self._told)

    def _find_form(self, arrays: Any, leaves: list[Any], tree: Any) -> tuple[int, Held, Sampling]:
        key = tree, tuple((leaf.shape, leaf.dtype, leaf.sharding) for leaf in leaves)
        if key not in self._forms:
            names = require_global(arrays)
            plain = [as_plain(leaf) for leaf in leaves]
            held = find_held(self.mode, names, [leaf.aval for leaf in plain], [leaf.sharding for leaf in plain])
            sampling = Sampling.of(self.mode, self._calls, held.bytes, jax.process_count())
            self._forms[key] = len(self._forms), held, sampling
            about = {"form": len(self._forms) - 1, "what": self._name, "hash": ALGORITHM, "mode": self.mode}
            self._told.add_form({**about, "is_call": True, **held.describe()})
        return self._forms[key]

    def _look(self, step: int, form: int, held: Held, sampling: Sampling, leaves: Sequence[Any]) -> dict[str, Any]:
        blocks: dict[int, dict[Box, NDArray[Any]]] = {}
        is_seen_whole = step < CALLS_SEEN_WHOLE
        is_whole = sampling.is_whole(step) or is_seen_whole
        for part in held.parts if is_seen_whole else held.shared:
            if part.array not in blocks:
                compares = is_seen_whole or sampling.every
                blocks[part.array] = _blocks_of(part.name, as_plain(leaves[part.array]), compares)
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
        blocks[box] = np.atleast_1d(shards[0].data)
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


class Names:
    """The last so many names: of more of them each call rather has a name of its own."""

    def __init__(self) -> None:
        self._checked: dict[str, Checked] = {}  # the one that was called last is the last
        self._forgotten = 0

    def find(self, name: str, mode: str) -> Checked:
        """One that was forgotten begins anew, and is told as another one: what was told of it before is not compared
        with what is told now, whatever other processes have forgotten."""
        checked = self._checked.pop(name, None)
        if checked is None:
            if len(self._checked) >= MAX_NAMES:
                self._checked.pop(next(iter(self._checked))).end()
                self._forgotten += 1
            checked = Checked(name, mode, self._forgotten)
        self._checked[name] = checked
        return checked


def require_global(arrays: Any) -> list[str]:
    """The names of these arrays."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "the array"
        if isinstance(leaf, jax.core.Tracer):
            raise DataError(f"hostmesh.check wants arrays that have values: call it outside jit; {name} is traced")
        if not isinstance(leaf, jax.Array):
            raise DataError(f"hostmesh.check wants global jax.Arrays; found a {type(leaf).__name__} as {name}")
        if leaf.is_fully_addressable and jax.process_count() > 1:
            raise DataError(
                f"hostmesh.check wants global jax.Arrays; {name} is local, on devices of this process alone: "
                f"{TO_MAKE_GLOBAL}"
            )
        names.append(name)
    return names


def as_plain(array: jax.Array) -> jax.Array:
    """Of random keys what they are made of; without a computation."""
    is_of_keys = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(array) if is_of_keys else array


_names: Final = Names()
