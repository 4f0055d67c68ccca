"""PyTorch: a map-style Dataset as a source; an IterableDataset or DataLoader, with its own workers, as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset, TensorDataset

from worker.errors import DataError
from worker.rows import map_leaves, rebuild
from worker.sources.arrays import array_source
from worker.sources.objects import get_records
from worker.sources.passes import stream_of
from worker.sources.reading import BlockSource, RecordSource
from worker.stream import Stream

USE_THE_DATASET = "or better, pass the dataset itself and let the loader shuffle"


def source(data: Any) -> BlockSource | RecordSource:
    name = f"torch:{type(data).__name__}"
    if not hasattr(data, "__len__"):
        raise DataError(f"{name} has no length: give it __len__, or make it an IterableDataset")
    if type(data) is TensorDataset:
        return array_source(map_leaves(to_numpy, data.tensors), name)
    if type(data) is Subset:
        return _subset_source(data, name)
    return RecordSource(name, len(data), lambda ids: map_leaves(to_numpy, list(get_records(data, ids, name))))


def stream(data: Any, shards: int = 1, batched: bool | None = None) -> Stream:
    """A DataLoader gives batches unless it was made with batch_size=None."""
    name = f"torch:{type(data).__name__}"
    if isinstance(data, DataLoader):
        _check_order(data, shards, name)
        batched = data.batch_sampler is not None if batched is None else batched
    return stream_of(lambda: _begin(data), shards, bool(batched), name)


def to_numpy(leaf: Any) -> Any:
    """A tensor as an array of the same memory where that can be; anything else as it is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensor = leaf.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # NumPy has it from ml_dtypes, which PyTorch does not know
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.resolve_conj().resolve_neg().numpy()


def _subset_source(data: Any, name: str) -> BlockSource | RecordSource:
    """What `random_split` gives: the rows of another dataset, read the way that one is read best."""
    whole = source(data.dataset)
    indices: NDArray[np.int64] = np.asarray(data.indices, np.int64)
    if isinstance(whole, BlockSource):
        return BlockSource(name, len(data), lambda ids: whole.read(indices[ids]))
    return RecordSource(name, len(data), lambda ids: whole.records(indices[ids]))


def _begin(data: Any) -> Iterator[Any]:
    return (map_leaves(to_numpy, _with_arrays_of_text(item)) for item in data)


def _with_arrays_of_text(item: Any) -> Any:
    """PyTorch collates text into lists and tuples, which would pass for fields."""
    if isinstance(item, dict):
        return {key: _with_arrays_of_text(part) for key, part in item.items()}
    if not isinstance(item, (list, tuple)):
        return item
    if item and all(isinstance(part, (str, bytes)) for part in item):
        return np.array(item, object)
    return rebuild(item, [_with_arrays_of_text(part) for part in item])


def _check_order(loader: Any, shards: int, name: str) -> None:
    """Every process must pass through the same records in the same order."""
    samplers: list[Any] = [loader.sampler, getattr(loader.batch_sampler, "sampler", None)]
    for sampler in samplers:
        replicas = getattr(sampler, "num_replicas", 1)
        if replicas > 1:
            raise DataError(f"{name} reads only one of {replicas} parts, wanted all records: leave out the sampler")
        if not hasattr(sampler, "generator"):
            continue
        if sampler.generator is None:
            how = f"pass generator=torch.Generator().manual_seed(0), {USE_THE_DATASET}"
            raise DataError(f"{name} shuffles differently in every process: {how}")
        if shards > 1:
            raise DataError(f"{name} shuffles anew for each of {shards} shards: use one, {USE_THE_DATASET}")
