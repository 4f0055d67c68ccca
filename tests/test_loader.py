"""The loader in one process: tails, randomness, collation, transfer, state, and what it refuses."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import jax
import numpy as np
import pytest
from conftest import loader_threads
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.ordering.randomness import RowRandom
from hostmesh.worker.ordering.schedule import Schedule

HERE = r"\S*test_loader\.py"
TIERS = [(0, 0), (2, 0), (2, 2), (0, 1)]


def numbered(length: int) -> dict[str, Any]:
    return {"id": np.arange(length), "image": np.arange(length * 6).reshape(length, 2, 3).astype(np.float32)}


def ids_of(loader: hostmesh.Loader) -> list[list[int]]:
    return [np.asarray(batch["id"]).tolist() for batch in loader]


class Records:
    """A source of records by number, made by a function."""

    def __init__(self, length: int, make: Any) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


@pytest.mark.parametrize(("prefetch", "device_prefetch"), TIERS)
def test_every_transfer_tier_delivers_every_batch_in_order(prefetch: int, device_prefetch: int) -> None:
    loader = hostmesh.Loader(numbered(40), batch_size=8, epochs=2, prefetch=prefetch, device_prefetch=device_prefetch)
    assert ids_of(loader) == [loader.record_ids(step).tolist() for step in range(10)]
    assert len(loader) == loader.step == 10


def test_a_batch_lies_where_its_spec_says() -> None:
    mesh = hostmesh.make_mesh(data=2, model=2)
    spec = {"id": P("data"), "image": P("data", None, None)}
    batch = next(hostmesh.Loader(numbered(40), mesh, 8, spec=spec))
    assert batch["image"].sharding == NamedSharding(mesh, P("data", None, None))
    assert {shard.data.shape for shard in batch["image"].addressable_shards} == {(4, 2, 3)}


def test_a_sharding_stands_in_for_mesh_and_spec() -> None:
    sharding = NamedSharding(hostmesh.make_mesh(data=4), P("data"))
    assert next(hostmesh.Loader(numbered(40), sharding, 8))["id"].sharding == sharding
    single = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    assert next(hostmesh.Loader(numbered(40), single, 8))["id"].devices() == {jax.devices()[1]}


@pytest.mark.parametrize("loading", ["per_process", "per_device", "global", "reshard"])
def test_a_batch_no_device_count_divides_is_told_with_the_numbers(loading: str) -> None:
    with pytest.raises(ValueError, match="wanted a multiple of 4, found 10"):
        hostmesh.Loader(numbered(40), hostmesh.make_mesh(data=4), 10, loading=loading)


def test_reshard_takes_batches_that_the_devices_do_not_divide() -> None:
    mesh = hostmesh.make_mesh(data=2, model=2)
    loaders = [hostmesh.Loader(numbered(40), mesh, 6, steps=5, loading=name) for name in ("per_process", "reshard")]
    assert ids_of(loaders[0]) == ids_of(loaders[1])


# Tails.


def test_carry_begins_the_next_epoch_with_the_remainder() -> None:
    loader = hostmesh.Loader(numbered(10), hostmesh.make_mesh(data=4), 4, epochs=2)
    rows = [row for batch in ids_of(loader) for row in batch]
    assert len(loader) == 5 and loader.left_out == 0
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("tail", ["carry", "drop"])
def test_no_record_is_used_more_often_than_there_are_epochs(tail: str, epochs: int) -> None:
    loader = hostmesh.Loader("digits:train", hostmesh.make_mesh(data=4), 128, epochs=epochs, tail=tail, map=label_only)
    rows = np.concatenate([loader.record_ids(step) for step, _ in enumerate(loader)])
    assert len(rows) + (loader.left_out or 0) == epochs * 1437
    assert np.bincount(rows).max() <= epochs
    for epoch in range(epochs):
        assert len(np.unique(rows[epoch * 1437 : (epoch + 1) * 1437])) >= 1437 - 127
    assert tail == "drop" or (loader.left_out or 0) < 128


def label_only(block: Any) -> Any:
    return block["label"]


@pytest.mark.parametrize(
    ("tail", "epochs", "steps", "total", "left_out"),
    [
        ("carry", 1, None, 2, 2),
        ("carry", 2, None, 5, 0),
        ("carry", 3, None, 7, 2),
        ("carry", 3, 7, 7, 2),
        ("carry", 3, 9, 7, 2),
        ("carry", 3, 6, 6, 0),  # these were not asked for
        ("carry", None, 7, 7, 0),
        ("carry", None, None, None, 0),
        ("pad", 3, None, 9, 0),
        ("pad", None, None, None, 0),
        ("drop", 3, None, 6, 6),
        ("drop", 3, 5, 5, 4),
        ("drop", None, 4, 4, 4),
        ("drop", None, None, None, None),
    ],
)
def test_what_is_in_no_batch_is_counted(
    tail: str, epochs: int | None, steps: int | None, total: int | None, left_out: int | None
) -> None:
    schedule = Schedule(10, 4, tail, epochs, steps)
    assert (schedule.total, schedule.left_out) == (total, left_out)


def test_pad_masks_what_is_not_a_record() -> None:
    loader = hostmesh.Loader(numbered(10), hostmesh.make_mesh(data=4), 4, epochs=2, tail="pad", shuffle=False)
    batches = list(loader)
    assert [np.asarray(batch["mask"]).sum() for batch in batches] == [4, 4, 2, 4, 4, 2]
    assert np.asarray(batches[2]["id"]).tolist() == [8, 9, 9, 9]
    assert {batch["mask"].dtype for batch in batches} == {np.dtype(bool)}


def test_a_source_smaller_than_a_batch_can_only_be_padded() -> None:
    mesh = hostmesh.make_mesh(data=4)
    batch = next(hostmesh.Loader(numbered(3), mesh, 8, tail="pad"))
    assert np.asarray(batch["mask"]).tolist() == [True] * 3 + [False] * 5
    for tail in ("carry", "drop"):
        with pytest.raises(ValueError, match="3 records, fewer than one batch of 8"):
            hostmesh.Loader(numbered(3), mesh, 8, tail=tail)


def test_drop_leaves_the_remainder_out() -> None:
    loader = hostmesh.Loader(numbered(10), hostmesh.make_mesh(data=4), 4, epochs=3, tail="drop")
    batches = ids_of(loader)
    assert len(batches) == 6
    assert all(len(set(batches[epoch * 2] + batches[epoch * 2 + 1])) == 8 for epoch in range(3))


def test_pad_wants_a_dict_without_a_mask() -> None:
    mesh = hostmesh.make_mesh(data=4)
    with pytest.raises(DataError, match="adds the field 'mask' to a dict of arrays; found a tuple"):
        next(hostmesh.Loader((np.arange(10),), mesh, 4, tail="pad"))
    with pytest.raises(DataError, match="found one with the field mask"):
        next(hostmesh.Loader({"mask": np.arange(10)}, mesh, 4, tail="pad"))


# Map, randomness, collate.


def test_map_may_ask_for_ids_and_randomness() -> None:
    def noted(block: Any, ids: Any, rng: RowRandom) -> Any:
        return {"id": block["id"], "ids": ids, "noise": rng.random((3,)).astype(np.float32)}

    loader = hostmesh.Loader(numbered(40), batch_size=8, map=noted, epochs=2)
    batches = list(loader)
    assert all(np.array_equal(batch["id"], batch["ids"]) for batch in batches)
    noise = np.concatenate([batch["noise"] for batch in batches])
    assert len(np.unique(noise)) == noise.size  # the second epoch is another augmentation


def test_a_map_with_another_number_of_arguments_is_refused() -> None:
    with pytest.raises(DataError, match=r"map wants one argument \(block\) or three .*; found one that takes 2"):
        hostmesh.Loader(numbered(40), batch_size=8, map=lambda block, ids: block)
    with pytest.raises(DataError, match=r"collate wants one argument \(records\) or three .*; found one that takes 2"):
        hostmesh.Loader(numbered(40), batch_size=8, collate=lambda records, ids: records)


@pytest.mark.parametrize("loading", ["per_process", "per_device", "global", "reshard"])
def test_collate_may_ask_for_ids_and_randomness(loading: str) -> None:
    def noted(records: list[Any], ids: Any, rng: RowRandom) -> Any:
        own = [record["id"] for record in records]
        return {"id": np.array(own), "ids": ids, "noise": rng.random((3,)).astype(np.float32)}

    def more(block: Any, ids: Any, rng: RowRandom) -> Any:
        return {**block, "other": rng.random((3,)).astype(np.float32)}

    def load(devices: int) -> list[Any]:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), "data")
        options: Any = {"collate": noted, "map": more, "epochs": 2, "tail": "pad", "loading": loading}
        return list(hostmesh.Loader(numbered(43), mesh, 8, **options))

    batches = load(4)
    assert all(np.array_equal(batch["id"], batch["ids"]) for batch in batches)
    real = [np.asarray(batch["mask"]) for batch in batches]
    noise = np.concatenate([np.asarray(batch["noise"])[mask] for batch, mask in zip(batches, real, strict=True)])
    other = np.concatenate([np.asarray(batch["other"])[mask] for batch, mask in zip(batches, real, strict=True)])
    assert len(np.unique(np.concatenate([noise, other]))) == noise.size + other.size == 2 * 2 * 43 * 3
    for one, four in zip(load(1), batches, strict=True):
        assert all(np.array_equal(one[name], four[name]) for name in four)


def test_random_rows_do_not_depend_on_their_block() -> None:
    def draws(positions: Any) -> list[Any]:
        random = RowRandom(7, np.asarray(positions))
        own = [generator.random() for generator in RowRandom(7, np.asarray(positions)).generators()]
        return [random.random((2,)), random.integers(-3, 4), random.normal((2, 2)), np.array(own)]

    for whole, first, second in zip(draws(range(100)), draws(range(40)), draws(range(40, 100)), strict=True):
        assert np.array_equal(whole, np.concatenate([first, second]))


def test_random_rows_are_random() -> None:
    random = RowRandom(1, np.arange(100_000))
    uniform, other, normal = random.random(), random.random(), random.normal()
    counts = np.bincount(random.integers(0, 10))
    assert abs(uniform.mean() - 0.5) < 0.005 and abs(uniform.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(uniform, other)[0, 1]) < 0.02
    assert abs(np.corrcoef(uniform[1:], uniform[:-1])[0, 1]) < 0.02
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert np.abs(counts - 10_000).max() < 500
    assert not np.array_equal(RowRandom(2, np.arange(100_000)).random(), uniform)


def test_collate_pads_ragged_rows_to_one_length() -> None:
    def pad(records: list[Any]) -> Any:
        tokens = [np.pad(record["tokens"], (0, 6 - len(record["tokens"]))) for record in records]
        return {"tokens": np.stack(tokens), "length": np.array([len(record["tokens"]) for record in records])}

    source = Records(20, lambda index: {"tokens": np.full(index % 6 + 1, index, np.int32)})
    loader = hostmesh.Loader(source, hostmesh.make_mesh(data=4), 4, collate=pad, epochs=1)
    for step, batch in enumerate(loader):
        ids = loader.record_ids(step)
        assert batch["tokens"].shape == (4, 6)
        assert np.asarray(batch["length"]).tolist() == (ids % 6 + 1).tolist()


def test_ragged_rows_without_collate_name_the_record() -> None:
    source = Records(20, lambda index: {"tokens": np.zeros(4 if index == 13 else 3)})
    with pytest.raises(DataError, match=r"step \d: .*record 13: tokens has shape \(4,\), wanted \(3,\)"):
        list(hostmesh.Loader(source, batch_size=4, epochs=1, seed=1))


def test_a_collate_of_changing_length_is_refused() -> None:
    def to_longest(records: list[Any]) -> Any:
        longest = max(map(len, records))
        return np.stack([np.pad(record, (0, longest - len(record))) for record in records])

    source = Records(40, lambda index: np.zeros(index + 1))
    with pytest.raises(DataError, match="every batch needs one shape, so pad to a fixed length"):
        list(hostmesh.Loader(source, batch_size=4, collate=to_longest, epochs=1))


def test_one_compilation_serves_a_whole_run() -> None:
    compiled = []

    @jax.jit
    def step(batch: Any) -> Any:
        compiled.append(1)
        return batch["image"].sum()

    for tail in ("carry", "drop"):
        for batch in hostmesh.Loader(numbered(43), hostmesh.make_mesh(data=4), 8, epochs=3, tail=tail):
            step(batch)
    assert len(compiled) == 1


# Errors.


def test_a_record_that_raises_is_named_after_the_batches_before_it() -> None:
    def make(index: int) -> Any:
        if index == 30:
            raise OSError("bad sector")
        return {"id": index}

    loader = hostmesh.Loader(Records(40, make), batch_size=4, shuffle=False, epochs=1)
    got = []
    with pytest.raises(DataError, match=rf"step 7: record 30 of Records at {HERE}:\d+ in make: OSError: bad sector"):
        for batch in loader:
            got.append(batch)
    assert len(got) == 7


def test_a_source_that_lies_about_its_length_is_told() -> None:
    source = Records(40, [{"id": n} for n in range(35)].__getitem__)
    with pytest.raises(DataError, match="IndexError"):
        list(hostmesh.Loader(source, batch_size=4, shuffle=False, epochs=1))


def test_a_map_that_fails_says_so() -> None:
    def fail(block: Any) -> Any:
        raise KeyError("pixels")

    with pytest.raises(DataError, match=rf"step 0: map at {HERE}:\d+ in fail: KeyError: 'pixels'"):
        next(hostmesh.Loader(numbered(40), batch_size=8, map=fail))


def test_a_function_of_the_users_that_fails_within_a_library_is_told_at_their_line() -> None:
    def reshape(block: Any) -> Any:
        return {"id": np.stack([np.zeros(3), np.zeros(4)])}

    with pytest.raises(DataError, match=rf"step 0: map at {HERE}:\d+ in reshape: ValueError: all input arrays must"):
        next(hostmesh.Loader(numbered(40), batch_size=8, map=reshape))
    with pytest.raises(DataError, match=r"step 0: map: TypeError: "):  # no line of theirs
        next(hostmesh.Loader(numbered(40), batch_size=8, map=int))


def test_a_collate_that_fails_says_so_with_the_record() -> None:
    def caption(records: list[Any]) -> Any:
        return {"id": np.stack(list(map(lambda record: record["caption"], records)))}

    def clash(records: list[Any]) -> Any:
        raise_if_all = 1 // (8 - len(records))
        return {"id": np.full(len(records), raise_if_all)}

    source = Records(40, lambda index: {"id": index} if index == 13 else {"caption": index})
    message = rf"step \d: collate of record 13 at {HERE}:\d+ in <lambda>: KeyError: 'caption'"
    with pytest.raises(DataError, match=message):
        list(hostmesh.Loader(source, batch_size=8, collate=caption, epochs=1))
    message = rf"step 0: \w+: collate at {HERE}:\d+ in clash: ZeroDivisionError: "  # alone each of them is fine
    with pytest.raises(DataError, match=message):
        next(hostmesh.Loader(Records(40, lambda index: {"id": index}), batch_size=8, collate=clash))


def test_text_reaches_no_device() -> None:
    with pytest.raises(DataError, match="name has dtype object, .* drop or encode it in `map`"):
        next(hostmesh.Loader(Records(40, lambda index: {"name": f"row {index}"}), batch_size=8))


def test_numbers_a_device_would_cut_off_are_refused() -> None:
    source = {"id": np.arange(40) + (1 << 40)}
    with pytest.raises(DataError, match="int32 cannot hold"):
        next(hostmesh.Loader(source, batch_size=8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loading": "per_host"}, "loading wants one of per_process, per_device, global, reshard; found 'per_host'"),
        ({"tail": "keep"}, "tail wants one of carry, pad, drop; found 'keep'"),
        ({"epochs": 0}, "epochs wants an integer of 1 or more, found 0"),
        ({"steps": 1.5}, "steps wants an integer of 1 or more, found 1.5"),
        ({"batch_size": 0}, "batch_size wants an integer of 1 or more, found 0"),
        ({"prefetch": -1}, "prefetch wants a number of batches, 0 or more; found -1"),
        ({"mesh": "data"}, "mesh wants a Mesh, a Sharding or a tree of Shardings; found 'data'"),
        ({"spec": {"id": P("data")}}, "the tree of specs does not fit rows with the fields id, image"),
        ({"spec": P("data", None)}, "id: .*wants at least 2 axes, found 1"),
    ],
)
def test_a_wrong_argument_is_told_beside_what_was_wanted(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        next(hostmesh.Loader(numbered(40), **{"batch_size": 8, **options}))


# State.


@pytest.mark.parametrize(("prefetch", "device_prefetch"), TIERS)
def test_state_counts_what_was_delivered_not_what_was_read_ahead(prefetch: int, device_prefetch: int) -> None:
    options: Any = {"batch_size": 8, "epochs": 3, "prefetch": prefetch, "device_prefetch": device_prefetch}
    whole = ids_of(hostmesh.Loader(numbered(40), **options))
    loader = hostmesh.Loader(numbered(40), **options)
    for _ in range(4):
        next(loader)
    again = hostmesh.Loader(numbered(40), **options)
    again.restore(loader.state())
    assert loader.state() == 4
    assert ids_of(again) == whole[4:]
    again.restore(2)
    assert ids_of(again) == whole[2:]
    again.restore(3)
    next(again)
    again.restore(9)  # while it reads ahead
    assert ids_of(again) == whole[9:]


@pytest.mark.parametrize(("prefetch", "device_prefetch"), TIERS)
def test_a_finished_loader_begins_again(prefetch: int, device_prefetch: int) -> None:
    options: Any = {"prefetch": prefetch, "device_prefetch": device_prefetch}
    loader = hostmesh.Loader("digits:test", batch_size=128, epochs=1, tail="pad", **options)
    for _ in range(3):
        assert sum(int(batch["mask"].sum()) for batch in loader) == 360
        assert loader.state() == loader.step == len(loader) == 3
        assert next(loader, None) is None  # as of every iterator: over until it is begun anew
    whole = ids_of(hostmesh.Loader(numbered(40), batch_size=8, epochs=1))
    loader = hostmesh.Loader(numbered(40), batch_size=8, epochs=1, **options)
    assert ids_of(loader) == ids_of(loader) == whole
    next(iter(loader))
    assert ids_of(loader) == whole[1:]  # left amid a pass it goes on


def test_a_loader_restored_at_its_end_gives_nothing_more_at_first() -> None:
    """A run that had finished must not train again because it was started again."""
    loader = hostmesh.Loader(numbered(40), batch_size=8, epochs=1)
    loader.restore(5)
    assert ids_of(loader) == [] and loader.state() == 5
    assert len(ids_of(loader)) == 5


def test_a_state_beyond_the_end_is_refused() -> None:
    loader = hostmesh.Loader(numbered(40), batch_size=8, epochs=1)
    for state in (6, -1, 2.0, True):
        with pytest.raises(DataError, match="from 0 to 5, found"):
            loader.restore(state)  # type: ignore[arg-type]


def test_an_endless_loader_has_no_length() -> None:
    loader = hostmesh.Loader(numbered(40), batch_size=8)
    with pytest.raises(TypeError, match="no end"):
        len(loader)
    assert len(hostmesh.Loader(numbered(40), batch_size=8, steps=7)) == 7


# Reading ahead.


class Counting:
    """Counts reads, and can be held up."""

    name = "counting"

    def __init__(self) -> None:
        self.reads = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.changed = threading.Condition()

    def __len__(self) -> int:
        return 1000

    def read(self, ids: Any) -> Any:
        self.go_on.wait(20)
        with self.changed:
            self.reads += 1
            self.changed.notify_all()
        return {"id": ids}

    def records(self, ids: Any) -> Any:
        return [{"id": record} for record in ids]

    def await_reads(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.reads >= count, 20), self.reads


@pytest.mark.parametrize(("prefetch", "device_prefetch", "bound"), [(0, 0, 1), (2, 0, 3), (2, 2, 5), (0, 2, 3)])
def test_read_ahead_is_bounded(prefetch: int, device_prefetch: int, bound: int) -> None:
    source = Counting()
    loader = hostmesh.Loader(source, batch_size=8, prefetch=prefetch, device_prefetch=device_prefetch)
    next(loader)
    source.await_reads(bound)
    time.sleep(0.1)  # nothing to await: it must not read on
    assert source.reads == bound
    loader.close()


def test_a_delivered_batch_is_held_by_nobody_else() -> None:
    loader = hostmesh.Loader(numbered(400), batch_size=8, prefetch=2, device_prefetch=2)
    for _ in range(5):
        batch = next(loader)
        held = weakref.ref(batch["image"])
        del batch
        gc.collect()
        assert held() is None


@pytest.mark.parametrize("pixels", [6, 4096])  # the larger ones lie in memory that a CPU device shares with NumPy
@pytest.mark.parametrize(("prefetch", "device_prefetch"), TIERS)
def test_a_batch_may_be_donated(prefetch: int, device_prefetch: int, pixels: int) -> None:
    add = jax.jit(lambda batch: {"id": batch["id"], "image": batch["image"] + 1}, donate_argnums=0)
    image = np.random.default_rng(0).random((80, pixels)).astype(np.float32)
    source = {"id": np.arange(80), "image": image.copy()}
    loader = hostmesh.Loader(source, batch_size=8, epochs=2, prefetch=prefetch, device_prefetch=device_prefetch)
    kept = [add(batch) for batch in loader]
    for out in kept:
        assert np.array_equal(out["image"], image[np.asarray(out["id"])] + 1)
    assert np.array_equal(source["image"], image)


@pytest.mark.parametrize(("prefetch", "device_prefetch"), TIERS)
def test_a_map_may_write_every_batch_into_the_same_buffer(prefetch: int, device_prefetch: int) -> None:
    raw = np.empty(8 * 4096 * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64  # where a CPU device would share it
    buffer = raw[start : start + 8 * 4096 * 4].view(np.float32).reshape(8, 4096)

    def fill(block: Any) -> Any:
        np.copyto(buffer, block["id"][:, None])
        return {"id": block["id"], "image": buffer}

    options: Any = {"batch_size": 8, "epochs": 2, "prefetch": prefetch, "device_prefetch": device_prefetch}
    for batch in list(hostmesh.Loader({"id": np.arange(80)}, map=fill, **options)):
        assert np.array_equal(batch["image"], np.broadcast_to(np.asarray(batch["id"])[:, None], (8, 4096)))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_shares_no_memory_with_its_source(shuffle: bool) -> None:
    image = np.random.default_rng(0).random((80, 4096)).astype(np.float32)
    source = {"id": np.arange(80), "image": image.copy()}
    batches = list(hostmesh.Loader(source, batch_size=40, epochs=1, shuffle=shuffle))
    source["image"][:] = 0
    for batch in batches:
        assert np.array_equal(batch["image"], image[np.asarray(batch["id"])])


def test_a_dropped_loader_leaves_no_thread() -> None:
    def use() -> None:
        loader = hostmesh.Loader(numbered(400), batch_size=8, loading="per_device")
        next(loader)
        assert loader_threads()

    use()
    gc.collect()
    deadline = time.monotonic() + 20
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader_threads() == []


@pytest.mark.parametrize("step_time", [0.002, 0.0])  # the thread reads ahead, or rests and lets the loop do it
@pytest.mark.parametrize("fails_at", [0, 40])
def test_a_loader_that_failed_leaves_no_thread(fails_at: int, step_time: float) -> None:
    def make(index: int) -> Any:
        if index == fails_at * 8:
            raise OSError("bad sector")
        return {"id": index}

    def use() -> None:
        source = Records(400, lambda index: {"id": index})
        loader = hostmesh.Loader(source, batch_size=8, shuffle=False)
        source.make = make
        with pytest.raises(DataError, match="bad sector"):
            for _ in loader:
                time.sleep(step_time)

    before = loader_threads()
    use()
    gc.collect()
    deadline = time.monotonic() + 20
    while loader_threads() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert loader_threads() == before


def test_the_end_of_a_loader_leaves_no_thread() -> None:
    before = loader_threads()
    list(hostmesh.Loader(numbered(40), batch_size=8, epochs=1))
    assert loader_threads() == before


def test_waiting_for_input_is_counted() -> None:
    source = Counting()
    loader = hostmesh.Loader(source, batch_size=8)
    source.go_on.clear()
    threading.Timer(0.2, source.go_on.set).start()
    next(loader)
    assert loader.waited >= 0.15
    loader.close()
