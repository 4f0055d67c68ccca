"""Batches padded to one of a few lengths: the smallest that holds the longest record of the global batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import hostmesh
from hostmesh.worker.errors import DataError

LENGTHS = (8, 16, 32)
STRATEGIES = ["per_process", "per_device", "global", "reshard"]


class Unmeasured:
    """Record n is n repeated; its length is n % 32 + 1 for the most part less than 16."""

    def __init__(self, count: int = 101) -> None:
        self.sizes = np.random.default_rng(0).geometric(0.2, count).clip(1, 32)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> Any:
        return {"tokens": np.full(self.sizes[number], number, np.int32), "id": np.int32(number)}


class Measured(Unmeasured):
    def lengths(self, ids: Any) -> Any:
        return self.sizes[ids]


def as_stream(source: Unmeasured) -> hostmesh.Stream:
    def begin(shard: int, shards: int) -> Iterator[Any]:
        return (source[n] for n in range(shard, len(source), shards))

    return hostmesh.Stream(begin, shards=2, name="tape")


def load(source: Any, devices: int = 4, start: int = 0, **options: Any) -> list[Any]:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), "data")
    loader = hostmesh.Loader(source, mesh, 8, **{"epochs": 2, "lengths": LENGTHS, "tail": "pad", **options})
    loader.restore(start)
    return [jax.tree.map(np.asarray, batch) for batch in loader]


def check_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("kind", [Measured, Unmeasured])
def test_a_batch_has_the_smallest_length_that_holds_it_and_says_how_long_its_rows_are(kind: Any) -> None:
    source = kind()
    batches = load(source, tail="carry", epochs=1)
    seen = set()
    for batch in batches:
        rows = batch["tokens"]
        assert batch["lengths"].dtype == np.int32 and batch["lengths"].tolist() == source.sizes[batch["id"]].tolist()
        assert rows.shape[1] == min(length for length in LENGTHS if length >= batch["lengths"].max())
        is_real = np.arange(rows.shape[1]) < batch["lengths"][:, None]
        assert np.array_equal(rows, np.where(is_real, batch["id"][:, None], 0))
        seen.add(rows.shape[1])
    assert seen == set(LENGTHS)
    assert len({record for batch in batches for record in batch["id"].tolist()}) == 96


@pytest.mark.parametrize("loading", STRATEGIES)
def test_one_order_for_every_number_of_devices_loading_and_kind_of_source(loading: str) -> None:
    whole = load(Measured(), devices=1)
    check_same(load(Measured(), loading=loading), whole)
    check_same(load(Unmeasured(), loading=loading), whole)
    check_same(load(Measured(), 2, 7, loading=loading, prefetch=0, device_prefetch=0), whole[7:])
    check_same(load(Unmeasured(), 2, 7, loading=loading, prefetch=0, device_prefetch=0), whole[7:])


@pytest.mark.parametrize("tail", ["carry", "pad"])
def test_streams_are_padded_too(tail: str) -> None:
    stream = as_stream(Unmeasured())
    whole = load(stream, tail=tail)
    plain = load(stream, tail=tail, lengths=(32,))
    assert [batch["id"].tolist() for batch in whole] == [batch["id"].tolist() for batch in plain]
    assert {batch["tokens"].shape[1] for batch in whole} == set(LENGTHS)
    check_same(load(stream, 2, 5, tail=tail, loading="reshard"), whole[5:])


@pytest.mark.parametrize("kind", [Measured, Unmeasured])
def test_a_step_compiles_once_for_each_length(kind: Any) -> None:
    step = jax.jit(lambda batch: batch["tokens"].sum())
    loader = hostmesh.Loader(kind(), hostmesh.make_mesh(data=4), 8, epochs=3, lengths=LENGTHS)
    total = sum(int(step(batch)) for batch in loader)
    assert step._cache_size() == len(LENGTHS)
    ids = np.concatenate([loader.record_ids(k) for k in range(len(loader))])
    assert total == (Unmeasured().sizes[ids] * ids).sum()


@pytest.mark.parametrize("kind", [Measured, Unmeasured])
def test_map_sees_the_padded_block_and_draws_the_same_for_every_topology(kind: Any) -> None:
    def noisy(block: Any, ids: Any, rng: Any) -> Any:
        return {**block, "noise": rng.random(block["tokens"].shape[1:]).astype(np.float32)}

    whole = load(Measured(), 1, map=noisy)
    assert whole[0]["noise"].shape == whole[0]["tokens"].shape
    check_same(load(kind(), 4, map=noisy, loading="per_device"), whole)


def test_fields_pad_values_and_specs() -> None:
    class Speech:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, n: int) -> Any:
            sound = np.ones((n + 1, 4), np.float32)
            return {"sound": sound, "text": {"ids": np.ones(n // 2, np.int32)}, "speaker": np.ones(3, np.float32)}

    lengths = hostmesh.Lengths((8, 16), fields=("sound", "text.ids"), pad={"text.ids": -1})
    mesh = hostmesh.make_mesh(data=2, model=2)
    spec = {"sound": P("data", "model"), "text": P("data"), "speaker": P("data")}
    loader = hostmesh.Loader(Speech(), mesh, 8, spec=spec, epochs=1, lengths=lengths, shuffle=False)
    short, long = [jax.tree.map(np.asarray, batch) for batch in loader]
    assert (short["sound"].shape, long["sound"].shape) == ((8, 8, 4), (8, 16, 4))
    assert short["text"]["ids"][3].tolist() == [1, -1, -1, -1, -1, -1, -1, -1] and long["speaker"].shape == (8, 3)
    assert long["lengths"].tolist() == list(range(9, 17)) and long["sound"].sum() == 4 * sum(range(9, 17))
    alone = hostmesh.Loader([np.arange(n) for n in range(1, 9)], mesh, 8, lengths=(8,), shuffle=False)
    assert next(alone).shape == (8, 8)


# Bad input.


@pytest.mark.parametrize("lengths", [(), (16, 8), (8, 8), (0, 8), (8, 16.0), (True,), 8, "8"])
def test_lengths_want_ascending_numbers(lengths: Any) -> None:
    with pytest.raises(DataError, match="lengths wants ascending integers of 1 or more; found"):
        load(Measured(), lengths=lengths)


@pytest.mark.parametrize(("kind", "where"), [(Measured, "Measured: "), (Unmeasured, r"step \d+: ")])
def test_a_record_that_no_length_holds_is_named(kind: Any, where: str) -> None:
    source = kind()
    source.sizes = np.minimum(source.sizes, 8)
    source.sizes[5] = 20
    message = rf"{where}record 5 has length 20, wanted at most 16, the longest of lengths=\(8, 16\)"
    with pytest.raises(DataError, match=message):
        load(source, lengths=(8, 16))


def test_padding_that_an_array_cannot_hold_is_told_when_the_loader_is_made() -> None:
    narrow = hostmesh.open_source([np.arange(3, dtype=np.uint16)] * 8)
    for value in (-100, np.int64(-100), 0.5):
        with pytest.raises(DataError, match="pad of a record wants a value of uint16, 0 to 65535; found"):
            hostmesh.Loader(narrow, batch_size=8, lengths=hostmesh.Lengths(LENGTHS, pad=value))
    stream = hostmesh.Stream(lambda shard, of: iter([{"tokens": np.arange(3, dtype=np.uint8)}] * 8), name="tape")
    with pytest.raises(DataError, match="pad of tokens wants a value of uint8, 0 to 255; found -100"):
        load(stream, lengths=hostmesh.Lengths(LENGTHS, pad={"tokens": np.int64(-100)}))
    assert load(Measured(), lengths=hostmesh.Lengths(np.array(LENGTHS), pad=-100))


@pytest.mark.parametrize("options", [{"workers": 2}, {"processes": 2}, {"workers": "processes"}])
def test_workers_that_nothing_could_use_are_refused(options: dict[str, Any]) -> None:
    for source in (Unmeasured(), as_stream(Measured())):
        with pytest.raises(
            DataError, match=r"is read by one thread, because .*; found (workers|processes)=\d+: leave it"
        ):
            load(source, **options)
    assert load(Unmeasured(), workers=0) and load(as_stream(Measured()), workers=1)


def test_a_mixture_knows_the_lengths_of_its_parts() -> None:
    """Of all of their records, which are more than an epoch has."""
    parts = {"a": Measured(90), "b": Measured(11)}
    mixture = hostmesh.mix({"a": 1, "b": 1}, sources=parts)
    assert len(mixture) < 40
    check_same(load(mixture), load(hostmesh.mix({"a": 1, "b": 1}, sources={"a": Unmeasured(90), "b": Unmeasured(11)})))
    assert not hostmesh.Loader(mixture, batch_size=8, lengths=LENGTHS)._padding.must_agree  # type: ignore[union-attr]
    parts["a"].sizes[89] = 40
    with pytest.raises(DataError, match="record 89 has length 40, wanted at most 32"):
        load(mixture)


def test_what_cannot_be_padded_is_told() -> None:
    with pytest.raises(DataError, match=r"record \d+: lengths= wants the array words; found tokens \(\d+,\), id \(\)"):
        load(Unmeasured(), lengths=hostmesh.Lengths(LENGTHS, fields=["words"]))
    with pytest.raises(DataError, match=r"wants an array of one axis; found it \(\): name some by Lengths"):
        load(np.arange(20))
    with pytest.raises(ValueError, match="wanted it or collate=, found both"):
        load(Measured(), collate=list)
    lying = Measured()
    lying.lengths = lambda ids: np.ones(len(ids), int)  # type: ignore[method-assign]
    with pytest.raises(DataError, match=r"record \d+ has length \d+, where its source said at most 8"):
        load(lying)
    with pytest.raises(DataError, match="adds the field 'lengths'; found a record that has one"):
        load([{"tokens": np.arange(3), "lengths": 3}] * 8)
