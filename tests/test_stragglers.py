"""Stragglers: who holds the others up is named once, with what it spends the time on."""

from __future__ import annotations

import pytest

from hostmesh.launcher.protocol import wire
from hostmesh.launcher.supervisor.state.progress import Progress
from hostmesh.launcher.supervisor.stuck.stragglers import Share, Straggler, Stragglers, find_straggler


def share(waiting: float, loading: float = 0.0) -> Share:
    return Share(waiting, loading, 0.1)


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ([share(0.5), share(0.5), share(0.1)], 2),
        ([share(0.1), share(0.5)], 0),
        ([share(0.5), share(0.5), share(0.4)], None),
        ([share(0.0), share(0.0), share(0.5)], None),  # two hold one up: which of them, nobody knows
        ([share(0.5), None, share(0.1)], None),
        ([share(0.0)], None),
    ],
)
def test_who_is_named(shares: list[Share | None], named: int | None) -> None:
    found = find_straggler(dict(enumerate(shares)))
    assert (found and found.process_id) == named


def test_what_it_spends_the_time_on() -> None:
    loads = find_straggler({0: share(0.5), 1: share(0.1, 0.4)})
    works = find_straggler({0: share(0.5, 0.1), 1: share(0.1, 0.1)})
    assert loads is not None and "its input (40%" in loads.cause
    assert works is not None and "its own work" in works.cause


def go_on(watch: Stragglers, began: int, seconds: int, waits: dict[int, float]) -> list[Straggler]:
    """A step a second, and the share of its time that each process waits."""
    found = []
    for second in range(began, began + seconds):
        now = {
            process_id: Progress(0.0, wire.Observed(process_id, step=second, looks=second, waits=int(second * each)))
            for process_id, each in waits.items()
        }
        if (straggler := watch.look(now, float(second))) is not None:
            found.append(straggler)
    return found


def test_each_finding_is_told_once_and_only_after_a_minute() -> None:
    watch = Stragglers()
    slow = {0: 0.6, 1: 0.6, 2: 0.0}
    assert go_on(watch, 0, 50, slow) == []
    assert [each.process_id for each in go_on(watch, 50, 200, slow)] == [2]
    assert go_on(Stragglers(), 0, 300, {0: 0.1, 1: 0.2, 2: 0.1}) == []
