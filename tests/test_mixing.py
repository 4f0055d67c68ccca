"""Mixtures and views in one process: what a loader makes of them, what an epoch is, what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from told_events import Events

import hostmesh
from hostmesh.launcher.audit.line import tell_audit
from hostmesh.worker.audit.recount import UsesOfParts
from hostmesh.worker.errors import CheckpointError, DataError
from hostmesh.worker.loading.source_rows import SourceRows
from hostmesh.worker.mixing.mixture import Mixture
from hostmesh.worker.mixing.mixture_order import MixtureOrder

STRATEGIES = ("per_process", "per_device", "global", "reshard")
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def numbered(length: int, base: int = 0) -> dict[str, Any]:
    ids = np.arange(base, base + length)
    return {"id": ids.astype(np.int32), "image": (ids[:, None] * 3 + np.arange(4)).astype(np.float32)}


def three_parts(stop: str | int = "first") -> Mixture:
    """Of 100, 61 and 40 records, whose ids are the numbers that the mixture gives them."""
    parts = {"a": numbered(100), "b": numbered(61, 100), "c": numbered(40, 161)}
    return hostmesh.mix(WEIGHTS, sources=parts, stop=stop)


class Records:
    """Records one by one, of which some cannot be read."""

    def __init__(self, length: int, bad: int = -1) -> None:
        self.length, self.bad = length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            raise OSError("the disk is gone")
        return {"id": np.int32(index), "image": np.zeros(4, np.float32)}


def test_every_mesh_and_loading_gives_the_same_batches_and_goes_on_at_any_step() -> None:
    order = MixtureOrder((100, 61, 40), (5, 3, 2), seed=3)
    wanted = [order.ids(step * 16, step * 16 + 16).tolist() for step in range(40)]
    for number, loading in enumerate(STRATEGIES * 3):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[: (1, 2, 4)[number // 4]]), "data")
        loader = hostmesh.Loader(three_parts(), mesh, 16, seed=3, steps=40, loading=loading)
        assert [loader.record_ids(step).tolist() for step in range(40)] == wanted
        start = int(np.random.default_rng(number).integers(0, 38)) if number else 0
        loader.restore(start)
        steps = 2 if number else 40
        found = [np.asarray(next(loader)["id"]).tolist() for _ in range(steps)]
        assert found == wanted[start : start + len(found)] and loader.state() == start + len(found)
        loader.close()


def test_where_an_epoch_of_a_mixture_ends() -> None:
    """One record earlier it has not."""
    order = MixtureOrder((100, 61, 40), (5, 3, 2), seed=0, shuffle=False)
    for stop, passed in (("first", any), ("all", all)):
        length = len(three_parts(stop))
        for n in (length - 1, length):
            counts = order.period.count_before(n)
            assert passed(count >= size for count, size in zip(counts, order.lengths, strict=True)) == (n == length)
    assert len(three_parts(37)) == 37


def test_the_next_epoch_goes_on_with_every_part() -> None:
    mixture = three_parts(stop=33)
    loader = hostmesh.Loader(mixture, batch_size=12, epochs=9, seed=1)
    assert len(loader) == 24 and loader.left_out == 9
    used = np.concatenate([loader.record_ids(step) for step in range(len(loader))])
    assert np.array_equal(used, MixtureOrder((100, 61, 40), (5, 3, 2), seed=1).ids(0, 288))
    for first, length in ((0, 100), (100, 61), (161, 40)):
        own = used[(used >= first) & (used < first + length)][:length]
        assert len(np.unique(own)) == len(own)  # though epochs of the mixture ended in between


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_a_mixture_has_tails_as_a_source_has(tail: str) -> None:
    loader = hostmesh.Loader(three_parts(50), batch_size=16, epochs=2, tail=tail)
    rows = [int(np.sum(batch["mask"])) if tail == "pad" else 16 for batch in loader]
    assert rows == ([16, 16, 16, 2] * 2 if tail == "pad" else [16] * 6)


def test_parts_of_many_systems_are_read_side_by_side(tmp_path: Path) -> None:
    import datasets
    import torch

    arrays = numbered(30)
    np.savez(tmp_path / "a.npz", **arrays)
    writer = ArrayRecordWriter(str(tmp_path / "b.array_record"), "group_size:1")
    for id_, image in zip(arrays["id"], arrays["image"], strict=True):
        writer.write(id_.tobytes() + image.tobytes())
    writer.close()
    table = datasets.Dataset.from_dict({"number": np.arange(7), "image": arrays["image"][:7].tolist()})

    def rename(block: Any) -> Any:
        return {"id": block["number"].astype(np.int32), "image": block["image"].astype(np.float32)}

    class Own(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return {"id": torch.tensor(index, dtype=torch.int32), "image": torch.tensor(arrays["image"][index])}

    npz, records = f"npz:{tmp_path}/a.npz", f"arrayrecord:{tmp_path}/b.array_record?fields=id:int32,image:float32:4"
    sources = {"npz": npz, "records": records, "hf": hostmesh.open_source(table).map(rename), "torch": Own()}
    mixture = hostmesh.mix({"npz": 3, "records": 2, "hf": 1, "torch": 1}, sources=sources, stop="all")
    loader = hostmesh.Loader(mixture, batch_size=28, epochs=3)
    for batch in loader:
        located = mixture.locate(loader.record_ids(loader.step - 1))
        assert [own for _, own in located] == np.asarray(batch["id"]).tolist()
        assert np.array_equal(batch["image"], arrays["image"][batch["id"]])
        assert sum(name == "npz" for name, _ in located) == 12
    by_spec = hostmesh.open_source(f"mix:{records}=0.4,{npz}=0.6")
    assert isinstance(by_spec, Mixture) and list(by_spec.weights) == [records, npz]
    assert np.array_equal(next(hostmesh.Loader(by_spec, batch_size=8))["image"].shape, (8, 4))


def test_the_names_of_weights_may_be_specs_and_parts_without_weight_are_left_out() -> None:
    mixture = hostmesh.mix({"digits:train": 3, "digits:test": 1, "npz:nowhere": 0})
    assert mixture.name == "mix(digits:train=3/4, digits:test=1/4)"
    assert next(hostmesh.Loader(mixture, batch_size=8))["image"].shape == (8, 8, 8)


def test_a_record_that_fails_is_named_with_its_part() -> None:
    mixture = hostmesh.mix(WEIGHTS, sources={"a": numbered(100), "b": Records(61, bad=17), "c": numbered(40)})
    with pytest.raises(DataError, match=r"^step 0: part b, record 17 at .* in __getitem__: OSError: the disk is gone$"):
        list(hostmesh.Loader(mixture, batch_size=64, epochs=1, verify=False))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"id": np.arange(9)}, "found in a and b: id is int32[] and int64[]; image is float32[4] and not there"),
        ({**numbered(9), "more": np.arange(9)}, "found in a and b: more is not there and int64[]"),
        ({**numbered(9), "image": np.zeros((9, 5), np.float32)}, "image is float32[4] and float32[5]"),
        ((np.arange(9), np.arange(9)), "id is int32[] and not there; image is float32[4] and not there; [0] is not"),
    ],
)
def test_parts_whose_rows_differ_are_named_at_the_first_batch(other: Any, said: str) -> None:
    """Also where the first batch has no row of the other part."""
    mixture = hostmesh.mix({"a": 1000, "b": 1}, sources={"a": numbered(100), "b": other}, stop="all")
    with pytest.raises(DataError, match="a mixture wants rows of one kind; ") as caught:
        next(hostmesh.Loader(mixture, batch_size=4))
    assert said in str(caught.value) and "make them alike with .map(function)" in str(caught.value)
    assert isinstance(next(hostmesh.Loader(mixture, batch_size=4, collate=lambda records: np.zeros(4)))[0], jax.Array)


def test_another_mixture_is_refused_with_what_differs(tmp_path: Path) -> None:
    spec = hostmesh.Loader(three_parts(), batch_size=16).data_spec
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = jax.device_put(np.float32(1), sharding)
    first = hostmesh.Checkpoint(tmp_path, data_spec=spec)
    first.save(5, state, 5)
    first.close()
    parts = {"a": numbered(100), "b": numbered(61, 100), "c": numbered(40, 162)}
    other = hostmesh.mix({"a": 0.6, "b": 0.2, "c": 0.2}, sources=parts)
    second = hostmesh.Checkpoint(tmp_path, data_spec=hostmesh.Loader(other, batch_size=16).data_spec)
    with pytest.raises(
        CheckpointError, match="weight of a: found 1/2, wanted 3/5; weight of b: found 3/10, wanted"
    ) as e:
        second.restore(state)
    second.close()
    assert "weight of c" not in str(e.value)
    changed = hostmesh.Loader(other, batch_size=16).data_spec
    assert {key for key in spec if "content of" in key and spec[key] != changed[key]} == {"content of c"}


def test_all_that_is_behind_the_parts_is_compared() -> None:
    shared = hostmesh.open_source(numbered(100))
    odd = shared.filter(lambda record: record["id"] % 2 == 1)
    mixture = hostmesh.mix(WEIGHTS, sources={"a": shared.take(50), "b": odd, "c": numbered(40)})
    assert mixture.content is not None
    names = [one.name for one in mixture.content.stored]
    assert names == ["id of a", "image of a", "the records kept of b", "id of c", "image of c"]
    assert hostmesh.Loader(mixture, batch_size=4).data_spec["kept of b"].startswith("50 records ")


def test_a_mixture_and_its_views_can_be_sent_to_another_process() -> None:
    source = hostmesh.open_source(numbered(100)).map(lambda block: {**block, "id": block["id"] + 1})
    parts = {"a": source.skip(3), "b": source.filter(lambda r: r["id"] > 50), "c": hostmesh.concatenate(source, source)}
    mixture = hostmesh.mix(WEIGHTS, sources=parts)
    ids = np.arange(0, mixture.numbers, 7)
    before, copy = mixture.read(ids), cloudpickle.loads(cloudpickle.dumps(mixture))
    assert np.array_equal(copy.read(ids)["id"], before["id"]) and len(copy) == len(mixture)


# The audit.


def mixture_events(**spec: Any) -> Events:
    events = Events(length=50, mixture={"lengths": [30, 20, 7], "counts": [5, 3, 2]}, **spec)
    events.order = MixtureOrder((30, 20, 7), (5, 3, 2), events.spec["seed"])  # type: ignore[assignment]
    return events


@pytest.mark.parametrize("tail", ["carry", "pad", "drop"])
def test_the_audit_recounts_a_mixture(tail: str) -> None:
    events = mixture_events(tail=tail)
    assert events.schedule.total is not None
    events.deliver(1, 7, words=[5])
    events.begin_attempt()
    events.deliver(6, events.schedule.total, restored=5)
    events.end()
    found = events.audit()
    assert (found["exact"], found["parts"], found["steps"]) == (True, 3, events.schedule.total), found
    assert "records of 3 parts, none used twice in an epoch of its part" in str(tell_audit(found))


def test_the_audit_notices_other_records_than_the_mixtures() -> None:
    events = mixture_events()
    events.ids[0, 4] = [1, 1, 2, 3, 4, 5]
    events.deliver(1, 8)
    events.end()
    found = events.audit()
    assert found["exact"] is False and "process 0 used other records" in found["problems"][0]


def test_a_record_twice_in_an_epoch_of_its_part_is_counted() -> None:
    order = MixtureOrder((30, 20, 7), (5, 3, 2), seed=1)
    for at, damage in ((None, 0), (11, 1), (2000, 1)):
        ids, uses = order.ids(0, 3000), UsesOfParts(order)
        if at is not None:
            near = np.flatnonzero(np.searchsorted(order.starts, ids[at + 1 :], "right") - 1 == 0)[0] + at + 1
            first = np.flatnonzero(ids[:near] < 30)[-1]
            ids[near] = ids[first]
        for start in range(0, 3000, 500):
            uses.add(start, ids[start : start + 500])
        assert uses.finish() == damage, at


def test_what_a_step_has_is_described_as_json() -> None:
    loader = hostmesh.Loader(three_parts(), batch_size=16, seed=7)
    assert isinstance(loader._rows, SourceRows)
    described = loader._rows.describe_steps()
    assert described["mixture"] == {"lengths": [100, 61, 40], "counts": [5, 3, 2]} and described["length"] == len(
        three_parts()
    )


# Views.


def labels(source: Any) -> list[int]:
    return source.read(np.arange(len(source)))["id"].tolist()


def test_views_choose_records_by_number_or_by_a_predicate() -> None:
    source = hostmesh.open_source(Records(10))
    assert labels(source.take(3)) == [0, 1, 2] and labels(source.skip(7)) == [7, 8, 9]
    assert labels(source.skip(2).take(5).skip(1)) == [3, 4, 5, 6]
    even = source.skip(1).filter(lambda record: record["id"] % 2 == 0)
    assert labels(even) == [2, 4, 6, 8] and labels(even.skip(1).take(2)) == [4, 6]
    assert labels(even.filter(lambda record: record["id"] > 3)) == [4, 6, 8]
    assert [record["id"] for record in even.records(np.array([3, 0]))] == [8, 2]
    assert even.name == "Records.skip(1).filter(<lambda>)"
    with pytest.raises(DataError, match=r"has 3 records: wanted ids 0 to 2, found 3"):
        source.take(3).read(np.array([3]))
    assert sorted(np.asarray(next(hostmesh.Loader(even, batch_size=4))["id"]).tolist()) == [2, 4, 6, 8]


def test_a_filter_is_known_by_what_it_keeps() -> None:
    """Also where its length and the few records that are looked at are those of another one."""
    source = hostmesh.open_source(numbered(100))
    kept = [{0, 1, 33, 66, 99} ^ {middle} for middle in (2, 2, 3)]
    filters = [source.filter(lambda record, wanted=wanted: int(record["id"]) in wanted) for wanted in kept]
    specs = [hostmesh.Loader(each.take(5), batch_size=4).data_spec for each in filters]
    assert specs[0] == specs[1] != specs[2] and {key for key in specs[0] if specs[0][key] != specs[2][key]} >= {"kept"}


def test_map_changes_rows_before_they_are_mixed() -> None:
    source = hostmesh.open_source(numbered(10)).map(lambda block: {"id": block["id"] * 2})
    assert labels(source) == list(range(0, 20, 2))
    assert [record["id"] for record in source.records(np.array([4]))] == [8]
    ragged = hostmesh.open_source(Ragged()).map(lambda block: {"size": np.array([block["tokens"].shape[1]])})
    assert [int(record["size"]) for record in ragged.records(np.arange(3))] == [1, 2, 3]


class Ragged:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return {"tokens": np.arange(index + 1)}


def test_sources_one_after_another() -> None:
    joined = hostmesh.concatenate(numbered(3), Records(2), hostmesh.open_source(numbered(9)).skip(6))
    assert labels(joined) == [0, 1, 2, 0, 1, 6, 7, 8]
    assert joined.locate([4, 0]) == [("1", 1), ("0", 0)]
    assert labels(joined.skip(2).take(3)) == [2, 0, 1]
    loader = hostmesh.Loader(joined, batch_size=8, epochs=2)
    assert [sorted(np.asarray(batch["id"]).tolist()) for batch in loader] == [[0, 0, 1, 1, 2, 6, 7, 8]] * 2


class OwnSource:
    """All that a source has, and nothing of ours."""

    name = "own"

    def __len__(self) -> int:
        return 5

    def read(self, ids: Any) -> Any:
        return {"id": ids}

    def records(self, ids: Any) -> Any:
        return [{"id": int(id_)} for id_ in ids]


def test_whatever_open_source_gives_has_views() -> None:
    assert labels(hostmesh.open_source(OwnSource()).skip(2)) == [2, 3, 4]
    assert labels(hostmesh.open_source({"id": np.arange(4)}).take(2)) == [0, 1]
    assert len(hostmesh.open_source("digits:train").take(100)) == 100


def test_map_of_a_mixture_is_that_of_its_parts() -> None:
    mapped = three_parts().map(lambda block: {"id": block["id"] * 2})
    assert len(mapped) == len(three_parts()) and mapped.weights == three_parts().weights
    loader = hostmesh.Loader(mapped, batch_size=16, seed=3)
    assert np.array_equal(np.asarray(next(loader)["id"]), 2 * loader.record_ids(0))


def test_options_may_be_numbers_of_numpy() -> None:
    mixture = three_parts(stop=np.int64(64))  # type: ignore[arg-type]
    loader = hostmesh.Loader(mixture, batch_size=np.int32(16), epochs=np.int64(2))  # type: ignore[arg-type]
    assert len(list(loader)) == 8 and type(loader.batch_size) is int


# What is refused.


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.take(0), "take of arrays, which has 10 records, wants a number from 1 to 10; found 0"),
        (lambda s: s.take(11), "wants a number from 1 to 10; found 11"),
        (lambda s: s.take(2.0), "wants a number from 1 to 10; found 2.0"),
        (lambda s: s.skip(10), "skip of arrays, which has 10 records, wants a number from 0 to 9; found 10"),
        (lambda s: s.skip(-1), "wants a number from 0 to 9; found -1"),
        (lambda s: s.filter(lambda _: False), "filter of arrays wants to keep at least one record; found none of 10"),
        (lambda s: s.filter("id > 3"), "filter of arrays wants a function of a record; found 'id > 3'"),
        (lambda s: s.filter(lambda r: r["no"]), "filter of arrays, record 0 at .*test_mixing.py.*: KeyError: 'no'"),
        (lambda s: s.map(None), "map of arrays wants a function of a block; found None"),
        (lambda s: labels(s.map(lambda b: b["no"])), "map of arrays at .*test_mixing.py.*: KeyError: 'no'"),
        (lambda s: labels(s.map(lambda b: {"id": b["id"][:2]})), "a block of 10 rows wants as many back; found 2"),
        (lambda s: hostmesh.open_source(Records(5, 3)).filter(lambda _: True), "record 3 of Records.*the disk is gone"),
        (lambda s: hostmesh.concatenate(), "concatenate wants at least one source; found none"),
        (
            lambda s: hostmesh.concatenate(s, iter("ab")),
            "concatenate: part 1: str_.*iterator can be passed through once only",
        ),
        (lambda s: hostmesh.mix({"a": 1}, sources={"b": s}), "name what is not among its sources: unknown source 'a'"),
        (lambda s: hostmesh.mix({"a": 1}, sources={"a": s, "b": s}), "name what has no weight: unknown weight 'b'"),
        (lambda s: hostmesh.mix({"a": 1}, sources=[s]), "sources of a mixture want names, .* found list"),
        (lambda s: hostmesh.mix({"a": 1}, sources={"a": s}, stop="last"), "stop wants 'first', 'all' or .*'last'"),
        (lambda s: hostmesh.mix({"a": 1}, sources={"a": s}, stop=0), "a number of records above 0; found 0"),
        (lambda s: hostmesh.mix({"a": 1}, sources={"a": s}, stop=True), "a number of records above 0; found True"),
        (
            lambda s: hostmesh.mix({"a": 1}, sources={"a": {"id": np.arange(0)}}),
            "with at least one record; part a .* has",
        ),
        (
            lambda s: hostmesh.mix(
                {"a": 1}, sources={"a": hostmesh.as_stream(lambda shard, of: iter([]), batched=False)}
            ),
            "a mixture wants records by number; part a is a stream .*, whose records only come in order",
        ),
        (lambda s: hostmesh.mix({"a": 1}, sources={"a": three_parts()}), "part a is a mixture .* an order of its own"),
        (lambda s: hostmesh.mix({"digits:trian": 1}), "a mixture: part digits:trian: .*did you mean train"),
        (
            lambda s: hostmesh.open_source("mix:digits:train"),
            "mix:digits:train: wanted SPEC=WEIGHT,.*found 'digits:train'",
        ),
        (
            lambda s: hostmesh.open_source("mix:digits:train=-1,digits:test=0.3"),
            "the weight of digits:train wants a number from 0 on; found -1.0",
        ),
        (
            lambda s: hostmesh.open_source("mix:digits:train,digits:test=0.3"),
            "SPEC=WEIGHT,SPEC=WEIGHT.*: is the weight of digits:train missing?",
        ),
        (lambda s: hostmesh.open_source("mix:digits:train=0.3,digits:test"), "'digits:test', without a weight"),
        (
            lambda s: three_parts().take(3),
            r"take wants records by number; found mix\(a=1/2.*: take of each part, and mix",
        ),
        (lambda s: three_parts().skip(3), r"skip of each part, and mix what is left"),
        (lambda s: three_parts().filter(bool), r"filter of each part, and mix what is left"),
        (lambda s: hostmesh.pack(three_parts(), 4, field="id"), "pack wants documents by number; found the mixture"),
        (lambda s: hostmesh.windows(three_parts(), 4, field="id"), "windows each part, and mix what comes out"),
        (lambda s: hostmesh.open_source("mix:digits:test=1.2.3"), "a weight wants to be a number; found '1.2.3'"),
        (lambda s: hostmesh.open_source("mix:digits:test=1,digits:test=2"), "the part digits:test is given twice"),
        (lambda s: three_parts().locate([201]), "a mixture has 201 records: wanted ids 0 to 200, found 201"),
    ],
)
def test_bad_input_gets_one_clear_error(make: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        make(hostmesh.open_source(numbered(10)))
