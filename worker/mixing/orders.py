"""Which ids the records of any source have, and in which order they come: a mixture has an order of its own."""

from __future__ import annotations

from collections.abc import Callable

from hostmesh.worker.mixing.mixture_order import AnyOrder
from hostmesh.worker.ordering.order import Order
from hostmesh.worker.sources.base import Source


def make_order(source: Source, seed: int, shuffle: bool) -> AnyOrder:
    """The source's own order, where it has one, as a mixture does."""
    own: Callable[[int, bool], AnyOrder] | None = getattr(source, "make_order", None)
    return Order(len(source), seed, shuffle) if own is None else own(seed, shuffle)


def count_ids(source: Source) -> int:
    """Ids are below this number. The length of a mixture is that of its epoch, and its ids number all of its parts."""
    return int(getattr(source, "numbers", len(source))) if hasattr(source, "make_order") else len(source)
