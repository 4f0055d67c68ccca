"""The structure of blocks, which never changes within a run, so that a step compiles once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Structure:
    """What all blocks of a loader have in common: everything but the number of rows."""

    tree: Any
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]

    @classmethod
    def of(cls, block: Any) -> Structure:
        with_paths, tree = jax.tree_util.tree_flatten_with_path(block)
        names = tuple(_shown(path) for path, _ in with_paths)
        leaves = [as_array(name, leaf) for name, (_, leaf) in zip(names, with_paths, strict=True)]
        if not leaves:
            raise DataError("a row wants at least one array, found none")
        return cls(tree, names, tuple(leaf.shape[1:] for leaf in leaves), tuple(leaf.dtype for leaf in leaves))

    def describe(self) -> dict[str, str]:
        """`{"image": "float32[28,28]"}`."""
        kinds = zip(self.names, self.dtypes, self.shapes, strict=True)
        return {name: f"{dtype.name}[{','.join(map(str, shape))}]" for name, dtype, shape in kinds}

    def flatten(self, block: Any, rows: int) -> list[Array]:
        leaves, tree = jax.tree_util.tree_flatten(block)
        if tree != self.tree:
            found = ", ".join(Structure.of(block).names)
            raise DataError(f"rows have the fields {found}; wanted {', '.join(self.names)} as in the first batch")
        arrays = [
            leaf if type(leaf) is np.ndarray and leaf.dtype == dtype else as_array(name, leaf)
            for leaf, dtype, name in zip(leaves, self.dtypes, self.names, strict=True)
        ]
        for name, array, shape, dtype in zip(self.names, arrays, self.shapes, self.dtypes, strict=True):
            if array.shape != (rows, *shape) or array.dtype != dtype:
                raise DataError(
                    f"{name} is {array.dtype.name}{list(array.shape)}; wanted {dtype.name}{[rows, *shape]}"
                    " as in the first batch: every batch needs one shape, so pad to a fixed length"
                )
        return arrays


def as_array(name: str, leaf: Any) -> Array:
    """An array in the dtype that it has on a device. A number that this conversion would change is an error."""
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if array.ndim == 0:
        raise DataError(f"{name} is a single {array.dtype.name}; wanted an array whose first axis counts rows")
    wanted = _device_dtype(array.dtype)
    if wanted is None:
        raise DataError(
            f"{name} has dtype {array.dtype.name}, which no device holds: wanted numbers; drop or encode it in `map`"
        )
    if wanted == array.dtype:
        return array
    if array.dtype.kind in "iu" and array.size:
        low, high = array.min(), array.max()
        limits = np.iinfo(wanted)
        if low < limits.min or high > limits.max:
            raise DataError(
                f"{name} has values from {low} to {high}, which {wanted.name} cannot hold:"
                " set JAX_ENABLE_X64=1, or make them smaller in `map`"
            )
    return array.astype(wanted)


def _device_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    if dtype.kind in "OSUMm" or dtype.names:
        return None
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _shown(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "the row"
