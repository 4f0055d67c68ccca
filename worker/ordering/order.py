"""(seed, epoch, position) -> record id: every epoch a permutation of all records, computed where it is read."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

# NumPy's cost per call is that of thousands of ids: positions are computed in blocks, and reads are slices of blocks.
BLOCK = 1 << 15
BLOCKS_KEPT = 8
FEW_EPOCHS = 8
END = 1 << 62

# A change of any of these, or of the arithmetic below, changes every order: saved positions would lose their meaning.
ROUNDS = 8
MIN_BITS = 6  # with halves of fewer than three bits some permutations of a few records come up too rarely
PURPOSE = b"hostmesh order 1"
STRIDE = np.uint64(0x9E3779B97F4A7C15)
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
HALF_WORD = np.uint64(32)


@dataclass(frozen=True)
class Order:
    """Which record stands at the global positions 0, 1, 2, …: in every epoch each of `length` records once.

    With `shuffle` every epoch has another order, which depends on the seed and the epoch only.
    """

    length: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", _whole("length", self.length))
        object.__setattr__(self, "seed", _whole("seed", self.seed))
        if not 1 <= self.length <= END:
            raise ValueError(f"an order wants a length from 1 to 2**62, found {self.length}")

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """The record ids at positions start to stop; position p is at offset p % length of epoch p // length."""
        return slice_blocks(lambda number: _block(self, number), start, stop)

    def compute(self, start: int, stop: int) -> NDArray[np.int64]:
        """The same as `ids`, computed anew: for who reads long stretches once, and keeps what it made of them."""
        epoch, offset = divmod(start, self.length)
        nth, offsets = np.divmod(np.arange(offset, offset + stop - start, dtype=np.uint64), np.uint64(self.length))
        if self.shuffle and len(nth):
            keys = _keys(self.seed, epoch, int(nth[-1]) + 1)
            offsets = _shuffled_by_epoch(offsets, self.length, keys, nth)
        return offsets.view(np.int64)


def slice_blocks(block: Callable[[int], NDArray[np.int64]], start: int, stop: int) -> NDArray[np.int64]:
    """Positions start to stop, where `block(n)` has those from n * BLOCK on; a copy."""
    start, stop = _whole("start", start), _whole("stop", stop)
    if not 0 <= start <= stop <= END:
        raise ValueError(f"positions want 0 <= start <= stop <= 2**62, found start {start} and stop {stop}")
    first_block = start // BLOCK
    if stop <= (first_block + 1) * BLOCK:
        return block(first_block)[start - first_block * BLOCK : stop - first_block * BLOCK].copy()
    ids = np.empty(stop - start, np.int64)
    for number, first, last in _blocks(start, stop):
        base = number * BLOCK
        ids[first - start : last - start] = block(number)[first - base : last - base]
    return ids


def _whole(name: str, value: SupportsIndex) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} wants an integer, found {value!r} ({type(value).__name__})")
    return operator.index(value)


def _blocks(start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The blocks that positions start to stop lie in, each with the first and last of those positions in it."""
    while start < stop:
        number = start // BLOCK
        last = min(stop, (number + 1) * BLOCK)
        yield number, start, last
        start = last


@lru_cache(BLOCKS_KEPT)
def _block(order: Order, number: int) -> NDArray[np.int64]:
    return order.compute(number * BLOCK, (number + 1) * BLOCK)


def _shuffled_by_epoch(offsets: Words, length: int, keys: Words, nth: Words) -> Words:
    """A few epochs one by one, with a key each; many at once, with a column of keys for each offset: that is slower."""
    epochs = keys.shape[1]
    if epochs > FEW_EPOCHS:
        return _shuffled(offsets, length, keys, nth)
    cuts = np.searchsorted(nth, np.arange(1, epochs))
    parts = [_shuffled(part, length, keys[:, n : n + 1], nth) for n, part in enumerate(np.split(offsets, cuts))]
    return np.concatenate(parts)


def _keys(seed: int, epoch: int, epochs: int) -> Words:
    """One key for each round, and a column for each epoch."""
    digits = seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True)
    digest = hashlib.blake2b(digits, digest_size=8 * ROUNDS, person=PURPOSE).digest()
    of_rounds = np.frombuffer(digest, "<u8").astype(np.uint64)[:, None]
    of_epochs = np.arange(epoch, epoch + epochs, dtype=np.uint64) * STRIDE
    return mix_words(of_rounds + of_epochs)


def mix_words(words: Words) -> Words:
    """The output function of SplitMix64: a bijection in which each bit of a word depends on all of them."""
    words = words ^ (words >> SHIFTS[0])
    words *= FACTORS[0]
    words ^= words >> SHIFTS[1]
    words *= FACTORS[1]
    words ^= words >> SHIFTS[2]
    return words


def _shuffled(offsets: Words, length: int, keys: Words, nth: Words) -> Words:
    """Permutes numbers below a power of two. What lands beyond the length is permuted again until it lands below."""
    bits = max(MIN_BITS, (length - 1).bit_length())
    one_epoch = keys.shape[1] == 1
    ids = _permuted(offsets, bits, keys if one_epoch else keys[:, nth])
    outside = np.flatnonzero(ids >= length)
    while outside.size:
        ids[outside] = _permuted(ids[outside], bits, keys if one_epoch else keys[:, nth[outside]])
        outside = outside[ids[outside] >= length]
    return ids


def _permuted(offsets: Words, bits: int, keys: Words) -> Words:
    """A Feistel network on numbers of that many bits: each half in turn is changed by a hash of the other."""
    low_bits = bits // 2
    low = offsets & np.uint64((1 << low_bits) - 1)
    high = offsets >> np.uint64(low_bits)
    for high_key, low_key in zip(keys[::2], keys[1::2], strict=True):
        high ^= _hashed(low, high_key, bits - low_bits)
        low ^= _hashed(high, low_key, low_bits)
    return (high << np.uint64(low_bits)) | low


def _hashed(half: Words, key: Words, bits: int) -> Words:
    words = half + key
    words *= FACTORS[0]
    words ^= words >> HALF_WORD
    words *= FACTORS[1]
    words >>= np.uint64(64 - bits)
    return words
