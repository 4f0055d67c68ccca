"""Streams in one process: batches made of shards, tails, blocks cut and joined, errors at their step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hostmesh
from hostmesh.worker.errors import DataError


def numbers(count: int) -> Any:
    """Record n belongs to shard n % shards."""

    def begin(shard: int, shards: int) -> Iterator[Any]:
        return ({"id": n, "row": np.full(3, n, np.float32)} for n in range(shard, count, shards))

    return begin


def in_blocks(count: int, size: int) -> Any:
    """The same as blocks of that many records, the last one perhaps shorter."""

    def begin(shard: int, shards: int) -> Iterator[Any]:
        ids = np.arange(shard, count, shards)
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            yield {"id": part, "row": np.repeat(part[:, None], 3, axis=1).astype(np.float32)}

    return begin


def load(stream: hostmesh.Stream, **options: Any) -> list[Any]:
    return list(hostmesh.Loader(stream, hostmesh.make_mesh(data=4), **{"batch_size": 8, "epochs": 1, **options}))


def ids(batches: list[Any]) -> list[list[int]]:
    return [np.asarray(batch["id"]).tolist() for batch in batches]


@pytest.mark.parametrize("size", [None, 1, 3, 8, 50])
@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_batch_takes_equally_many_rows_of_each_shard(shards: int, size: int | None) -> None:
    begin = numbers(40) if size is None else in_blocks(40, size)
    batches = load(hostmesh.Stream(begin, shards, batched=size is not None))
    share = 8 // shards
    wanted = [[n for shard in range(shards) for n in range(shard + step * 8, 40, shards)[:share]] for step in range(5)]
    assert ids(batches) == wanted
    assert all(np.array_equal(batch["row"][:, 0], batch["id"]) for batch in batches)


@pytest.mark.parametrize("loading", ["per_process", "per_device", "global", "reshard"])
def test_every_loading_strategy_gives_the_same_batches(loading: str) -> None:
    wanted = ids(load(hostmesh.Stream(in_blocks(40, 3), 2, batched=True)))
    assert ids(load(hostmesh.Stream(in_blocks(40, 3), 2, batched=True), loading=loading)) == wanted
    assert ids(load(hostmesh.Stream(numbers(40), 2), loading=loading, prefetch=0, device_prefetch=0)) == wanted


@pytest.mark.parametrize("batched", [False, True])
def test_what_is_left_over_begins_the_next_epoch_or_is_padded(batched: bool) -> None:
    stream = hostmesh.Stream(in_blocks(13, 5) if batched else numbers(13), batched=batched)
    assert ids(load(stream, epochs=2)) == [list(range(8)), [*range(8, 13), 0, 1, 2], list(range(3, 11))]
    padded = load(stream, epochs=2, tail="pad")
    real = [np.asarray(batch["id"])[np.asarray(batch["mask"])].tolist() for batch in padded]
    assert real == [list(range(8)), [*range(8, 13), 0, 1, 2], list(range(3, 11)), [11, 12]]
    assert ids(padded)[3] == [11, 12, 12, 12, 12, 12, 12, 12]


def test_a_padded_stream_goes_on_until_its_longest_shard_ends() -> None:
    lengths = [3, 9]
    stream = hostmesh.Stream(lambda shard, _: ({"id": 100 * shard + n} for n in range(lengths[shard])), shards=2)
    batches = load(stream, tail="pad")
    real = [np.asarray(batch["id"])[np.asarray(batch["mask"])].tolist() for batch in batches]
    assert real == [[0, 1, 2, 100, 101, 102, 103], [104, 105, 106, 107], [108]]


def test_a_restored_stream_goes_on_where_it_was() -> None:
    stream = hostmesh.Stream(numbers(100), 2)
    loader = hostmesh.Loader(stream, hostmesh.make_mesh(data=4), 8, epochs=1)
    whole = ids(load(stream))
    for start in (5, 0, 11):
        loader.restore(start)
        assert ids(list(loader)) == whole[start:]
    loader.restore(3)
    assert ids([next(loader)]) == whole[3:4]
    loader.restore(7)  # while it reads ahead
    assert ids([next(loader)]) == whole[7:8]


def test_map_and_collate_work_on_streams_too() -> None:
    def pad(records: list[Any]) -> Any:
        return {"id": np.array([record["id"] for record in records]), "rows": np.stack([r["row"] for r in records])}

    for batched in (False, True):
        stream = hostmesh.Stream(in_blocks(40, 7) if batched else numbers(40), batched=batched)
        batches = load(stream, collate=pad, map=lambda block, ids, rng: {**block, "noise": rng.random()})
        assert ids(batches) == ids(load(stream))
        noise = np.concatenate([batch["noise"] for batch in batches])
        assert len(np.unique(noise)) == 40


@pytest.mark.parametrize("batched", [False, True])
def test_collate_gets_random_numbers_by_position(batched: bool) -> None:
    def noted(records: list[Any], ids: Any, rng: Any) -> Any:
        return {"id": np.array([record["id"] for record in records]), "at": ids, "noise": rng.random()}

    def load_with(loading: str) -> list[Any]:
        return load(
            hostmesh.Stream(in_blocks(40, 7) if batched else numbers(40), 2, batched), collate=noted, loading=loading
        )

    wanted = load_with("global")
    assert np.concatenate([batch["at"] for batch in wanted]).tolist() == list(range(40))
    assert len(np.unique(np.concatenate([batch["noise"] for batch in wanted]))) == 40
    for loading in ("per_process", "per_device", "reshard"):
        for one, other in zip(load_with(loading), wanted, strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in other)


def test_a_record_that_cannot_be_read_is_told_at_its_step() -> None:
    def begin(shard: int, shards: int) -> Iterator[Any]:
        yield from numbers(20)(shard, shards)
        raise OSError("bad sector")

    loader = hostmesh.Loader(hostmesh.Stream(begin, name="tape"), hostmesh.make_mesh(data=4), 8)
    assert ids([next(loader), next(loader)]) == [list(range(8)), list(range(8, 16))]
    with pytest.raises(DataError, match=r"step 2: tape at \S*test_streams\.py:\d+ in begin: OSError: bad sector"):
        next(loader)


def test_a_map_or_collate_that_fails_is_told_with_its_place() -> None:
    def fail(given: Any) -> Any:
        raise KeyError("caption")

    stream = hostmesh.Stream(numbers(40), name="tape")
    for what in ("map", "collate"):
        message = rf"step 0: tape: {what} at \S*test_streams\.py:\d+ in fail: KeyError: 'caption'"
        with pytest.raises(DataError, match=message):
            load(stream, **{what: fail})


@pytest.mark.parametrize("tail", ["carry", "pad"])
def test_a_finished_stream_begins_again(tail: str) -> None:
    opened = []

    def begin(shard: int, shards: int) -> Iterator[Any]:
        opened.append(shard)
        return numbers(20)(shard, shards)

    loader = hostmesh.Loader(hostmesh.Stream(begin, 2), hostmesh.make_mesh(data=4), 8, epochs=1, tail=tail)
    first = ids(list(loader))
    assert loader.step == len(first) == (2 if tail == "carry" else 3)
    assert next(loader, None) is None and sorted(opened) == [0, 1]  # to look again would open it again
    assert ids(list(loader)) == first and sorted(opened) == [0, 0, 1, 1]
    assert ids([next(iter(loader))]) == first[:1] and ids(list(loader)) == first[1:]
    loader.restore(len(first))
    assert ids(list(loader)) == [] and ids(list(loader)) == first
    assert loader.left_out is None


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (hostmesh.Stream(numbers(5), name="short"), "short gives no full batch of 8"),
        (hostmesh.Stream(lambda *_: iter(()), name="empty"), "empty: .*a pass over shard 0 of 1 gave no record"),
        (
            hostmesh.Stream(numbers(40), 3, name="odd"),
            "odd has 3 shards: wanted a batch_size that is a multiple, found 8",
        ),
    ],
)
def test_a_stream_that_cannot_fill_a_batch_is_told(stream: hostmesh.Stream, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(stream)


def test_the_records_of_a_stream_have_no_ids() -> None:
    loader = hostmesh.Loader(hostmesh.Stream(numbers(40)), hostmesh.make_mesh(data=4), 8)
    with pytest.raises(TypeError, match="no ids"):
        loader.record_ids(0)
    with pytest.raises(TypeError, match="no end"):
        len(loader)
