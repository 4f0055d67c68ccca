"""The guide "Distributed data loading": its ways to load one array, and replication, with load_array and the loader.

Its figures have 4 processes of 2 devices; here are 2 of 4.
"""

import jax
import numpy as np
from blocks import block, run_all
from everywhere import assert_holds, by_process, message_of, rows_here, whole
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh

hostmesh.join()
me = jax.process_index()
SHAPE = (64, 128)
VALUES = np.arange(64 * 128, dtype=np.float32).reshape(SHAPE)
STRATEGIES = ("global", "per_device", "per_process", "reshard")
one = Mesh(np.array(jax.devices()), "x")
# Devices of both processes in turn.
mixed = Mesh(np.array(jax.devices()).reshape(2, 4).T.ravel(), "x")
# As the guide's figure of a 2D sharding.
two = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))


class Reads:
    def __init__(self):
        self.numbers, self.calls = 0, 0

    def __call__(self, index):
        part = VALUES[index]
        self.numbers += part.size
        self.calls += 1
        return part


def load_all_ways(sharding):
    """How many numbers each strategy reads in this process, and in how many calls."""
    found = {}
    for strategy in STRATEGIES:
        reads = Reads()
        array = hostmesh.load_array(reads, sharding, SHAPE, strategy=strategy)
        assert array.sharding == sharding
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, VALUES[shard.index])
        found[strategy] = (reads.numbers, reads.calls)
    return found


@block
def columns_over_eight_devices():
    found = load_all_ways(NamedSharding(one, P(None, "x")))
    size = VALUES.size
    assert found == {
        "global": (size, 1),
        "per_device": (size // 2, 4),
        "per_process": (size // 2, 1),
        "reshard": (size // 2, 1),
    }


@block
def another_distribution_of_shards_to_devices():
    found = load_all_ways(NamedSharding(mixed, P(None, "x")))
    assert found["per_device"] == (VALUES.size // 2, 4)
    assert found["per_process"] == (VALUES.size // 8 * 7, 1)  # the box around every second column
    assert found["reshard"][0] == VALUES.size // 2


@block
def a_two_dimensional_sharding():
    found = load_all_ways(NamedSharding(two, P("x", "y")))
    assert {strategy: numbers for strategy, (numbers, _) in found.items()} == {
        "global": VALUES.size,
        "per_device": VALUES.size // 2,
        "per_process": VALUES.size // 2,
        "reshard": VALUES.size // 2,
    }


@block
def full_replication_reads_once_a_process():
    found = load_all_ways(NamedSharding(one, P()))
    assert found["per_device"] == found["per_process"] == found["global"] == (VALUES.size, 1)
    assert found["reshard"] == (VALUES.size // 2, 1)


@block
def partial_replication_within_a_process():
    """Each copy is cut over the devices of one process, so every process reads everything."""
    copies = Mesh(np.array(jax.devices()).reshape(2, 4), ("copy", "x"))
    assert load_all_ways(NamedSharding(copies, P("x")))["per_device"] == (VALUES.size, 4)


@block
def partial_replication_across_processes():
    """Each copy is cut over both processes, so each reads its half once."""
    copies = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "copy"))
    assert load_all_ways(NamedSharding(copies, P("x")))["per_device"] == (VALUES.size // 2, 1)


@block
def replicas_that_differ_are_found():
    message = message_of(lambda: hostmesh.load_array(lambda index: VALUES[index] + me, NamedSharding(one, P()), SHAPE))
    assert "process 0 and process 1 read different values of [0:64, 0:128], which they all hold" in message


@block
def what_fails_in_one_process_is_told_by_all():
    def read(index):
        if me == 1 and index[1].start == 80:
            raise OSError("bad sector")
        return VALUES[index]

    message = message_of(lambda: hostmesh.load_array(read, NamedSharding(one, P(None, "x")), SHAPE))
    assert "[0:64, 80:96] for device" in message and "OSError: bad sector" in message
    half = message_of(
        lambda: hostmesh.load_array(VALUES.astype([np.float32, np.float16][me]), NamedSharding(one, P("x")))
    )
    assert 'dtype: process 0 has "float32", process 1 has "float16"' in half


@block
def a_process_without_devices_is_told():
    here = NamedSharding(Mesh(np.array(jax.devices()[:4]), "x"), P("x"))
    if me == 0:
        np.testing.assert_array_equal(hostmesh.load_array(VALUES, here), VALUES)
    else:
        assert "process 1 has no device in the sharding" in message_of(lambda: hostmesh.load_array(VALUES, here))


@block
def resharding_inside_a_computation():
    """The guide's fourth option by hand: columns, as they were convenient to read, become the 2D sharding."""
    columns = hostmesh.load_array(VALUES, NamedSharding(one, P(None, "x")))
    wanted = NamedSharding(Mesh(one.devices.reshape(4, 2), ("x", "y")), P("x", "y"))
    moved = jax.jit(lambda array: jax.lax.with_sharding_constraint(array, wanted))(columns)
    assert_holds(moved, VALUES)


@block
def every_loading_strategy_gives_the_same_batches():
    source = {"id": np.arange(64)}
    batches = {
        loading: [
            whole(batch["id"]).tolist() for batch in hostmesh.Loader(source, mixed, 16, epochs=1, loading=loading)
        ]
        for loading in STRATEGIES
    }
    assert all(found == batches["global"] for found in batches.values())


def own_records():
    return ({"id": np.int64(n)} for n in range(me, 64, 2))


def same_records():
    return ({"id": np.int64(n)} for n in range(64))


# Each replica of a model is cut over devices of both processes: both hold all rows.
across = Mesh(np.array(jax.devices()).reshape(2, 4).T, ("data", "model"))


@block
def per_replica_batches_may_land_anywhere():
    """The guide's trick: with pure data parallelism it does not matter which process reads which rows."""
    for mesh in (one, mixed):
        batches = [whole(batch["id"]) for batch in hostmesh.Loader(own_records, mesh, 16, epochs=1, sharded=True)]
        assert sorted(np.concatenate(batches).tolist()) == list(range(64))
    for batch in hostmesh.Loader(own_records, mixed, 16, steps=1, sharded=True):
        assert rows_here(batch["id"]).tolist() == list(range(me, 16, 2))


@block
def model_parallelism_across_processes():
    """Processes that hold the same rows must give the same; where they do not, jax would not say so."""
    message = message_of(lambda: hostmesh.Loader(own_records, across, 16, sharded=True))
    assert "process 0 and process 1 hold the same rows of a batch and give different records" in message
    batches = [
        whole(batch["id"]).tolist() for batch in hostmesh.Loader(same_records, across, 16, epochs=1, sharded=True)
    ]
    assert batches == np.arange(64).reshape(4, 16).tolist()
    exchanged = hostmesh.Loader(own_records, across, 16, epochs=1, sharded=True, loading="reshard")
    assert sorted(np.concatenate([whole(batch["id"]) for batch in exchanged]).tolist()) == list(range(64))


@block
def a_replica_that_goes_astray_later_is_found_before_its_batch():
    def astray():
        return ({"id": np.int64(n + 100 * (n == 37 and me))} for n in range(64))

    loader = hostmesh.Loader(astray, across, 16, epochs=1, sharded=True)
    assert [whole(next(loader)["id"])[0] for _ in range(2)] == [0, 16]
    assert "hold the same rows of a batch and give different records" in message_of(lambda: loader)


@block
def shards_by_group_of_processes():
    """What docs/loading.md shows for meshes in which several processes hold the same rows."""
    for mesh, shards in ((across, 1), (one, 2)):
        placement = hostmesh.Placement.of(NamedSharding(mesh, P(mesh.axis_names[0])), (16,))
        index = [group.processes for group in placement.groups].index(placement.group)
        count = len(placement.groups)
        assert count == shards
        own = [{"id": np.int64(n)} for n in range(index, 64, count)]
        batches = [
            whole(batch["id"]) for batch in hostmesh.Loader(lambda own=own: own, mesh, 16, epochs=1, sharded=True)
        ]
        assert sorted(np.concatenate(batches).tolist()) == list(range(64))


@block
def streams_that_are_not_sharded_are_told():
    message = message_of(lambda: hostmesh.Loader(same_records, one, 16, sharded=True))
    assert "processes 0, 1 give the same records: the stream is not sharded" in message
    loader = hostmesh.Loader(same_records, one, 16, sharded=True, verify=False)
    assert whole(next(loader)["id"]).tolist() == [*range(8), *range(8)]
    plain = message_of(lambda: hostmesh.Loader(own_records, one, 16))
    assert "read different records in shard 0" in plain and "give the loader sharded=True" in plain


@block
def all_processes_end_at_the_same_step():
    def uneven():
        return ({"id": np.int64(n + 1000 * me)} for n in range((40, 19)[me]))

    assert by_process(sum(1 for _ in hostmesh.Loader(uneven, one, 16, epochs=1, sharded=True))) == [2, 2]
    padded = list(hostmesh.Loader(uneven, one, 16, epochs=1, sharded=True, tail="pad"))
    real = [whole(batch["id"])[whole(batch["mask"])].tolist() for batch in padded]
    assert len(padded) == 5 and sorted(n for rows in real for n in rows) == [*range(40), *range(1000, 1019)]


@block
def what_sharded_cannot_do_is_told():
    assert "loading='global' wants all rows" in message_of(
        lambda: hostmesh.Loader(own_records, one, 16, sharded=True, loading="global")
    )
    stream = hostmesh.as_stream(own_records, shards=2)
    assert "has 2 shards, with sharded=True wanted one" in message_of(
        lambda: hostmesh.Loader(stream, one, 16, sharded=True)
    )
    uneven = {"a": NamedSharding(one, P("x")), "b": NamedSharding(one, P())}
    own = lambda: ({"a": np.int64(n), "b": np.int64(n)} for n in range(me, 64, 2))  # noqa: E731
    message = message_of(lambda: hostmesh.Loader(own, uneven, 16, sharded=True))
    assert "hold the same rows" in message


run_all()
