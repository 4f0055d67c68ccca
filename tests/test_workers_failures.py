"""A loader that failed holds nothing: no memory, no thread, no data process."""

from __future__ import annotations

import gc
import os
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import worked_rows
from conftest import await_true, loader_threads
from test_workers import children, names
from worked_rows import Rows

import hostmesh
from hostmesh.worker.errors import DataError
from hostmesh.worker.loading.ahead.failure import Failure

NOTHING_AHEAD = {"prefetch": 0, "device_prefetch": 0}
KINDS: list[dict[str, Any]] = [{"workers": workers, **ahead} for workers in (0, 2) for ahead in ({}, NOTHING_AHEAD)] + [
    {"processes": 1},
    {"processes": 2, **NOTHING_AHEAD},
]


def shared_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith("/memfd:hostmesh")]


@pytest.mark.parametrize("options", KINDS, ids=names)
def test_a_loader_that_failed_is_freed(options: dict[str, Any]) -> None:
    def fail() -> weakref.ref[hostmesh.Loader]:
        loader = hostmesh.Loader(Rows(), batch_size=16, shuffle=False, map=worked_rows.fail_at_17, **options)
        for _ in range(2):  # it fails again where it is asked again
            with pytest.raises(DataError, match="KeyError: 'caption'"):
                for _ in loader:
                    pass
        return weakref.ref(loader)

    found = fail()
    gc.collect()
    assert found() is None
    await_true(lambda: not children() and not loader_threads(), 20, "data processes and threads to end")
    assert not shared_files()


def fail_late(block: Any) -> Any:
    if 40 in block["id"]:
        raise KeyError("caption")
    return block


@pytest.mark.parametrize("options", [{}, {"lengths": (4, 8)}], ids=["rows", "lengths"])
def test_a_loader_is_freed_whose_failure_nobody_has_seen(options: dict[str, Any]) -> None:
    """With lengths that are to be agreed on, the caller's own thread reads ahead, and its frames hold the loader."""

    def leave() -> weakref.ref[hostmesh.Loader]:
        records = [{"id": np.int32(n), "tokens": np.zeros(3, np.int32)} for n in range(64)]
        loader = hostmesh.Loader(
            records, batch_size=16, shuffle=False, map=fail_late, workers=0, **NOTHING_AHEAD, **options
        )
        next(loader)
        next(loader)
        return weakref.ref(loader)

    found = leave()
    gc.collect()
    assert found() is None


@pytest.mark.parametrize("options", [{}, {"lengths": (4, 8)}], ids=["rows", "lengths"])
def test_a_loader_in_a_circle_leaves_no_thread(options: dict[str, Any]) -> None:
    def leave() -> None:
        records = [{"id": np.int32(n), "tokens": np.zeros(3, np.int32)} for n in range(64)]
        loader: Any = hostmesh.Loader(records, batch_size=16, **options)
        next(loader)
        loader.itself = loader

    leave()
    gc.collect()
    await_true(lambda: not loader_threads(), 20, "threads to end")


class Particular(Exception):
    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} in {where}")


def test_an_error_is_handed_out_once_and_then_copied() -> None:
    error = OSError(5, "bad sector")
    failure = Failure(error)
    assert failure.take() is error
    again, once_more = failure.take(), failure.take()
    assert again is not error and again is not once_more
    assert type(again) is OSError and str(again) == str(error)
    of_raised = Failure.of_raised(Particular(3, where="x"))
    assert str(of_raised.take()) == "Particular: 3 in x"
