"""A mixture as a string: `mix:digits:train=0.7,npz:PATH=0.3`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hostmesh.worker.errors import DataError
from hostmesh.worker.mixing.mixture import Mixture, mix

SCHEME = "mix:"
HOW = "wanted SPEC=WEIGHT,SPEC=WEIGHT, as in digits:train=0.7"
# The spec of a part, which may hold commas and equal signs of its own, up to a weight that ends the part.
PART = re.compile(r"(.+?)=([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)(?:,|$)")


def open_mixture(text: str) -> Mixture:
    rest, weights = text.removeprefix(SCHEME), {}
    at = 0
    while at < len(rest):
        found = PART.match(rest, at)
        if found is None:
            raise DataError(f"{text}: {HOW}; found {rest[at:]!r}, without a weight that is a number")
        spec, weight = found.groups()
        if spec in weights:
            raise DataError(f"{text}: the part {spec} is given twice; wanted one weight for each")
        weights[spec] = _read_number(text, weight)
        at = found.end()
    try:
        return mix(weights)
    except DataError as error:
        raise DataError(f"{text}: {error}{_ask_for_weight(weights)}") from error


def _ask_for_weight(specs: Iterable[str]) -> str:
    """A spec may hold commas, so that a part without a weight is taken for the beginning of the next one's spec."""
    for spec in specs:
        if "," in spec:
            return f"; {HOW}: is the weight of {spec.partition(',')[0]} missing?"
    return ""


def _read_number(text: str, weight: str) -> float:
    try:
        return float(weight)
    except ValueError:
        raise DataError(f"{text}: a weight wants to be a number; found {weight!r}") from None
