"""What blocks look at: a global array on the host, and whether processes agree."""

import jax
import numpy as np
from jax.experimental import multihost_utils

import hostmesh
from hostmesh.worker.errors import WorkerError
from hostmesh.worker.process.coordination import exchange


def whole(array):
    """All of a global array, in every process."""
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def by_process(value):
    """The value of each process."""
    return exchange("compare in a block", value)


def message_of(make):
    """What making a loader, or taking its first batch, raises."""
    try:
        next(make())
    except WorkerError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def rows_here(array):
    """This process's rows, each once, in the order of the batch."""
    parts = {shard.index[0].indices(array.shape[0])[:2]: np.asarray(shard.data) for shard in array.addressable_shards}
    return np.concatenate([parts[span] for span in sorted(parts)])


def data_mesh():
    return hostmesh.make_mesh(data=jax.device_count())
