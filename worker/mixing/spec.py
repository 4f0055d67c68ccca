"""A mixture as a string: `mix:digits:train=0.7,npz:PATH=0.3`."""

from __future__ import annotations

import re

from hostmesh.worker.errors import DataError
from hostmesh.worker.mixing.mixture import Mixture, mix

SCHEME = "mix:"
# The spec of a part, which may hold commas and equal signs of its own, up to a weight that ends the part.
PART = re.compile(r"(.+?)=([0-9.]+(?:e-?[0-9]+)?)(?:,|$)")


def open_mixture(text: str) -> Mixture:
    rest, weights = text.removeprefix(SCHEME), {}
    at = 0
    while at < len(rest):
        found = PART.match(rest, at)
        if found is None:
            raise DataError(f"{text}: wanted SPEC=WEIGHT,SPEC=WEIGHT, as in digits:train=0.7; found {rest[at:]!r}")
        spec, weight = found.groups()
        if spec in weights:
            raise DataError(f"{text}: the part {spec} is given twice; wanted one weight for each")
        weights[spec] = _read_number(text, weight)
        at = found.end()
    return mix(weights)


def _read_number(text: str, weight: str) -> float:
    try:
        return float(weight)
    except ValueError:
        raise DataError(f"{text}: a weight wants to be a number; found {weight!r}") from None
