"""The order of a mixture: exact in every window, the same by random access, and each part in epochs of its own."""

from __future__ import annotations

import pickle
import time
from fractions import Fraction

import numpy as np
import pytest

from hostmesh.worker.errors import DataError
from hostmesh.worker.mixing.interleaving import interleave
from hostmesh.worker.mixing.mixture_order import MixtureOrder, derive_seed
from hostmesh.worker.mixing.weights import MAX_PERIOD, count_by_weight, read_weights
from hostmesh.worker.ordering.order import BLOCK, Order


def counts_of(*weights: float) -> tuple[int, ...]:
    return count_by_weight(read_weights({str(n): weight for n, weight in enumerate(weights)}))


def parts_of(order: MixtureOrder, ids: np.ndarray) -> np.ndarray:
    return np.searchsorted(order.starts, ids, "right") - 1


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ((0.7, 0.3), (7, 3)),
        ((7, 3), (7, 3)),
        ((1 / 3, 2 / 3), (1, 2)),
        ((0.1, 0.2, 0.3), (1, 2, 3)),
        ((Fraction(1, 7), Fraction(6, 7)), (1, 6)),
        ((np.float32(0.5), np.int64(1)), (1, 2)),
        ((5.0,), (1,)),
        ((1e-3, 0.999), (1, 999)),
    ],
)
def test_weights_are_taken_as_they_were_written(weights: tuple[float, ...], counts: tuple[int, ...]) -> None:
    assert counts_of(*weights) == counts


def test_weights_without_a_short_period_get_the_nearest_one() -> None:
    random = np.random.default_rng(1)
    for parts, error in ((2, 1e-8), (3, 1e-5), (20, 0.05)):
        weights = random.random(parts) + 0.05
        counts = np.array(counts_of(*weights.tolist()))
        assert counts.sum() <= MAX_PERIOD
        assert np.abs(counts / counts.sum() / (weights / weights.sum()) - 1).max() < error


def test_every_window_holds_each_part_by_its_weight() -> None:
    """After any number of positions within one record, so in any window within two."""
    random = np.random.default_rng(2)
    for trial in range(24):
        parts = int(random.integers(1, 12))
        weights = random.random(parts) ** 3 + 1e-3 if trial % 2 else random.integers(1, 50, parts).astype(float)
        counts = np.array(counts_of(*weights.tolist()))
        period = interleave(tuple(counts.tolist()))
        assert np.array_equal(np.bincount(period.parts), counts)
        reached = np.cumsum(period.parts[:, None] == np.arange(parts), axis=0)
        wanted = np.arange(1, len(period.parts) + 1)[:, None] * counts / counts.sum()
        assert np.abs(reached - wanted).max() < 1
        for start in random.integers(0, 10**12, 3).tolist():  # far behind the first period, over any number of them
            stop = start + int(random.integers(1, 5 * counts.sum()))
            drawn = np.subtract(period.count_before(stop), period.count_before(start))
            assert drawn.sum() == stop - start
            assert np.abs(drawn - (stop - start) * counts / counts.sum()).max() < 2


def test_random_access_gives_what_reading_in_order_gives() -> None:
    order = MixtureOrder((1000, 37, 5), counts_of(0.61, 0.3, 0.09), seed=5)
    end = 3 * BLOCK
    whole = order.ids(0, end)
    random = np.random.default_rng(3)
    for start in [0, BLOCK - 1, BLOCK, *random.integers(0, end - 300, 50).tolist()]:
        stop = start + int(random.integers(0, 300))
        assert np.array_equal(MixtureOrder(order.lengths, order.counts, 5).ids(start, stop), whole[start:stop])
    assert np.array_equal(pickle.loads(pickle.dumps(order)).ids(7, 99), whole[7:99])
    assert len(pickle.dumps(order)) < 500  # without the blocks that it keeps


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_part_comes_in_epochs_of_its_own(shuffle: bool) -> None:
    """By hand: the n-th record of a part is the n-th of its own order, and each of its epochs is a permutation."""
    order = MixtureOrder((500, 60, 7), counts_of(0.5, 0.3, 0.2), seed=9, shuffle=shuffle)
    ids = order.ids(0, 40_000)
    parts = parts_of(order, ids)
    for part, length in enumerate(order.lengths):
        own = ids[parts == part] - order.starts[part]
        assert np.array_equal(own, Order(length, derive_seed(9, part), shuffle).ids(0, len(own)))
        epochs = own[: len(own) // length * length].reshape(-1, length)
        assert len(epochs) > 30 and (np.sort(epochs, axis=1) == np.arange(length)).all()
        assert not shuffle or len(np.unique(epochs[:30], axis=0)) == 30  # another order in each


# These never change: a saved position means a record only together with the order it was counted in.
PINNED = [
    (MixtureOrder((10, 4), (7, 3)), 0, [9, 8, 10, 6, 2, 13, 4, 5]),
    (MixtureOrder((1797, 60_000, 5), (5, 3, 2), seed=42), 10**9, [263, 45215, 1491, 61801, 916, 39351, 988, 33469]),
    (
        MixtureOrder((100, 100), counts_of(2**0.5, 1.0), seed=-1, shuffle=False),
        65_000,
        [76, 124, 77, 78, 125, 79, 126, 80],
    ),
]


def test_orders_are_pinned() -> None:
    assert [order.ids(start, start + 8).tolist() for order, start, _ in PINNED] == [ids for _, _, ids in PINNED]


def test_ids_of_three_parts_cost_little_more_than_those_of_one() -> None:
    """The best of several trials each: about as much as one order, so three times leaves room for a busy machine."""
    one, three = Order(600_000, 7), MixtureOrder((300_000, 200_000, 100_000), (5, 3, 2), 7)

    def measure(order: Order | MixtureOrder, trial: int) -> float:
        began = time.process_time()
        for n in range(trial * 32, trial * 32 + 32):
            order.ids(n * 4096, (n + 1) * 4096)
        return time.process_time() - began

    assert min(measure(three, trial) for trial in range(8)) < 3 * min(measure(one, trial) for trial in range(8))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({}, "a mixture wants weights by name, as in .*; found {}"),
        ([0.5, 0.5], "a mixture wants weights by name, .* found \\[0.5, 0.5\\]"),
        ({"a": 1, "b": -0.5}, "the weight of b wants a number from 0 on; found -0.5"),
        ({"a": float("nan")}, "the weight of a wants a number from 0 on; found nan"),
        ({"a": float("inf")}, "the weight of a wants a number from 0 on; found inf"),
        ({"a": "0.7"}, "the weight of a wants a number from 0 on; found '0.7'"),
        ({"a": True}, "the weight of a wants a number from 0 on; found True"),
        ({"a": 0, "b": 0.0}, "at least one weight above 0; found a, b with 0"),
        ({"a": 1, "b": 1e-7}, "the weight of b wants at least 1/65,536 of all weights, or 0; found 1e-07 of them"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: dict[str, float], said: str) -> None:
    with pytest.raises(DataError, match=said):
        count_by_weight(read_weights(weights))
