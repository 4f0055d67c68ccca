"""Sources mixed by weight: one order over all of them, exact in every window."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NoReturn

from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.choices import as_count
from hostmesh.worker.loading.rows import Block, Record
from hostmesh.worker.mixing.interleaving import interleave
from hostmesh.worker.mixing.joined import Joined, Parts, open_part
from hostmesh.worker.mixing.mixture_order import MixtureOrder
from hostmesh.worker.mixing.views import Mapped
from hostmesh.worker.mixing.weights import count_by_weight, read_weights
from hostmesh.worker.process.words import list_some
from hostmesh.worker.sources.base import Source
from hostmesh.worker.specs.spec import unknown
from hostmesh.worker.verify.fingerprint import describe_source

FIRST, ALL = "first", "all"
MIXTURE = "a mixture"


class Mixture(Joined):
    """What `mix` makes, for a `Loader`. Its length is that of one epoch, by `stop`.

    Its records are numbered through all parts, in the order in which they were given: `locate` says which is whose.
    """

    def __init__(self, sources: Mapping[str, Source], counts: tuple[int, ...], stop: str | int) -> None:
        """Part i comes `counts[i]` times in every period."""
        self.parts, self.counts, self.stop = Parts(sources, MIXTURE), counts, stop
        self._length = _find_length(self.parts.lengths, counts, stop)
        self.name = f"mix({list_some([f'{name}={w}' for name, w in self.weights.items()], 4, ', ', ' ')})"

    @property
    def weights(self) -> dict[str, Fraction]:
        """The share of each part, exactly as it is drawn."""
        period = sum(self.counts)
        return {name: Fraction(count, period) for name, count in zip(self.parts.names, self.counts, strict=True)}

    def __len__(self) -> int:
        """Records in an epoch."""
        return self._length

    @property
    def numbers(self) -> int:
        """How many records there are in all parts: ids are below this number."""
        return self.parts.count

    def make_order(self, seed: int, shuffle: bool) -> MixtureOrder:
        return MixtureOrder(self.parts.lengths, self.counts, seed, shuffle)

    def map(self, function: Callable[[Block], Block]) -> Mixture:
        """The same mixture of parts whose rows are changed: `function(block)` gets rows of one part."""
        return Mixture({name: Mapped(source, function) for name, source in self._named()}, self.counts, self.stop)

    def take(self, count: int) -> NoReturn:
        self._refuse("take")

    def skip(self, count: int) -> NoReturn:
        self._refuse("skip")

    def filter(self, predicate: Callable[[Record], bool]) -> NoReturn:
        self._refuse("filter")

    def _refuse(self, what: str) -> NoReturn:
        others = "; an epoch of so many records is stop=" if what == "take" else ""
        raise DataError(
            f"{what} wants records by number; found {self.name}, which has an order of its own: {what} of each part,"
            f" and mix what is left{others}"
        )

    def describe_data(self) -> dict[str, Any]:
        """What tells this mixture from others, part by part."""
        described = {name: describe_source(source) for name, source in self._named()}
        contents = [part["content"] for part in described.values()]
        is_known = any(content != "varies" for content in contents)
        return {
            "records": len(self),
            "content": f"{zlib.crc32(' '.join(contents).encode()):08x}" if is_known else "varies",
            "parts": ", ".join(self.parts.names),
            "stop": self.stop,
            **{f"weight of {name}": str(weight) for name, weight in self.weights.items()},
            **{f"{key} of {name}": value for name, part in described.items() for key, value in part.items()},
        }


def mix(
    weights: Mapping[str, float | Fraction], *, sources: Mapping[str, Any] | None = None, stop: str | int = FIRST
) -> Mixture:
    """Sources mixed by weight, for a `Loader`: `mix({"web": 0.7, "code": 0.3}, sources={"web": …, "code": …})`.

    - `weights` are relative. After any number of records each part has been drawn within one record of its share. Where
      `sources` is not given the names are themselves spec strings.
    - Each part has epochs of its own: it is shuffled anew when all its records have come, and each comes once in them.
    - `stop`: when an epoch of the mixture ends. `"first"`: when the first part has been used up; `"all"`: when every
      part has been; or a number of records. The next epoch goes on with every part where the one before ended.
    """
    shares = read_weights(weights)
    stop = _check_stop(stop)
    given: Mapping[str, Any] = {name: name for name in weights} if sources is None else sources
    _check_names(weights, given)
    counts = count_by_weight(shares)
    return Mixture({name: open_part(MIXTURE, name, given[name]) for name in shares}, counts, stop)


def _check_stop(stop: Any) -> str | int:
    found = stop if isinstance(stop, str) and stop in (FIRST, ALL) else as_count(stop)
    if found is None:
        raise DataError(f"stop wants 'first', 'all' or a number of records above 0; found {stop!r}")
    return found


def _check_names(weights: Mapping[str, Any], sources: Any) -> None:
    if not isinstance(sources, Mapping):
        raise DataError(f"the sources of a mixture want names, as the weights have; found {type(sources).__name__}")
    for name in weights:
        if name not in sources:
            what = unknown("source", str(name), map(str, sources))
            raise DataError(f"the weights of a mixture name what is not among its sources: {what}")
    for name in sources:
        if name not in weights:
            what = unknown("weight", str(name), map(str, weights))
            raise DataError(f"the sources of a mixture name what has no weight: {what}")


def _find_length(lengths: tuple[int, ...], counts: tuple[int, ...], stop: str | int) -> int:
    """Positions until the first part, or the last one, has been passed once."""
    if isinstance(stop, int):
        return stop
    period = interleave(counts)
    ends = [period.place_of(part, length - 1) + 1 for part, length in enumerate(lengths)]
    return min(ends) if stop == FIRST else max(ends)
