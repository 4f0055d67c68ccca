"""Metric values: Python numbers, and scalars of NumPy and jax that may still be in computation."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

# What NumPy calls booleans, integers and floats; bfloat16 and its like are of the kind V.
NUMBER_KINDS = "biufV"

Number: TypeAlias = int | float


def check_step(step: Any) -> int:
    if not (isinstance(step, int) or _is_numpy_integer(step)):
        raise TypeError(f"report: step: found {_describe(step)}, wanted a whole number such as loader.step")
    return int(step)


def check_value(name: str, value: Any) -> Any:
    """A Python number, or a jax scalar; NumPy's are read at once, because an array may change."""
    if isinstance(value, (int, float)):
        return value
    if not _is_scalar(value):
        raise TypeError(f"report: {name}: found {_describe(value)}, wanted a number or a scalar of NumPy or jax")
    return value if hasattr(value, "is_ready") else _plain(value.item())


def _is_scalar(value: Any) -> bool:
    """Of numpy, or of jax and no tracer: that has no `is_ready`."""
    is_known = hasattr(value, "is_ready") or _is_numpy(value)
    return is_known and value.shape == () and value.dtype.kind in NUMBER_KINDS


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray))


def _is_numpy_integer(value: Any) -> bool:
    return _is_numpy(value) and value.shape == () and value.dtype.kind in "iu"


def _describe(value: Any) -> str:
    kind = type(value).__name__
    return (
        f"{kind} of shape {value.shape} and type {value.dtype}" if hasattr(value, "dtype") else f"{kind} {value!r:.80}"
    )


def is_on_device(value: Any) -> bool:
    return not isinstance(value, (int, float))


def is_in_computation(value: Any) -> bool:
    return is_on_device(value) and not value.is_deleted() and not value.is_ready()


def read_all(values: Iterable[tuple[int, Any]]) -> list[tuple[int, Number]]:
    """The numbers of those values that can be read."""
    return [(step, number) for step, value in values if (number := _read(value)) is not None]


def _read(value: Any) -> Number | None:
    if not is_on_device(value):
        return _plain(value)
    if value.is_deleted() or not value.addressable_shards:
        return None
    try:
        return _plain(value.item())
    except Exception:  # its computation failed, and the script gets the error when it uses the result
        return None


def _plain(number: Any) -> Number:
    """As JSON knows it, also NumPy's longdouble."""
    return number if isinstance(number, (int, float)) else float(number)


def is_finite(number: Number) -> bool:
    return isinstance(number, int) or math.isfinite(number)


def to_json(number: Number) -> int | float | str:
    """Text for a number that is not finite, which JSON cannot hold."""
    return number if is_finite(number) else str(float(number))
