"""The arrays of a block, checked against what every block of a loader has. Without jax: data processes use it too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError

Array: TypeAlias = NDArray[Any]
# The dtype that an array has on a device, for those that change on their way there.
DeviceDtypes: TypeAlias = Mapping[str, str]


@dataclass(frozen=True)
class Fields:
    """The name, the shape of a row and the dtype of each array."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    device_dtypes: DeviceDtypes = field(default_factory=dict)

    def check(self, leaves: Sequence[Any], rows: int) -> list[Array]:
        """The arrays of these leaves, each with so many rows."""
        arrays = []
        for name, leaf, shape, dtype in zip(self.names, leaves, self.shapes, self.dtypes, strict=True):
            is_alike = type(leaf) is np.ndarray and leaf.dtype == dtype
            array = leaf if is_alike else as_array(name, leaf, self.device_dtypes)
            if array.shape != (rows, *shape) or not is_alike and array.dtype != dtype:
                raise DataError(
                    f"{name} is {array.dtype.name}{list(array.shape)}; wanted {dtype.name}{[rows, *shape]}"
                    " as in the first batch: every batch needs one shape, so pad to a fixed length"
                )
            arrays.append(array)
        return arrays

    def refuse_names(self, found: Sequence[str]) -> DataError:
        return DataError(
            f"rows have the fields {', '.join(found)}; wanted {', '.join(self.names)} as in the first batch"
        )


def as_array(name: str, leaf: Any, device_dtypes: DeviceDtypes) -> Array:
    """An array in the dtype that it has on a device. A number that this conversion would change is an error."""
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if array.ndim == 0:
        raise DataError(f"{name} is a single {array.dtype.name}; wanted an array whose first axis counts rows")
    if array.dtype.kind in "OSUMm" or array.dtype.names:
        raise DataError(
            f"{name} has dtype {array.dtype.name}, which no device holds: wanted numbers; drop or encode it in `map`"
        )
    wanted = np.dtype(device_dtypes.get(name_of(array.dtype), array.dtype))
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


@lru_cache(64)
def name_of(dtype: np.dtype[Any]) -> str:
    """NumPy takes longer to make it than for the rest of a small array."""
    return dtype.name


def named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of dicts, tuples and lists in the order in which jax has them, and the names that it gives them."""
    if isinstance(tree, dict):
        keys = list(tree) if isinstance(tree, OrderedDict) else sorted(tree)
        for key in keys:
            yield from named_leaves(tree[key], _below(path, key))
    elif hasattr(tree, "_fields"):
        for name in tree._fields:
            yield from named_leaves(getattr(tree, name), _below(path, name))
    elif isinstance(tree, (tuple, list)):
        for index, part in enumerate(tree):
            yield from named_leaves(part, _below(path, index))
    elif tree is not None:
        yield path or "the row", tree


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
