"""The steps of a Hugging Face stream: a pass with a state of its own, and what each step makes of its items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostmesh.worker.streams.batches import RECORDS, UNKNOWN, Items, batches_of, combine

# Steps whose states leave something out, by their classes: what a shuffle's buffer holds is lost.
NOT_EXACT = ("BufferShuffledExamplesIterable",)


class Examples(Iterator[Any]):
    """One pass with a state of its own: an IterableDataset has one state for all its passes."""

    def __init__(self, data: Any) -> None:
        self._data = _copy(data)
        self._data._ex_iterable = _copy_steps(data._ex_iterable)
        self._examples = iter(self._data)
        self._is_exact = not any(type(step).__name__ in NOT_EXACT for step in _steps(data._ex_iterable))

    def __next__(self) -> Any:
        return next(self._examples)

    def get_state(self) -> Any:
        return self._data.state_dict() if self._is_exact else None

    def set_state(self, state: Any) -> None:
        self._data.load_state_dict(state)


def find_items(step: Any) -> Items:
    """What this step makes of the items of those before it."""
    if _is_batch(getattr(step, "function", None)):
        return batches_of(None if step.is_batch_accumulate_arrow_table_function else step.batch_size)
    before = [find_items(part) for part in _parts(step)]
    found = combine(before) if before else RECORDS
    # A function of several batches may take them apart.
    return UNKNOWN if found.batched and getattr(step, "batched", False) else found


def _is_batch(function: Any) -> bool:
    """Whether it is one of those that `.batch()` maps with."""
    function = getattr(function, "func", function)  # of a partial
    name = getattr(function, "__name__", "")
    return name.startswith("_batch_") and function.__module__.startswith("datasets.")


def _parts(step: Any) -> list[Any]:
    return [step.ex_iterable] if hasattr(step, "ex_iterable") else list(getattr(step, "ex_iterables", []))


def _steps(step: Any) -> Iterator[Any]:
    yield step
    for part in _parts(step):
        yield from _steps(part)


def _copy(found: Any) -> Any:
    """With attributes of its own, which a copy of an IterableDataset has not."""
    twin = object.__new__(type(found))
    twin.__dict__ = dict(vars(found))
    return twin


def _copy_steps(step: Any) -> Any:
    twin = _copy(step)
    if hasattr(step, "ex_iterable"):
        twin.ex_iterable = _copy_steps(step.ex_iterable)
    elif hasattr(step, "ex_iterables"):
        twin.ex_iterables = [_copy_steps(part) for part in step.ex_iterables]
    return twin
