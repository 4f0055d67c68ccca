"""The structure of blocks, which never changes within a run, so that a step compiles once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hostmesh.worker.errors import DataError
from hostmesh.worker.reading.arrays import Array, Fields, as_array


@dataclass(frozen=True)
class Structure:
    """What all blocks of a loader have in common: everything but the number of rows."""

    tree: Any
    fields: Fields

    @classmethod
    def of(cls, block: Any) -> Structure:
        with_paths, tree = jax.tree_util.tree_flatten_with_path(block)
        names = tuple(_shown(path) for path, _ in with_paths)
        device_dtypes = find_device_dtypes()
        leaves = [as_array(name, leaf, device_dtypes) for name, (_, leaf) in zip(names, with_paths, strict=True)]
        if not leaves:
            raise DataError("a row wants at least one array, found none")
        shapes, dtypes = tuple(leaf.shape[1:] for leaf in leaves), tuple(leaf.dtype for leaf in leaves)
        return cls(tree, Fields(names, shapes, dtypes, device_dtypes))

    @property
    def names(self) -> tuple[str, ...]:
        return self.fields.names

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one row."""
        return self.fields.shapes

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        return self.fields.dtypes

    def describe(self) -> dict[str, str]:
        """`{"image": "float32[28,28]"}`."""
        kinds = zip(self.names, self.dtypes, self.shapes, strict=True)
        return {name: f"{dtype.name}[{','.join(map(str, shape))}]" for name, dtype, shape in kinds}

    def flatten(self, block: Any, rows: int) -> list[Array]:
        leaves, tree = jax.tree_util.tree_flatten(block)
        if tree != self.tree:
            raise self.fields.refuse_names(Structure.of(block).names)
        return self.fields.check(leaves, rows)


def find_device_dtypes() -> dict[str, str]:
    """Without x64 a device holds 64 bits as 32."""
    wide = ("int64", "uint64", "float64", "complex128")
    return {name: np.dtype(jax.dtypes.canonicalize_dtype(np.dtype(name))).name for name in wide}


def _shown(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "the row"
