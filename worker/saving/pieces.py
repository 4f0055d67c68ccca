"""The bytes of a state that a process keeps: copied on its devices, and put together again on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from hostmesh.worker.errors import CheckpointError
from hostmesh.worker.saving.state_shape import describe, require_global

PyTree: TypeAlias = Any
# Of each axis the first element and the one after the last.
Index: TypeAlias = "tuple[tuple[int, int], ...]"
# The numbers of a piece, and the kind of the keys they are, if they are keys.
Loaded: TypeAlias = "tuple[np.ndarray[Any, Any], str]"

ALIGNED = 64


@dataclass(frozen=True)
class Piece:
    """A part of one array of the state, and where its bytes lie. `shard` is its number on this process, -1 for an array
    of the host. `key_kind` is how random keys are made, empty for numbers."""

    leaf: int
    index: Index
    shard: int
    shape: tuple[int, ...]
    dtype: str
    key_kind: str
    at: int
    size: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Piece:
        index = tuple((start, stop) for start, stop in found["index"])
        return cls(**{**found, "index": index, "shape": tuple(found["shape"])})


class Layout:
    """Which shards of a state this process keeps: of equal ones, on several of its devices, only the first."""

    def __init__(self, state: PyTree, at: int) -> None:
        """The first piece lies at `at`."""
        require_global(state)
        leaves, tree = jax.tree_util.tree_flatten(state)
        self.signature = sign(leaves, tree)
        self.description = describe(state)
        self.pieces: list[Piece] = []
        for number, leaf in enumerate(leaves):
            for index, shard, data in _shards(leaf):
                numbers, kind = _unwrap(data), str(jax.random.key_impl(data)) if _is_key(data) else ""
                size = int(np.prod(numbers.shape, dtype=np.int64)) * numbers.dtype.itemsize
                self.pieces.append(Piece(number, index, shard, numbers.shape, numbers.dtype.name, kind, at, size))
                at += -(-size // ALIGNED) * ALIGNED
        self.table = [piece.to_json() for piece in self.pieces]
        self.end = at
        self._values = [number for number, leaf in enumerate(leaves) if not _is_array(leaf)]
        for (name, kind), leaf in zip(self.description.items(), leaves, strict=True):
            if not _can_be_kept(leaf):
                raise CheckpointError(f"{name} of the state is {kind}, wanted numbers to keep them in memory")

    def copy(self, leaves: Sequence[Any]) -> list[Any]:
        """The pieces. Devices copy them in their own time, after the step that is under way, and nothing is waited for;
        but those that are the host itself would only take its time twice: theirs are the state's own."""
        found = [_piece_of(leaves[piece.leaf], piece.shard) for piece in self.pieces]
        places = [
            number for number, piece in enumerate(self.pieces) if piece.shard >= 0 and not is_on_host(found[number])
        ]
        copies = copy_on_devices([found[place] for place in places])
        for place, copied in zip(places, copies, strict=True):
            found[place] = copied
        return found

    def values(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Leaves that are plain numbers or text."""
        return {str(number): leaves[number] for number in self._values}


def sign(leaves: Sequence[Any], tree: Any) -> Any:
    """Equal for states that have the same layout."""
    return tree, [
        (leaf.shape, leaf.dtype, getattr(leaf, "sharding", None)) if _is_array(leaf) else 0 for leaf in leaves
    ]


def copy_on_devices(shards: list[Any]) -> list[Any]:
    """Without a program of our own: that would have to be compiled, in every attempt."""
    copies: list[Any] = jax.device_put(shards, [shard.sharding for shard in shards], may_alias=False)
    return copies


def is_on_host(piece: Any) -> bool:
    """Whether it is an array of a simulated device, whose memory is the host's."""
    return isinstance(piece, jax.Array) and piece.platform() == "cpu"


def to_bytes(piece: Any) -> Any:
    """Of an array on a device or the host, without a copy where its bytes are here and in order."""
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8)


def list_needed(like: PyTree) -> set[tuple[int, Index]]:
    """What this process must have to put a state like that together: the number of the leaf, and a part of it."""
    leaves = jax.tree_util.tree_leaves(like)
    return {(number, index) for number, leaf in enumerate(leaves) for index in _needed_of(leaf)}


def put_together(
    like: PyTree, pieces: Sequence[Piece], values: Mapping[str, Any], read: Callable[[int, int], bytearray]
) -> PyTree:
    """A state in the shardings of `like`. Raises OSError where bytes are missing."""
    leaves, tree = jax.tree_util.tree_flatten(like)
    by_place = {(piece.leaf, piece.index): piece for piece in pieces}

    def load(number: int, index: Index) -> Loaded:
        piece = by_place[number, index]
        data = read(piece.at, piece.size)
        if len(data) != piece.size:
            raise OSError(f"found {len(data)} bytes, wanted {piece.size}")
        return np.frombuffer(data, np.dtype(piece.dtype)).reshape(piece.shape), piece.key_kind

    def restore(number: int, leaf: Any) -> Any:
        if not _is_array(leaf):
            return values[str(number)]
        return _put_leaf(leaf, lambda index: load(number, index))

    return jax.tree_util.tree_unflatten(tree, [restore(number, leaf) for number, leaf in enumerate(leaves)])


def _put_leaf(like: Any, load: Callable[[Index], Loaded]) -> Any:
    if not _is_of_devices(like):
        found, _ = load(_whole(like.shape))
        return found[()] if isinstance(like, np.generic) else found
    loaded: dict[Index, Loaded] = {}
    arrays = []
    for device, slices in like.sharding.addressable_devices_indices_map(like.shape).items():
        index = _index(slices, like.shape)
        if index not in loaded:
            loaded[index] = load(index)
        numbers, kind = loaded[index]
        array = jax.device_put(numbers, SingleDeviceSharding(device, memory_kind=like.sharding.memory_kind))
        arrays.append(jax.random.wrap_key_data(array, impl=kind) if kind else array)
    return jax.make_array_from_single_device_arrays(like.shape, like.sharding, arrays)


def _needed_of(leaf: Any) -> Iterator[Index]:
    if _is_of_devices(leaf):
        for slices in leaf.sharding.addressable_devices_indices_map(leaf.shape).values():
            yield _index(slices, leaf.shape)
    elif _is_array(leaf):
        yield _whole(leaf.shape)


def _shards(leaf: Any) -> Iterator[tuple[Index, int, Any]]:
    """Each distinct part on this process: its index, its number, and itself."""
    if isinstance(leaf, jax.Array):
        seen = set()
        for number, shard in enumerate(leaf.addressable_shards):
            index = _index(shard.index, leaf.shape)
            if index not in seen:
                seen.add(index)
                yield index, number, shard.data
    elif _is_array(leaf):
        yield _whole(leaf.shape), -1, leaf


def _piece_of(leaf: Any, shard: int) -> Any:
    return np.array(leaf) if shard < 0 else _unwrap(leaf.addressable_data(shard))


def _is_array(leaf: Any) -> bool:
    return _is_of_devices(leaf) or isinstance(leaf, np.ndarray | np.generic)


def _can_be_kept(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic):
        return not leaf.dtype.hasobject
    return isinstance(leaf, jax.Array | bool | int | float | str)


def _is_of_devices(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def _index(slices: Sequence[slice], shape: Sequence[int]) -> Index:
    """For random keys jax has further slices, of the numbers they consist of."""
    return tuple(each.indices(size)[:2] for each, size in zip(slices, shape, strict=False))


def _whole(shape: Sequence[int]) -> Index:
    return tuple((0, size) for size in shape)


def _unwrap(array: Any) -> Any:
    """Random keys are arrays of numbers behind a type of their own."""
    return jax.random.key_data(array) if _is_key(array) else array


def _is_key(array: Any) -> bool:
    return bool(jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key))
