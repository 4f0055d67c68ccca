"""What several parts together know of records that vary in length: how long they are, and pieces of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import as_data_error
from hostmesh.worker.loading.rows import Ids
from hostmesh.worker.sources.base import Source
from hostmesh.worker.text.lengths import by_field, known_lengths

Split = Callable[[Ids], Iterator[tuple[int, NDArray[np.int64], Ids]]]


class LengthsOfParts:
    """`lengths(ids, field)` over all parts; None for a field of which one of them does not know the lengths."""

    def __init__(self, sources: Sequence[Source], split: Split) -> None:
        self._sources, self._split = sources, split
        self._asked: dict[str | None, list[Callable[[Ids], NDArray[np.int64]]] | None] = {}

    @classmethod
    def of(cls, sources: Sequence[Source], split: Split) -> LengthsOfParts | None:
        """None where a part has no lengths of any field."""
        are_known = all(by_field(getattr(source, "lengths", None)) is not None for source in sources)
        return cls(sources, split) if are_known else None

    def __call__(self, ids: Ids, field: str | None = None) -> NDArray[np.int64] | None:
        asked = self._ask(field)
        if asked is None:
            return None
        found = np.empty(len(ids), np.int64)
        for part, rows, own in self._split(ids):
            found[rows] = asked[part](own)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what was asked."""
        return LengthsOfParts, (self._sources, self._split)

    def _ask(self, field: str | None) -> list[Callable[[Ids], NDArray[np.int64]]] | None:
        if field not in self._asked:
            found = [known_lengths(source, field) for source in self._sources]
            known = [ask for ask in found if ask is not None]
            self._asked[field] = known if len(known) == len(found) else None
        return self._asked[field]


def pieces_of_parts(
    sources: Sequence[Source],
    names: Sequence[str],
    split: Split,
    field: str,
    ids: Ids,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> list[NDArray[Any]] | None:
    """Of each record the tokens from a start to a stop. None where a part reads whole records only, or where parts have
    different dtypes, which are told when whole records are read."""
    asked = [getattr(source, "pieces", None) for source in sources]
    if not all(map(callable, asked)):
        return None
    pieces: list[Any] = [None] * len(ids)
    dtypes = set()
    for part, rows, own in split(ids):
        try:
            found = asked[part](field, own, starts[rows], stops[rows])  # type: ignore[misc]
        except Exception as error:
            raise as_data_error(f"part {names[part]}", error) from error
        if found is None:
            return None
        dtypes.add(found[0].dtype)
        for row, piece in zip(rows.tolist(), found, strict=True):
            pieces[row] = piece
    return pieces if len(dtypes) < 2 else None
