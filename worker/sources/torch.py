"""PyTorch: a map-style Dataset as a source; an IterableDataset or DataLoader, with its own workers, as a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset, TensorDataset

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.rows import map_leaves, rebuild
from hostmesh.worker.sources.arrays import array_source
from hostmesh.worker.sources.base import BlockSource, RecordSource
from hostmesh.worker.sources.objects import find_lengths, get_records
from hostmesh.worker.streams.batches import RECORDS, UNKNOWN, Items, batches_of, decide
from hostmesh.worker.streams.passes import Pass
from hostmesh.worker.streams.stream import Stream, StreamPart
from hostmesh.worker.text.lengths import by_field

USE_THE_DATASET = "or better, pass the dataset itself and let the loader shuffle"


def source(data: Any) -> BlockSource | RecordSource:
    name = f"torch:{type(data).__name__}"
    if not hasattr(data, "__len__"):
        raise DataError(f"{name} has no length: give it __len__, or make it an IterableDataset")
    if type(data) is TensorDataset:
        return array_source(map_leaves(to_numpy, data.tensors), name)
    if type(data) is Subset:
        return _subset_source(data, name)
    fetch = lambda ids: map_leaves(to_numpy, list(get_records(data, ids, name)))  # noqa: E731
    return RecordSource(name, len(data), fetch, lengths=find_lengths(data))


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """Whether it gives batches is seen from a DataLoader's samplers and the first item, unless `batched` says so."""
    name = f"torch:{type(data).__name__}"
    samplers = _samplers(data) if isinstance(data, DataLoader) else []
    _check_order(samplers, shards, name)
    generators = [sampler.generator for sampler in samplers if hasattr(sampler, "generator")]
    in_blocks, check = decide(_items(data), batched, name)
    begun = [generator.get_state() for generator in generators]
    by_epoch = [sampler for sampler in samplers if hasattr(sampler, "set_epoch")]
    passes: Counter[int] = Counter()

    def begin(shard: int, of: int) -> Pass:
        for sampler in by_epoch:
            sampler.set_epoch(passes[shard])
        passes[shard] += 1
        has_state = of == 1 and hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
        return Pass(_Stateful(data) if has_state else data, shard, of, in_blocks, check, _convert)

    def rewind(shard: int) -> None:
        passes[shard] = 0
        for generator, state in zip(generators, begun, strict=True):
            generator.set_state(state)

    return Stream(begin, shards, in_blocks, name, rewind, _find_part(samplers))


def _find_part(samplers: Sequence[Any]) -> StreamPart | None:
    """What a DistributedSampler says."""
    for sampler in samplers:
        if getattr(sampler, "num_replicas", 1) > 1:
            return StreamPart(type(sampler).__name__, sampler.rank, sampler.num_replicas, "leave out the sampler")
    return None


class _Stateful(Iterator[Any]):
    """A pass over what has `state_dict` and `load_state_dict`, as a StatefulDataLoader does."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._items: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._items is None:
            self._items = iter(self._data)
        return next(self._items)

    def get_state(self) -> Any:
        return self._data.state_dict()

    def set_state(self, state: Any) -> None:
        self._data.load_state_dict(state)


def to_numpy(leaf: Any) -> Any:
    """A tensor as an array of the same memory where that can be; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensor = leaf.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # NumPy gets it from ml_dtypes, which PyTorch does not know
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.resolve_conj().resolve_neg().numpy()


def _subset_source(data: Any, name: str) -> BlockSource | RecordSource:
    """What `random_split` gives: the rows of another dataset, read the way that one is read best."""
    whole = source(data.dataset)
    indices: NDArray[np.int64] = np.asarray(data.indices, np.int64)
    content = whole.content and whole.content.with_array("indices", indices)
    if isinstance(whole, BlockSource):
        return BlockSource(name, len(data), lambda ids: whole.read(indices[ids]), content)
    ask = by_field(whole.lengths)
    lengths = None if ask is None else lambda ids, field=None: ask(indices[ids], field)
    return RecordSource(name, len(data), lambda ids: whole.records(indices[ids]), content, lengths)


def _items(data: Any) -> Items:
    if not isinstance(data, DataLoader):
        return UNKNOWN
    if data.batch_sampler is not None:
        return batches_of(getattr(data.batch_sampler, "batch_size", None))
    if isinstance(data.sampler, BatchSampler):
        return batches_of(data.sampler.batch_size)
    return UNKNOWN if isinstance(data.dataset, IterableDataset) else RECORDS


def _convert(item: Any) -> Any:
    return map_leaves(to_numpy, _with_arrays_of_text(item))


def _with_arrays_of_text(item: Any) -> Any:
    """PyTorch collates text into lists and tuples, which would be taken for fields."""
    if isinstance(item, dict):
        return {key: _with_arrays_of_text(part) for key, part in item.items()}
    if not isinstance(item, (list, tuple)):
        return item
    if item and all(isinstance(part, (str, bytes)) for part in item):
        return np.array(item, object)
    return rebuild(item, [_with_arrays_of_text(part) for part in item])


def _samplers(loader: Any) -> list[Any]:
    found = [loader.sampler, getattr(loader.batch_sampler, "sampler", None), getattr(loader.sampler, "sampler", None)]
    return [sampler for sampler in found if sampler is not None]


def _check_order(samplers: Sequence[Any], shards: int, name: str) -> None:
    """Every process must pass through the same records in the same order."""
    for sampler in samplers:
        if not hasattr(sampler, "generator"):
            continue
        if sampler.generator is None:
            how = f"pass generator=torch.Generator().manual_seed(0), {USE_THE_DATASET}"
            raise DataError(f"{name} shuffles differently in every process: {how}")
        if shards > 1:
            raise DataError(f"{name} shuffles anew for each of {shards} shards: use one, {USE_THE_DATASET}")
