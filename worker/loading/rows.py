"""Records and blocks of rows, both trees of dicts, tuples and lists: stack, take, split, walk and check them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hostmesh.worker.errors import DataError

Record: TypeAlias = Any  # a tree with one value a leaf
Block: TypeAlias = Any  # the same tree with an array a leaf, each with one row a record
Ids: TypeAlias = NDArray[np.int64]

UNSIGNED = np.dtype(np.uint64)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: map_leaves(function, part) for key, part in tree.items()}
    if isinstance(tree, (tuple, list)):
        return rebuild(tree, [map_leaves(function, part) for part in tree])
    return function(tree)


def rebuild(tree: Any, parts: list[Any]) -> Any:
    """A container of that kind with these parts; a named tuple takes them one by one."""
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with its path, written `image`, `meta.size` or `[0]`; the path of a lone leaf is empty."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from leaves(part, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, (tuple, list)):
        for index, part in enumerate(tree):
            yield from leaves(part, f"{path}[{index}]")
    else:
        yield path, tree


def take_rows(block: Block, rows: Any) -> Block:
    """Those rows of every leaf; an array of row numbers gives copies."""
    return map_leaves(lambda leaf: leaf[rows], block)


def split_block(block: Block, count: int) -> list[Record]:
    return [take_rows(block, row) for row in range(count)]


def count_rows(block: Block, name: str) -> int:
    """How many rows every leaf has; leaves that differ are all named."""
    lengths = {path or "it": len(leaf) if np.ndim(leaf) else None for path, leaf in leaves(block)}
    if len(set(lengths.values())) == 1 and None not in lengths.values():
        return next(iter(lengths.values())) or 0
    if not lengths:
        raise DataError(f"{name} holds no array at all; wanted at least one, with one row a record")
    found = ", ".join(f"{path} has {'no rows' if n is None else n}" for path, n in lengths.items())
    raise DataError(f"{name} wants arrays with equally many rows, one a record; found: {found}")


def check_ids(ids: Ids, length: int, name: str) -> None:
    """Refuse ids out of range: NumPy and others silently count negative ones from the end."""
    if not len(ids):
        return
    worst = ids.item(
        ids.view(UNSIGNED).argmax()
    )  # as unsigned a negative id is huge; this costs a quarter of min and max
    if not 0 <= worst < length:
        wanted = f"wanted ids 0 to {length - 1}" if length else "wanted no id"
        raise DataError(f"{name} has {length} records: {wanted}, found {worst}")


def require_fit(name: str, value: Any, dtype: np.dtype[Any]) -> None:
    """Refuse a value that a dtype cannot hold: NumPy wraps or cuts some, and fails at others once they are used."""
    given = np.asarray(value)
    try:
        with np.errstate(invalid="ignore"):
            fits = dtype.kind not in "iub" or np.array_equal(given.astype(dtype), given)
    except (OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        raise DataError(f"{name} wants a value of {dtype.name}, {low} to {high}; found {value!r}")


def stack_records(records: Sequence[Record], ids: Sequence[int] | Ids) -> Block:
    """One freshly made block of these records; the ids are what messages call them."""
    if not len(records):
        raise DataError("no records to stack: the shape of an empty block is not known")
    return _stacked(records, ids, "")


def _stacked(parts: Sequence[Any], ids: Sequence[int] | Ids, path: str) -> Block:
    first = parts[0]
    if isinstance(first, dict):
        _check_fields(parts, ids, path)
        return {
            key: _stacked([part[key] for part in parts], ids, f"{path}.{key}" if path else str(key)) for key in first
        }
    if isinstance(first, (tuple, list)):
        _check_lengths(parts, ids, path)
        columns = zip(*parts, strict=True)
        return rebuild(first, [_stacked(column, ids, f"{path}[{n}]") for n, column in enumerate(columns)])
    return _stacked_leaf(parts, ids, path)


def _stacked_leaf(parts: Sequence[Any], ids: Sequence[int] | Ids, path: str) -> NDArray[Any]:
    arrays = [part if type(part) is np.ndarray else _as_array(part, ids[n], path) for n, part in enumerate(parts)]
    shape, dtype = arrays[0].shape, arrays[0].dtype
    if dtype.kind in "USO":
        return _stacked_objects(arrays, ids, path)
    for n, array in enumerate(arrays):
        if array.shape != shape:
            _refuse(ids, n, path, f"has shape {array.shape}", f"{shape}", "pad in `map`, or pass `collate=`")
        if array.dtype != dtype:
            _refuse(ids, n, path, f"has dtype {array.dtype}", f"{dtype}", "give every record the same dtype")
    # Four times as fast as np.stack for small records, which makes a view of each first.
    return np.concatenate(arrays).reshape(len(arrays), *shape) if shape else np.array(arrays, dtype)


def _stacked_objects(arrays: list[NDArray[Any]], ids: Sequence[int] | Ids, path: str) -> NDArray[Any]:
    """For text and bytes of any length, and other values that NumPy has no type for."""
    stacked = np.empty((len(arrays), *arrays[0].shape), object)
    for n, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            _refuse(ids, n, path, f"has shape {array.shape}", f"{arrays[0].shape}", "pass `collate=`")
        if array.dtype.kind != arrays[0].dtype.kind:
            _refuse(ids, n, path, f"has dtype {array.dtype}", f"{arrays[0].dtype}", "give all records the same dtype")
        stacked[n] = array.item() if not array.shape else array.astype(object)
    return stacked


def _as_array(value: Any, record: int, path: str) -> NDArray[Any]:
    if isinstance(value, (str, bytes)):
        boxed = np.empty((), object)  # NumPy's own types for text drop trailing zeros
        boxed[()] = value
        return boxed
    if isinstance(value, (dict, tuple, list)):
        found = f"is of type {type(value).__name__}"
        raise DataError(f"record {record}: {path or 'it'} {found}, wanted one value as in the others")
    try:
        return np.asarray(value)
    except Exception as error:
        found = f"is of type {type(value).__name__} and cannot become an array: {error}"
        raise DataError(f"record {record}: {path or 'it'} {found}") from error


def _check_fields(parts: Sequence[Any], ids: Sequence[int] | Ids, path: str) -> None:
    wanted = parts[0].keys()
    for n, part in enumerate(parts):
        if not isinstance(part, dict):
            _refuse(ids, n, path, f"is of type {type(part).__name__}", "dict", "give all records the same structure")
        if part.keys() != wanted:
            found = f"has the fields {', '.join(map(str, part))}"
            _refuse(ids, n, path, found, ", ".join(map(str, wanted)), "give all records the same fields")


def _check_lengths(parts: Sequence[Any], ids: Sequence[int] | Ids, path: str) -> None:
    first = parts[0]
    for n, part in enumerate(parts):
        if not isinstance(part, (tuple, list)) or type(part) is not type(first):
            found, wanted = f"is of type {type(part).__name__}", type(first).__name__
            _refuse(ids, n, path, found, wanted, "give all records the same structure")
        if len(part) != len(first):
            advice = "make it an array and pad in `map`, or pass `collate=`"
            _refuse(ids, n, path, f"is a {type(part).__name__} of {len(part)}", f"one of {len(first)}", advice)


def _refuse(ids: Sequence[int] | Ids, n: int, path: str, found: str, wanted: str, advice: str) -> None:
    raise DataError(f"record {ids[n]}: {path or 'it'} {found}, wanted {wanted} like record {ids[0]}; {advice}")
