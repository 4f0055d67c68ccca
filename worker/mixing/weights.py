"""Relative weights -> how often each part comes in a period; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError

# The longest period. A part with a smaller share than one of that many cannot be in it.
MAX_PERIOD = 1 << 16
# Periods that are tried at once, which bounds the memory for a mixture of many parts.
TRIED_AT_ONCE = 1 << 10


def read_weights(weights: Mapping[str, object]) -> dict[str, Fraction]:
    """Those above 0, as they were written: 0.7 is 7/10, and 1/3 in floating point is a third."""
    if not isinstance(weights, Mapping) or not weights:
        raise DataError(f"a mixture wants weights by name, as in {{'web': 0.7, 'code': 0.3}}; found {weights!r}")
    found = {name: _read_weight(name, weight) for name, weight in weights.items()}
    if not any(found.values()):
        raise DataError(f"a mixture wants at least one weight above 0; found {', '.join(weights)} with 0")
    return {name: weight for name, weight in found.items() if weight}


def _read_weight(name: str, weight: Any) -> Fraction:
    is_number = isinstance(weight, (int, float, Fraction, np.integer, np.floating)) and not isinstance(weight, bool)
    if not is_number or not math.isfinite(weight) or weight < 0:
        raise DataError(f"the weight of {name} wants a number from 0 on; found {weight!r}")
    if not isinstance(weight, (float, np.floating)):
        return Fraction(weight if isinstance(weight, Fraction) else int(weight))
    simple = Fraction(float(weight)).limit_denominator(MAX_PERIOD)
    return simple if float(simple) == float(weight) else Fraction(str(float(weight)))


def count_by_weight(weights: Mapping[str, Fraction]) -> tuple[int, ...]:
    """How often each part comes in the shortest period that has exactly these weights.

    Weights that no period of at most 65,536 has are replaced by those of the period that comes nearest to them: in
    which the largest relative error of a weight is the smallest.
    """
    total = sum(weights.values())
    shares = [weight / total for weight in weights.values()]
    for name, share in zip(weights, shares, strict=True):
        if share * MAX_PERIOD < 1:
            wanted = f"wants at least 1/{MAX_PERIOD:,} of all weights, or 0"
            raise DataError(f"the weight of {name} {wanted}; found {float(share):g} of them")
    period = math.lcm(*(share.denominator for share in shares))
    if period <= MAX_PERIOD:
        return tuple(int(share * period) for share in shares)
    return _nearest_counts(np.array([float(share) for share in shares]))


def _nearest_counts(shares: NDArray[np.float64]) -> tuple[int, ...]:
    least, counts = math.inf, np.ones(len(shares))
    for first in range(1, MAX_PERIOD + 1, TRIED_AT_ONCE):
        sizes = np.arange(first, first + TRIED_AT_ONCE)
        tried = np.maximum(np.rint(sizes[:, None] * shares), 1)
        periods = tried.sum(axis=1, keepdims=True)
        errors = np.abs(tried / periods / shares - 1).max(axis=1)
        errors[periods[:, 0] > MAX_PERIOD] = math.inf
        nearest = int(errors.argmin())
        if errors[nearest] < least:
            least, counts = float(errors[nearest]), tried[nearest]
    return tuple(int(count) for count in counts)
