"""tf.data: a Dataset as a stream of what its NumPy iterator gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worker.errors import DataError
from worker.sources.passes import take_shard
from worker.stream import Stream

NAME = "tf.data:Dataset"


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Whether it gives batches is seen from its transformations, unless `batched` says so."""
    _check_order(data, shards)
    in_blocks = _is_batched(data) if batched is None else batched

    def begin(shard: int, of: int) -> Iterator[Any]:
        if in_blocks or of == 1:  # tf.data would deal out whole batches
            return take_shard(data.as_numpy_iterator(), shard, of, in_blocks)
        records: Iterator[Any] = data.shard(of, shard).as_numpy_iterator()
        return records

    return Stream(begin, shards, in_blocks, NAME)


def _is_batched(data: Any) -> bool:
    """The last transformation that makes batches or takes them apart decides."""
    for step in _steps_from_last(data):
        kind = type(step).__name__
        if "Unbatch" in kind or "FlatMap" in kind or "Interleave" in kind:
            return False
        if "BatchDataset" in kind or "Rebatch" in kind:
            return True
    return False


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
