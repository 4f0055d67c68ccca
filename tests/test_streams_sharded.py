"""Streams that are sharded already: what one process can show of them, and going on with other numbers of processes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from conftest import Launch, Script

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.streams.row_shards import RowShards
from hostmesh.worker.streams.sharded.overlap import find_overlap, hash_records


def test_rows_of_shards_may_lie_anywhere() -> None:
    mixed = RowShards.of([np.array([1, 2]), np.array([0, 3, 4])])
    assert mixed.shard.tolist() == [1, 0, 0, 1, 1] and mixed.place.tolist() == [0, 0, 1, 1, 2]
    assert [mixed.share(shard) for shard in (0, 1)] == [2, 3]
    even = RowShards.even(6, 3)
    assert even.shard.tolist() == [0, 0, 1, 1, 2, 2] and even.place.tolist() == [0, 1] * 3


def records() -> Any:
    return ({"id": np.int64(n)} for n in range(40))


def ids(loader: hostmesh.Loader) -> list[list[int]]:
    return [np.asarray(batch["id"]).tolist() for batch in loader]


@pytest.mark.parametrize("loading", ["per_process", "per_device", "reshard"])
def test_alone_it_gives_the_stream_itself(loading: str) -> None:
    loader = hostmesh.Loader(records, hostmesh.make_mesh(data=4), 8, epochs=1, sharded=True, loading=loading)
    assert ids(loader) == np.arange(40).reshape(5, 8).tolist()
    loader.restore(2)
    assert ids(loader)[0][0] == 16


def test_a_source_is_shuffled_anew_in_each_pass_and_goes_on_where_it_was() -> None:
    source = {"id": np.arange(40)}
    loader = hostmesh.Loader(source, hostmesh.make_mesh(data=4), 8, epochs=2, sharded=True)
    whole = ids(loader)
    assert whole[:5] != whole[5:] and all(sorted(sum(part, [])) == list(range(40)) for part in (whole[:5], whole[5:]))
    in_order = hostmesh.Loader(source, hostmesh.make_mesh(data=4), 8, epochs=1, sharded=True, shuffle=False)
    assert ids(in_order) == np.arange(40).reshape(5, 8).tolist()
    loader.restore(0)
    for _ in range(7):
        next(loader)
    again = hostmesh.Loader(source, hostmesh.make_mesh(data=4), 8, epochs=2, sharded=True)
    again.restore(loader.state())
    assert ids(again) == whole[7:]
    collated = hostmesh.Loader(
        source,
        hostmesh.make_mesh(data=4),
        8,
        epochs=2,
        sharded=True,
        collate=lambda found: {"id": np.array([record["id"] for record in found])},
    )
    assert ids(collated) == whole


def test_what_does_not_fit_is_refused() -> None:
    mesh = hostmesh.make_mesh(data=4)
    with pytest.raises(DataError, match="has 2 shards, with sharded=True wanted one"):
        hostmesh.Loader(hostmesh.as_stream(records, shards=2), mesh, 8, sharded=True)
    with pytest.raises(DataError, match="loading='global' wants all rows in every process; found sharded=True"):
        hostmesh.Loader(records, mesh, 8, sharded=True, loading="global")
    replicated = jax.NamedSharding(mesh, jax.P())
    with pytest.raises(DataError, match="wants a batch_size that is a multiple of the 4 devices; found 6"):
        hostmesh.Loader(records, replicated, 6, sharded=True, loading="reshard")
    loader = hostmesh.Loader(records, mesh, 8, sharded=True)
    with pytest.raises(DataError, match=r"the state is of 2 shards; wanted one of 1, as many as there are processes"):
        loader.restore({"step": 1, "shards": {}, "sharded": 2})
    with pytest.raises(DataError, match="the state is of a loader without sharded=True; wanted one of 1"):
        loader.restore({"step": 1, "shards": {}})
    with pytest.raises(DataError, match="the state is of a loader with sharded=True; wanted one without"):
        hostmesh.Loader(records, mesh, 8).restore(loader.state())


# Overlap.


def hashed(*records: Any) -> Any:
    return [np.asarray(own, np.uint64) for own in records]


def test_records_that_two_streams_share_are_told_from_duplicates_in_the_data() -> None:
    random = np.random.default_rng(0)
    shuffled = [random.permutation(np.arange(start, start + 320)) for start in (0, 16)]
    assert find_overlap(hashed(*(own[:128] for own in shuffled))) is not None
    found = find_overlap(hashed(np.arange(5000, 5320), *shuffled))
    assert found is not None and found.groups == (1, 2) and found.common == 304 and found.compared == 320
    few = hashed(np.arange(320), np.arange(320 - 31, 640))
    assert find_overlap(few) is None
    assert find_overlap(hashed(np.zeros(0), np.zeros(0))) is None


@pytest.mark.parametrize("distinct", [1, 10, 300, 1000, 10_000])
def test_streams_that_draw_from_the_same_values_do_not_overlap(distinct: int) -> None:
    """Whatever number of records is compared; most of the records may be rows of zeros besides."""
    random = np.random.default_rng(distinct)
    for size in (1, 8, 64, 200, 1000, 4096):
        for zeros in (0.0, 0.9):
            drawn = random.integers(1, distinct + 1, (8, size)) * (random.random((8, size)) >= zeros)
            assert find_overlap(hashed(*drawn)) is None, (size, zeros)


def test_a_global_shuffle_for_each_epoch_is_no_overlap() -> None:
    random = np.random.default_rng(0)
    epochs = [random.permutation(400).reshape(2, 200) for _ in range(3)]
    both = np.concatenate(epochs, axis=1)
    for size in range(1, 600):
        assert find_overlap(hashed(*both[:, :size])) is None


def test_records_of_any_kind_have_hashes() -> None:
    class Odd:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise OSError

    array = np.arange(6.0).reshape(2, 3)
    kinds = [
        {"x": array},
        {"x": array.T},
        {"y": array},
        "text",
        np.array(["a", None]),
        np.float32(3),
        np.array(""),
        Odd(),
    ]
    assert len(set(hash_records(kinds))) == len(kinds)
    assert hash_records([{"x": array}]) == hash_records([{"x": np.asfortranarray(array)}])


OVERLAPPING = """
import sys
import jax
import numpy as np
import hostmesh
from hostmesh.worker.errors import DisagreementError

hostmesh.join()
me = jax.process_index()
starts = {"disjoint": 320 * me, "overlap": 16 * me}
for case, start in starts.items():
    records = np.random.default_rng(me).permutation(np.arange(start, start + 320))
    def stream():
        yield from ({"id": np.int64(n), "zeros": np.zeros(3)} for n in records)
    sources = {"stream": stream, "source": {"id": records, "zeros": np.zeros((320, 3))}}
    for kind, source in sources.items():
        for verify in (True, False):
            steps = 0
            try:
                for batch in hostmesh.Loader(source, batch_size=16, epochs=2, sharded=True, verify=verify):
                    steps += 1
            except DisagreementError as error:
                print(f"{case} {kind} {verify}: {steps} {error}")
            else:
                print(f"{case} {kind} {verify}: {steps} at the end")
"""


def test_shards_that_overlap_are_refused_with_the_processes(launch: Launch, script: Script) -> None:
    done = launch("--local", "2", script(OVERLAPPING))
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in ("stream", "source"):
        for case in (f"disjoint {kind} True", f"disjoint {kind} False", f"overlap {kind} False"):
            assert done.stdout.count(f"{case}: 80 at the end") == 2, done.stdout
        told = [line for line in done.stdout.splitlines() if f"overlap {kind} True: " in line]
        assert len(told) == 2, done.stdout
        for line in told:
            assert int(line.partition("True: ")[2].split()[0]) < 32  # of 40 in an epoch
            assert "process 0 and process 1 give the same records: " in line and "of each; sharded=True wants" in line


GOING_ON = """
import sys
import jax
import numpy as np
import hostmesh

hostmesh.join()
me, count = jax.process_index(), jax.process_count()
mesh = hostmesh.make_mesh(data=-1)
if sys.argv[1] == "replicas":  # pairs of processes hold the same rows
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
shards = 2 if sys.argv[1] == "replicas" else count
stream = lambda: ({"id": np.int64(n)} for n in range(me * shards // count, 64, shards))
loader = hostmesh.Loader(stream, mesh, 8, epochs=1, sharded=True)
state = jax.device_put(np.float32(0), jax.NamedSharding(mesh, jax.P()))
checkpoint = hostmesh.Checkpoint("saved", data_spec=loader.data_spec)
if found := checkpoint.restore(state):
    loader.restore(found[1])
    print("goes on", [int(part.data[0]) for part in next(loader)["id"].addressable_shards])
else:
    for _ in range(3):
        next(loader)
    checkpoint.save(loader.step, state, loader.state())
checkpoint.close()
"""


@pytest.mark.slow
def test_as_many_shards_go_on_and_others_are_refused(launch: Launch, script: Script) -> None:
    program = script(GOING_ON)
    assert launch("--local", "2", program, "plain").returncode == 0
    for processes, kind in (("2", "plain"), ("4", "replicas")):
        done = launch("--local", processes, program, kind)
        assert done.returncode == 0, done.stdout + done.stderr
        found = sorted(line.partition("goes on ")[2] for line in done.stdout.splitlines() if "goes on" in line)
        assert found == sorted(["[24]", "[25]"] * (int(processes) // 2))
    done = launch("--local", "4", program, "plain")
    assert done.returncode == 1
    reason = "sharded: found 2 shards, each read by the processes that hold its rows, wanted 4 shards"
    assert reason in done.stderr, done.stderr
