"""Reading ahead: in order, one read at a time, and by whoever it pays to have at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from conftest import busyness

from hostmesh.worker.loading.ahead import prefetch
from hostmesh.worker.loading.ahead.prefetch import ReadAhead

TIERS = [(0, 0), (1, 0), (3, 0), (0, 1), (2, 2)]


@pytest.fixture
def ahead() -> Iterator[Callable[..., ReadAhead[Any, Any]]]:
    made: list[ReadAhead[Any, Any]] = []

    def make(read: Any, place: Any, steps: Any, *args: Any, **options: Any) -> ReadAhead[Any, Any]:
        made.append(ReadAhead(read, place, steps, *args, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def spend(seconds: float) -> None:
    time.sleep(seconds)  # what is under test is who works while somebody else does


@pytest.mark.parametrize(("host", "devices"), TIERS)
def test_items_come_in_order_whoever_makes_them(ahead: Any, host: int, devices: int) -> None:
    random = np.random.default_rng(0)

    def read(step: int) -> int:
        spend(float(random.choice([0, 0.002])))
        return step * 10

    items = ahead(read, lambda item: item + 1, iter(range(60)), host, devices)
    taken = []
    for _ in range(60):
        taken.append(items.take())
        spend(float(random.choice([0, 0.002])))
    assert taken == [step * 10 + 1 for step in range(60)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            items.take()


def test_two_reads_never_run_at_once(ahead: Any) -> None:
    reading, alone = threading.Semaphore(1), []

    def read(step: int) -> int:
        alone.append(reading.acquire(blocking=False))
        spend(0.001)
        reading.release()
        return step

    items = ahead(read, lambda item: item, iter(range(40)), 3, 1)
    for _ in range(40):
        items.take()
        spend(0.0005)
    assert all(alone) and len(alone) == 40


def test_the_thread_rests_where_waking_it_costs_more_than_it_saves(ahead: Any) -> None:
    makers: list[int] = []

    def read(step: int) -> int:
        makers.append(threading.get_ident())
        spend(0.001)
        return step

    items = ahead(read, lambda item: item, count(), 2, 1)
    for _ in range(50):  # used at once: there is nothing to overlap with
        items.take()
    assert set(makers[-10:]) == {threading.get_ident()}
    for _ in range(50):
        items.take()
        spend(0.003)
    assert threading.get_ident() not in makers[-10:]


@pytest.mark.parametrize(("host", "devices"), TIERS)
@pytest.mark.parametrize("stage", ["read", "place"])
def test_a_failure_comes_after_what_was_made_before_it_and_stays(
    ahead: Any, host: int, devices: int, stage: str
) -> None:
    def fail_at(step: int) -> int:
        if step == 7:
            raise OSError("bad sector")
        return step

    stages = (fail_at, lambda item: item) if stage == "read" else (lambda step: step, fail_at)
    items = ahead(*stages, count(), host, devices)
    assert [items.take() for _ in range(7)] == list(range(7))
    for _ in range(2):
        with pytest.raises(OSError, match="bad sector"):
            items.take()


def test_closing_does_not_wait_for_ever_for_a_read_that_hangs(ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "CLOSING_TIMEOUT", 0.1)
    begun, go_on = threading.Event(), threading.Event()

    def read(step: int) -> int:
        begun.set()
        go_on.wait(30)
        return step

    items = ahead(read, lambda item: item, count(), 1, 0)
    assert begun.wait(20)
    began = time.monotonic()
    items.close()
    assert time.monotonic() - began < 10 * busyness()
    go_on.set()
