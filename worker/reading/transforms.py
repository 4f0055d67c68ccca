"""What the user wants done to rows. Without jax: data processes use it too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError, as_data_error
from hostmesh.worker.loading.rows import Block, Ids, Record
from hostmesh.worker.ordering.randomness import COLLATE, RowRandom

Map: TypeAlias = Callable[..., Block]
Collate: TypeAlias = Callable[..., Block]


class Transforms:
    """What the user wants done to rows: `collate` makes a block of records, `map` changes a block."""

    must_agree = False  # whether a block is complete only once processes have agreed on its length

    def __init__(self, map: Map | None, collate: Collate | None, seed: int) -> None:
        self.collate = collate
        self._map = map
        self._seed = seed
        self._map_wants_all = map is not None and count_arguments(map, "map", "block") == 3
        self._collate_wants_all = collate is not None and count_arguments(collate, "collate", "records") == 3

    def apply_collate(self, records: list[Record], ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        """`rows` are numbers within a batch; `start` is the global position of its first row."""
        assert self.collate is not None
        try:
            if self._collate_wants_all:
                return self.collate(records, ids, RowRandom(self._seed, start + rows, COLLATE))
            return self.collate(records)
        except Exception as error:
            raise as_data_error("collate" if len(ids) > 1 else f"collate of record {ids[0]}", error) from error

    def length_of(self, step: int) -> int:
        """To which the rows of a step are padded; 0 where all steps have one length."""
        return 0

    def apply_map(self, block: Block, ids: Ids, start: int, rows: NDArray[np.int64]) -> Block:
        if self._map is None:
            return block
        try:
            if self._map_wants_all:
                return self._map(block, ids, RowRandom(self._seed, start + rows))
            return self._map(block)
        except Exception as error:
            raise as_data_error("map", error) from error


def count_arguments(function: Callable[..., Block], name: str, first: str) -> int:
    """1 for a function of the rows alone, 3 for one that also takes ids and random numbers."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1  # a built-in function without a signature
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return 3
    required = sum(
        parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY
        for parameter in parameters
    )
    if required not in (1, 3):
        wanted = f"one argument ({first}) or three ({first}, ids, rng)"
        raise DataError(f"{name} wants {wanted}; found one that takes {required}")
    return required
