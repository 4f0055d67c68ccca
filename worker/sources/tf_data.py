"""tf.data: a Dataset, or what `tfds.as_numpy` makes of one, as a stream of what its NumPy iterator gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostmesh.worker.errors import DataError
from hostmesh.worker.sources.tf_data_state import Elements, list_operations, most_bytes
from hostmesh.worker.streams.batches import RECORDS, UNKNOWN, Items, batches_of, combine, decide
from hostmesh.worker.streams.passes import Pass
from hostmesh.worker.streams.stream import Stream, StreamPart

NAME = "tf.data:Dataset"
# Datasets that give records, by what is in the names of their classes and operations. Others that read nothing else,
# those of generators and of what was saved for instance, may give anything.
OF_RECORDS = ("TensorSlice", "Range", "TFRecord", "TextLine", "FixedLength", "SqlDataset", "CsvDataset")
OF_ANYTHING = ("Batch", "Window", "TensorDataset", "Generator", "Load", "Snapshot", "Variant")
# Transformations that read the datasets which a function of theirs makes.
BY_FUNCTION = ("_FlatMapDataset", "_InterleaveDataset", "_ParallelInterleaveDataset", "_GroupByWindowDataset")


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Whether it gives batches is seen from its transformations and its first item, unless `batched` says so."""
    data = getattr(data, "_ds", data)  # of tfds.as_numpy
    _check_order(data, shards)
    in_blocks, check = decide(_items(data), batched, NAME)
    most = most_bytes(_steps_from_last(data), shards)

    def begin(shard: int, of: int) -> Pass:
        if in_blocks or of == 1:  # tf.data would deal out whole batches
            return Pass(Elements(data, most), shard, of, in_blocks, check)
        return Pass(Elements(data.shard(of, shard), most), check=check)

    return Stream(begin, shards, in_blocks, NAME, part=_find_part(data))


def _find_part(data: Any) -> StreamPart | None:
    """What a `.shard()` says, where the number of shards is more than one."""
    for step in _steps_from_last(data):
        if type(step).__name__ == "_ShardDataset" and (count := int(step._num_shards)) > 1:
            index = int(step._index)
            return StreamPart(f".shard({count}, {index})", index, count, "leave it out", may_be_whole=True)
    return None


def _items(data: Any) -> Items:
    """What the last transformation makes of the items before it."""
    kind, before = type(data).__name__, data._inputs()
    if "Batch" in kind or "Rebatch" in kind:
        size = getattr(data, "_batch_size", None)
        return batches_of(int(size) if size is not None and not size.shape.rank else None)
    if "Unbatch" in kind:
        return RECORDS
    if kind in BY_FUNCTION:
        return RECORDS if _makes_records(data) else UNKNOWN
    if kind == "_DirectedInterleaveDataset":
        before = before[1:]  # the first one says which of the others comes next
    if before:
        return combine(map(_items, before))
    return RECORDS if any(name in kind for name in OF_RECORDS) else UNKNOWN


def _makes_records(data: Any) -> bool:
    """Whether the functions of a transformation make datasets of records for certain."""
    kinds = list_operations(data)
    return _any_in(OF_RECORDS, kinds) and not _any_in(OF_ANYTHING, kinds)


def _any_in(names: tuple[str, ...], kinds: set[str]) -> bool:
    return any(name in kind for name in names for kind in kinds if kind.endswith(("Dataset", "V2", "V3", "V4")))


def _check_order(data: Any, shards: int) -> None:
    """Every process must pass through the same records in the same order."""
    for step in _steps_from_last(data):
        if "Shuffle" not in type(step).__name__:
            continue
        if not int(step._seed) and not int(step._seed2):
            raise DataError(f"{NAME} shuffles differently in every process: give .shuffle() a seed")
        if shards > 1 and step._reshuffle_each_iteration:
            how = "give .shuffle() reshuffle_each_iteration=False, or use one"
            raise DataError(f"{NAME} shuffles anew for each of {shards} shards: {how}")


def _steps_from_last(data: Any) -> Iterator[Any]:
    yield data
    for parent in data._inputs():
        yield from _steps_from_last(parent)
