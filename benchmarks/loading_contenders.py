"""Loaders of records that cost work, each as an endless iterator of batches: for loading_jpeg.py and loading_text.py.

All of them shuffle, read with two threads or two processes where they can, and end with arrays on a mesh of two CPU
devices; the peers with one `device_put`. A dataset has `__len__` and `__getitem__`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from loading import Batches, put, sharding

Factory = Callable[[], Batches]


def build(contenders: dict[str, Factory]) -> dict[str, Batches]:
    """Those that can be made here, in their order; of any other a line says why not.

    Each gives a batch at once, so that its processes are there before the next one is made.
    """
    made: dict[str, Batches] = {}
    for name, factory in contenders.items():
        try:
            batches = factory()
            next(batches)
        except (TypeError, ImportError) as error:  # an argument or a package that is not there
            print(f"  {name} is left out: {error}", flush=True)
        else:
            made[name] = batches
    return made


def hostmesh(dataset: Any, batch: int, **options: Any) -> Batches:
    return iter(make_loader(dataset, batch, **options))


def make_loader(dataset: Any, batch: int, **options: Any) -> Any:
    import hostmesh

    return hostmesh.Loader(dataset, sharding(), batch, **options)


def torch_loader(dataset: Any, batch: int, workers: int) -> Batches:
    """One pass that does not end: with short epochs its workers would be refilled again and again.

    Arrays leave the workers as tensors, which share memory; arrays of NumPy would be pickled.
    """
    from torch.utils.data import DataLoader, RandomSampler

    processes: dict[str, Any] = {}
    if workers:  # not forked: threads of jax and TensorFlow may hold locks
        processes = {"multiprocessing_context": "spawn", "persistent_workers": True}
    sampler = RandomSampler(dataset, num_samples=10_000_000)
    loader = DataLoader(dataset, batch, sampler=sampler, drop_last=True, num_workers=workers, **processes)
    return put({name: tensor.numpy() for name, tensor in found.items()} for found in loader)


def grain_threads(dataset: Any, batch: int, random_map: Any = None, threads: int = 2) -> Batches:
    return put(iter(_grain(dataset, batch, random_map, threads)))


def grain_processes(dataset: Any, batch: int, random_map: Any = None, processes: int = 2) -> Batches:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(num_workers=processes, per_worker_buffer_size=2)
    return put(iter(_grain(dataset, batch, random_map, threads=1).mp_prefetch(options)))


def _grain(dataset: Any, batch: int, random_map: Any, threads: int) -> Any:
    import grain

    records = grain.MapDataset.source(dataset).seed(0).shuffle().repeat()
    if random_map is not None:
        records = records.random_map(random_map)
    read = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    return records.batch(batch, drop_remainder=True).to_iter_dataset(read)


def thread_pool(dataset: Any, batch: int, threads: int = 2, ahead: int = 2) -> Batches:
    """No order to keep, no checks, no device: the least that threads must do."""
    pool, random = ThreadPoolExecutor(threads), np.random.default_rng(0)
    waiting: deque[Iterator[Any]] = deque()
    while True:
        while len(waiting) <= ahead:
            waiting.append(pool.map(dataset.__getitem__, random.integers(0, len(dataset), batch).tolist()))
        records = list(waiting.popleft())
        yield {name: np.stack([record[name] for record in records]) for name in records[0]}


def tf_batches(rows: Any, batch: int) -> Batches:
    return put(iter(rows.batch(batch, drop_remainder=True).prefetch(2).as_numpy_iterator()))


def close(contenders: dict[str, Batches]) -> None:
    """Ends the threads and processes behind them."""
    for batches in contenders.values():
        if hasattr(batches, "close"):
            batches.close()
    contenders.clear()


def spread(low: int, high: int, count: int) -> list[int]:
    """So many numbers from low to high, over and over."""
    return list(itertools.islice(itertools.cycle(range(low, high + 1)), count))
