"""Promise 5: the order of the records is a pure function of seed and position, and each epoch a permutation."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hostmesh.worker.ordering.order import BLOCK, Order

LENGTHS = [*range(1, 301), 509, 997, 1023, 1024, 1025, 65_535, 65_536, 65_537, 100_003]
TRILLION = 10**12


def epoch(order: Order, number: int) -> np.ndarray:
    return order.ids(number * order.length, (number + 1) * order.length)


def standard_score(counts: np.ndarray, expected: float) -> float:
    """How many standard deviations the chi-square of these counts lies from that of an even spread."""
    freedom = counts.size - 1
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.slow
def test_every_epoch_holds_every_record_once(shuffle: bool) -> None:
    for length in LENGTHS:
        order = Order(length, seed=length, shuffle=shuffle)
        for number in (0, 1, 7):
            ids = epoch(order, number)
            assert ids.dtype == np.int64
            assert np.array_equal(np.sort(ids), np.arange(length)), (length, number)


@pytest.mark.parametrize("length", [10**6 + 3, 2**31 + 1, TRILLION, 10**15, 2**62])
@pytest.mark.slow
def test_ids_of_a_long_epoch_lie_in_it_and_never_repeat(length: int) -> None:
    ids = Order(length, seed=1).ids(length // 3, length // 3 + 300_000)
    assert ids.min() >= 0 and ids.max() < length
    assert np.unique(ids).size == ids.size
    assert ids.max() > 0.9 * length and ids.min() < 0.1 * length


def test_without_shuffling_records_come_as_they_are() -> None:
    assert Order(5, shuffle=False).ids(3, 12).tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert Order(7, seed=9, shuffle=False).ids(2**62 - 3, 2**62).tolist() == [p % 7 for p in range(2**62 - 3, 2**62)]


# These never change: a saved position means a record only together with the order it was counted in.
PINNED = [
    (Order(10), 0, [5, 0, 6, 3, 4, 8, 1, 7]),
    (Order(10, seed=1), 25, [1, 2, 9, 8, 7, 4, 7, 0]),
    (Order(1797, seed=0), 0, [1762, 918, 3, 61, 1775, 899, 750, 476]),
    (Order(60_000, seed=42), 60_000 * 3, [9502, 4576, 27900, 17970, 11708, 19151, 43891, 56258]),
    (Order(1_281_167, seed=-1), 65_530, [1114318, 98538, 1270355, 69042, 928418, 75059, 1243801, 1188840]),
    (
        Order(TRILLION, seed=2**100),
        5 * TRILLION + 7,
        [124423676261, 664985875489, 449929751834, 836680379802, 936905571150, 301604978851, 707272984876, 61279611680],
    ),
    (
        Order(10**15, seed=7),
        2**62 - 8,
        [
            144830202868553,
            211386340228242,
            180770137199554,
            426083538402442,
            980930370920845,
            45761252461163,
            694965188754061,
            572613283973344,
        ],
    ),
]


@pytest.mark.parametrize(("order", "start", "wanted"), PINNED)
def test_orders_stay_the_same_in_every_version(order: Order, start: int, wanted: list[int]) -> None:
    assert order.ids(start, start + 8).tolist() == wanted


def test_any_slice_is_the_same_slice_of_the_whole() -> None:
    order = Order(1000, seed=3)
    whole = order.ids(0, 3 * BLOCK)
    bounds = np.random.default_rng(0).integers(0, 3 * BLOCK, (200, 2))
    edges = [(0, 0), (5, 5), (999, 1001), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (1, 3 * BLOCK)]
    for start, stop in [*np.sort(bounds), *edges]:
        assert np.array_equal(order.ids(start, stop), whole[start:stop]), (start, stop)


def test_single_reads_far_apart_equal_the_walk_through() -> None:
    order = Order(BLOCK // 2 + 11, seed=8)
    positions = np.random.default_rng(1).integers(0, 40 * BLOCK, 100)
    singles = [int(order.ids(p, p + 1)[0]) for p in positions]
    assert singles == order.ids(0, 40 * BLOCK)[positions].tolist()


def test_a_span_over_epochs_is_their_ends_joined() -> None:
    order = Order(100_003, seed=4)
    assert np.array_equal(order.ids(0, 3 * order.length), np.concatenate([epoch(order, k) for k in range(3)]))


def test_the_epochs_of_a_block_are_those_read_one_by_one() -> None:
    order = Order(3, seed=4)
    far = 2**62 - 3 * 100
    assert order.ids(far, 2**62).tolist() == [int(order.ids(p, p + 1)[0]) for p in range(far, 2**62)]
    assert len({tuple(row) for row in order.ids(0, 3000).reshape(-1, 3).tolist()}) == 6


def test_what_a_caller_writes_into_an_answer_stays_with_the_caller() -> None:
    order = Order(1000, seed=6)
    first = order.ids(10, 20)
    kept = first.copy()
    first[:] = -1
    assert np.array_equal(order.ids(10, 20), kept)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [
        epoch(Order(1000, seed), number) for seed in (0, 1, -1, 2, 255, -256, 2**64, 2**64 + 1) for number in range(4)
    ]
    shared = [np.count_nonzero(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(shared) < 10 and 0.7 < np.mean(shared) < 1.3


def test_lengths_that_differ_by_one_are_orders_of_their_own_records_only() -> None:
    assert epoch(Order(999, 1), 0).max() == 998
    assert epoch(Order(1000, 1), 0).max() == 999


@pytest.mark.parametrize("length", [17, 64, 100, 1000, 1024, 1025])
@pytest.mark.slow
def test_each_place_gets_each_record_equally_often(length: int) -> None:
    epochs, buckets = 2000, min(length, 32)
    ids = Order(length, seed=5).ids(0, epochs * length).reshape(epochs, length)
    places = np.array_split(np.arange(length), buckets)
    table = np.array([np.bincount(ids[:, place].ravel(), minlength=length) / len(place) for place in places])
    variance = epochs / length * (1 - 1 / length) / np.mean([len(place) for place in places])
    assert abs(((table - epochs / length) ** 2).mean() / variance - 1) < 0.15


@pytest.mark.parametrize("length", [3, 4, 5, 6])
@pytest.mark.slow
def test_all_permutations_of_a_few_records_come_up_equally_often(length: int) -> None:
    epochs = 50_000
    ids = Order(length, seed=2).ids(0, epochs * length).reshape(epochs, length)
    _, counts = np.unique(ids, axis=0, return_counts=True)
    permutations = int(np.prod(np.arange(1, length + 1)))
    assert counts.size == permutations
    assert abs(standard_score(counts, epochs / permutations)) < 5


@pytest.mark.parametrize("length", [10**6, 2**20, TRILLION, 10**15])
def test_neighbours_are_strangers(length: int) -> None:
    ids = Order(length, seed=12).ids(0, 900_000)
    steps = np.diff(ids) % length
    assert abs(np.corrcoef(ids[:-1], ids[1:])[0, 1]) < 5 / ids.size**0.5
    counts = np.bincount((steps / length * 1000).astype(int), minlength=1000)
    assert abs(standard_score(counts, steps.size / 1000)) < 5


def test_records_move_a_third_of_the_way_on_average() -> None:
    length = 100_003
    moved = np.abs(epoch(Order(length, seed=13), 1) - np.arange(length)).mean() / length
    assert abs(moved - 1 / 3) < 0.005


def test_about_one_record_stays_in_its_place() -> None:
    length, epochs = 500, 2000
    fixed = np.count_nonzero(Order(length, seed=14).ids(0, length * epochs).reshape(epochs, -1) == np.arange(length))
    assert 0.9 < fixed / epochs < 1.1


def test_threads_get_the_same_answers() -> None:
    order = Order(12_345, seed=15)
    starts = np.random.default_rng(2).integers(0, 30 * BLOCK, 300).tolist()
    wanted = [order.ids(start, start + 256) for start in starts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda start: order.ids(start, start + 256), starts[::-1]))[::-1]
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_trillion_records_take_a_few_megabytes() -> None:
    tracemalloc.start()
    for start in range(0, 2**62, 2**58):
        Order(TRILLION, seed=16).ids(start, start + 256)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert len(pickle.dumps(Order(TRILLION))) < 300


def test_ids_come_by_the_millions() -> None:
    """About 30 million a second on one core of 2 GHz; slower machines are let off."""
    order, seconds = Order(TRILLION, seed=17), []
    for start in range(0, 3 << 30, 1 << 30):
        began = time.thread_time()
        order.ids(start, start + 16 * BLOCK)
        seconds.append(time.thread_time() - began)
    assert 16 * BLOCK / min(seconds) > 5e6


def test_small_reads_share_a_block() -> None:
    order = Order(TRILLION, seed=18)
    began = time.thread_time()
    for start in range(0, BLOCK, 64):
        order.ids(start, start + 64)
    assert (time.thread_time() - began) / (BLOCK / 64) < 100e-6


def test_integers_of_numpy_are_integers() -> None:
    assert Order(np.int32(10), seed=np.uint8(3)) == Order(10, seed=3)
    high = np.int32(2**31 - 5)
    assert np.array_equal(Order(10, 3).ids(high, np.int32(2**31 - 1)), Order(10, 3).ids(2**31 - 5, 2**31 - 1))


@pytest.mark.parametrize("wrong", [True, np.bool_(True), 1.0, "1", None])
def test_what_is_no_integer_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="length wants an integer, found"):
        Order(wrong)
    with pytest.raises(TypeError, match="seed wants an integer, found"):
        Order(10, seed=wrong)
    with pytest.raises(TypeError, match="start wants an integer, found"):
        Order(10).ids(wrong, 5)


@pytest.mark.parametrize("length", [0, -1, 2**62 + 1])
def test_an_impossible_length_is_refused_with_its_number(length: int) -> None:
    with pytest.raises(ValueError, match=rf"a length from 1 to 2\*\*62, found {length}"):
        Order(length)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (4, 3), (0, 2**62 + 1)])
def test_impossible_positions_are_refused_with_their_numbers(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=f"found start {start} and stop {stop}"):
        Order(10).ids(start, stop)
