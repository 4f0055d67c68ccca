"""What blocks look at: a global array on the host, and whether processes agree."""

import jax
import numpy as np

import hostmesh
from hostmesh.worker.errors import WorkerError
from hostmesh.worker.process.coordination import exchange


def whole(array):
    """All of a small global array, in every process; put together without a computation that would be compiled."""
    shards = [(_spans(shard.index, array.shape), np.asarray(shard.data).tolist()) for shard in array.addressable_shards]
    found = np.zeros(array.shape, array.dtype)
    for spans, values in (shard for process in by_process(shards) for shard in process):
        found[tuple(slice(*span) for span in spans)] = values
    return found


def _spans(index, shape):
    return [span.indices(size)[:2] for span, size in zip(index, shape, strict=True)]


def assert_holds(array, wanted):
    """Each process looks at the parts that its own devices hold."""
    assert array.shape == wanted.shape
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(shard.data, wanted[shard.index])


def by_process(value):
    """The value of each process."""
    return exchange("compare in a block", value)


def message_of(make):
    """What making a loader, or taking its first batch, raises."""
    try:
        next(make())
    except (WorkerError, ValueError) as error:
        return str(error)
    raise AssertionError("nothing was raised")


def rows_here(array):
    """This process's rows, each once, in the order of the batch."""
    parts = {shard.index[0].indices(array.shape[0])[:2]: np.asarray(shard.data) for shard in array.addressable_shards}
    return np.concatenate([parts[span] for span in sorted(parts)])


def data_mesh():
    return hostmesh.make_mesh(data=jax.device_count())
